"""What each write call does and returns, in which order writes travel, and where they wait or are cancelled."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Code, DeadlineExceeded, OncegateError, OperationFailed, Outcome, RequestId, Session, Tuning
from oncegate.gateway import wire
from oncegate.gateway.client.places import Places
from oncegate.gateway.client.send_queue import SendQueue
from oncegate.gateway.sweep import NEVER
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, arrived, fails, intercept, rejected, results, settle


async def test_caller_cancelled_in_the_turn_in_which_it_got_a_place_gives_it_back() -> None:
    places = Places(asyncio.get_running_loop(), 1, lambda at: None)
    await places.take(NEVER)
    waiter = asyncio.create_task(places.take(NEVER))
    await asyncio.sleep(0)
    places.free(1)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    assert places.outstanding == 0


async def test_put_returns_commit_version_and_request_id(fake: FakeGateway, session: Session) -> None:
    result = await session.put("rows", "k", {"text": "hi"})
    assert result.applied
    assert not result.replayed
    assert result.code is None
    assert result.commit == result.version == 1
    assert result.request_id == RequestId(session.client_id, 1)  # type: ignore[arg-type]
    assert result.memory_ms_left == 60_000
    assert await fake.value("rows", "k") == {"text": "hi"}


async def test_remembered_read_of_an_absent_row_has_version_0_and_no_value(session: Session) -> None:
    read = await session.get_remembered("rows", "k")
    assert (read.applied, read.value, read.version) == (True, None, 0)


async def test_two_conditions_are_refused_before_anything_is_sent(session: Session) -> None:
    with fails(Code.BAD_REQUEST):
        await session.put("rows", "k", 1, if_absent=True, if_version=3)
    assert session.outstanding == 0


async def test_value_that_cannot_be_encoded_fails_alone_and_takes_no_place(session: Session) -> None:
    with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
        await session.put("rows", "k", object())
    assert session.outstanding == 0
    assert (await session.put("rows", "k", 1)).sequence == 1


@pytest.mark.parametrize(
    "bad",
    [
        lambda session: session.put("rows", "\ud800", 1),
        lambda session: session.put("\ud800", "k", 1),
        lambda session: session.put("rows", b"k", 1),
        lambda session: session.put("rows", "k", 1, if_version=2**70),
        lambda session: session.delete("rows", "\ud800"),
        lambda session: session.get_remembered("rows", object()),
        lambda session: session.increment("rows", "k", by=2**64),
        lambda session: session.increment("rows", "k", by=object()),
        lambda session: session.put("rows", "k", {"n": 2**70}),
        lambda session: session.put("rows", "k", 1, if_value=-(2**70)),
        lambda session: session.append("rows", "k", 2**70),
        lambda session: session.put_many("rows", [("a", 1), ("b", 2**70)]),
        lambda session: session.put_many("rows", [("a", 1), ("\ud800", 2)]),
        lambda session: session.put_many("events", [("a", 1), ("b", {"n": [math.nan]})]),
    ],
    ids=[
        "key",
        "table",
        "key of bytes",
        "version",
        "delete",
        "get",
        "sum",
        "no number",
        "large",
        "if large",
        "large item",
        "large rows",
        "rows",
        "not a number",
    ],
)
async def test_argument_that_cannot_travel_is_refused_and_the_writes_of_others_go_on(
    session: Session, bad: Callable[[Session], Awaitable[object]]
) -> None:
    others = [asyncio.ensure_future(session.put("rows", f"k{number}", None)) for number in range(3)]
    with fails(Code.BAD_REQUEST):
        await bad(session)
    assert [(await other).applied for other in others] == [True] * 3
    assert (await session.put("rows", "after", 1)).applied


async def test_value_is_encoded_at_the_call(fake: FakeGateway, session: Session) -> None:
    value = {"n": 1}
    future = session.submit("put", "rows", "k", value)
    value["n"] = 2
    await future
    assert await fake.value("rows", "k") == {"n": 1}


async def test_waiting_writes_travel_together(fake: FakeGateway, session: Session) -> None:
    await asyncio.gather(*(session.put("rows", f"k{n}", n) for n in range(200)))
    assert fake.nodes[0].requests["POST /v1/operations"] <= 3
    assert len(fake.executed) == 200


async def test_unknown_table_fails_that_write_only_and_its_number_is_used_again(session: Session) -> None:
    good, bad = await asyncio.gather(
        session.put("rows", "k", 1), session.put("nowhere", "k", 1), return_exceptions=True
    )
    assert isinstance(bad, OperationFailed)
    assert bad.code is Code.NOT_FOUND
    assert bad.outcome is Outcome.NOT_APPLIED
    assert not isinstance(good, BaseException)
    assert good.applied
    assert (await session.put("rows", "k", 2)).sequence == 2


async def test_one_bad_write_does_not_spoil_those_that_travel_with_it(fake: FakeGateway, session: Session) -> None:
    node = fake.nodes[0]

    async def refuse_bodies_with_a_bad_key(request: web.Request) -> web.StreamResponse | None:
        body = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest)
        if any(operation.key == "bad" for operation in body.operations):
            return node.problem(OncegateError(Code.BAD_REQUEST, "bad key"))
        return None

    intercept(node, OPERATIONS, refuse_bodies_with_a_bad_key)
    keys = [f"k{n}" for n in range(20)]
    keys[7] = "bad"
    results = await asyncio.gather(*(session.put("rows", key, 1) for key in keys), return_exceptions=True)
    failed = [key for key, result in zip(keys, results, strict=True) if isinstance(result, BaseException)]
    assert failed == ["bad"]
    assert sorted(write.key for write in fake.executed) == sorted(set(keys) - {"bad"})


async def test_body_over_the_bound_is_cut_in_two(fake: FakeGateway) -> None:
    tuning = Tuning(batch_bytes_max=1000)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        results = await asyncio.gather(*(session.put("rows", f"k{n}", "x" * 300) for n in range(10)))
    assert all(result.applied for result in results)
    assert [write.key for write in fake.executed] == [f"k{n}" for n in range(10)]
    assert fake.nodes[0].requests["POST /v1/operations"] >= 4


async def test_expiry_of_a_session_is_reported_once_by_event_and_callback(hasty: FakeGateway) -> None:
    lost: list[Code] = []
    async with Client(hasty.endpoints) as client:
        async with client.session(on_lost=lambda why: lost.append(why.code)) as session:
            assert not session.lost.is_set()
            hasty.expire(session.client_id)
            await session.lost.wait()
            with pytest.raises(OperationFailed):
                await session.put("rows", "k", 1)
        assert lost == [Code.SESSION_EXPIRED]
        async with client.session(on_lost=lambda why: lost.append(why.code)) as left:
            await left.put("rows", "k", 1)
        assert not left.lost.is_set()
    assert len(lost) == 1


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


@pytest.mark.parametrize("in_order", [False, True])
async def test_writes_that_waited_for_a_place_come_before_later_calls(
    fake: FakeGateway, client: Client, in_order: bool
) -> None:
    """A place comes free in the turn of the loop in which another caller, with its result, writes again."""
    commits: list[int] = []

    async with client.session(window=4, in_order=in_order) as session:

        async def write(pauses: int, *, submits: bool) -> None:
            for _ in range(40):
                number = len(commits)
                if submits:
                    try:
                        begun: Awaitable[Any] = session.submit("put", "rows", "k", number)
                    except OperationFailed:  # it would have to wait
                        await asyncio.sleep(0)
                        continue
                else:
                    begun = session.put("rows", "k", number)
                commits.append(0)
                commits[number] = (await begun).commit
                for _ in range(pauses):
                    await asyncio.sleep(0)

        await asyncio.gather(*(write(pauses, submits=submits) for pauses in range(4) for submits in (False, True)))
    assert commits == sorted(commits)


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


@pytest.mark.parametrize(("writes", "requests"), [(512, [128] * 4), (300, [150, 150]), (64, [64])])
async def test_writes_that_wait_travel_in_several_requests_at_once_if_they_are_many(
    fake: FakeGateway, writes: int, requests: list[int]
) -> None:
    sizes: list[int] = []

    async def note(request: web.Request) -> web.StreamResponse | None:
        sizes.append(len(msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations))
        return None

    async with Client(fake.endpoints) as client, client.session() as session:
        intercept(fake.nodes[0], OPERATIONS, note)
        fake.nodes[0].freeze()
        under_way = [session.submit("put", "rows", f"k{n}", n) for n in range(writes)]
        await arrived(fake.nodes[0], count=len(requests))
        fake.nodes[0].thaw()
        await asyncio.gather(*under_way)
    assert sorted(sizes) == sorted(requests)


async def test_writes_that_wait_for_one_row_are_not_looked_through_for_each(
    fake: FakeGateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes = 0
    take = SendQueue.take

    def counted(*arguments: Any) -> Any:
        nonlocal takes
        takes += 1
        return take(*arguments)

    monkeypatch.setattr(SendQueue, "take", counted)
    fake.nodes[0].freeze()
    first = session.submit("increment", "rows", "n")
    await arrived(fake.nodes[0])
    behind = []
    for _ in range(500):
        behind.append(session.submit("increment", "rows", "n"))
        await asyncio.sleep(0)
    assert takes < 20
    fake.nodes[0].thaw()
    await asyncio.gather(first, *behind)
    assert await fake.value("rows", "n") == 501
