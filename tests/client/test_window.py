"""Back-pressure, cancellation and order."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Code, DeadlineExceeded, OperationFailed, Outcome, Session, Tuning
from oncegate.gateway import wire
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, arrived, fails, intercept, rejected, results, settle


async def test_write_beyond_the_window_waits_for_a_place(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=4) as session:
        fake.nodes[0].freeze()
        writes = [asyncio.create_task(session.put("rows", f"k{n}", n)) for n in range(6)]
        await settle()
        assert session.outstanding == 4
        fake.nodes[0].thaw()
        await asyncio.gather(*writes)
    assert [write.key for write in fake.executed] == [f"k{n}" for n in range(6)]


async def test_write_beyond_the_window_fails_fast_on_request(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=2, full="fail") as session:
        fake.nodes[0].freeze()
        writes = [session.submit("put", "rows", f"k{n}", n) for n in range(2)]
        with fails(Code.WINDOW_FULL, Outcome.NOT_APPLIED):
            await session.put("rows", "k", 1)
        with pytest.raises(OperationFailed):
            session.submit("put", "rows", "k", 1)
        fake.nodes[0].thaw()
        await asyncio.gather(*writes)
        assert (await session.put("rows", "k", 1)).applied


async def test_waiting_for_a_place_ends_at_the_deadline(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=1) as session:
        fake.nodes[0].freeze()
        first = session.submit("put", "rows", "a", 1)
        with fails(Code.WINDOW_FULL, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await session.put("rows", "b", 1, timeout_s=0.05)
        fake.nodes[0].thaw()
        await first
        assert (await session.put("rows", "c", 1)).applied
    assert [write.key for write in fake.executed] == ["a", "c"]


async def test_cancelled_wait_for_a_place_gives_the_place_to_the_next(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=1) as session:
        fake.nodes[0].freeze()
        first = session.submit("put", "rows", "a", 1)
        second, third = (asyncio.create_task(session.put("rows", key, 1)) for key in "bc")
        await settle()
        second.cancel()
        fake.nodes[0].thaw()
        await asyncio.gather(first, third)
        assert second.cancelled()
        assert session.outstanding == 0
    assert [write.key for write in fake.executed] == ["a", "c"]


async def test_write_cancelled_before_it_travels_is_never_sent_and_takes_no_number(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        fake.nodes[0].freeze()
        first = session.submit("put", "rows", "a", 1)
        await settle()
        second = asyncio.create_task(session.put("rows", "b", 1))
        await settle()
        second.cancel()
        fake.nodes[0].thaw()
        await first
        assert (await session.put("rows", "c", 1)).sequence == 2
    assert [write.key for write in fake.executed] == ["a", "c"]


async def test_write_cancelled_under_way_keeps_its_number(fake: FakeGateway, session: Session) -> None:
    fake.nodes[0].freeze()
    write = asyncio.create_task(session.put("rows", "a", 1))
    await arrived(fake.nodes[0])
    write.cancel()
    await settle()
    assert session.outstanding == 1
    fake.nodes[0].thaw()
    assert (await session.put("rows", "b", 1)).sequence == 2
    assert session.outstanding == 0
    assert [(write.key, write.sequence) for write in fake.executed] == [("a", 1), ("b", 2)]


async def test_writes_on_one_row_are_applied_in_the_order_of_the_calls(fake: FakeGateway) -> None:
    tuning = Tuning(in_flight_max=4, pipeline_min=1, batch_operations_max=3)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        writes = [session.submit("put", "rows", f"k{n % 5}", n) for n in range(200)]
        await asyncio.gather(*writes)
    for key in range(5):
        values = [write.value for write in fake.executed if write.key == f"k{key}"]
        assert values == sorted(values)
    assert fake.nodes[0].requests["POST /v1/operations"] > 60


async def test_row_under_way_holds_back_later_writes_on_it_but_not_others(fake: FakeGateway) -> None:
    tuning = Tuning(in_flight_max=2, pipeline_min=1)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        fake.nodes[0].freeze()
        session.submit("put", "rows", "a", 1)
        await arrived(fake.nodes[0])
        other = session.submit("put", "rows", "b", 1)
        await arrived(fake.nodes[0], count=2)
        same = session.submit("put", "rows", "a", 2)
        await settle()
        assert fake.nodes[0].requests["POST /v1/operations"] == 2
        fake.nodes[0].thaw()
        await asyncio.gather(other, same)
    assert await fake.value("rows", "a") == 2


async def test_writes_on_other_rows_pass_one_that_stays_rejected(fake: FakeGateway, session: Session) -> None:
    async def reject_the_full_table(request: web.Request) -> web.StreamResponse | None:
        sent = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest)
        if all(operation.key != "full" for operation in sent.operations):
            return None
        return results(*(rejected(operation.sequence, "QUOTA", later=True) for operation in sent.operations))

    intercept(fake.nodes[0], OPERATIONS, reject_the_full_table)
    stuck = session.submit("put", "rows", "full", 1)
    await arrived(fake.nodes[0])
    behind = session.submit("put", "rows", "full", 2)
    assert (await session.put("rows", "a", 1)).applied
    assert not stuck.done()
    fake.nodes[0].before = None
    await asyncio.gather(stuck, behind)
    assert await fake.value("rows", "full") == 2
