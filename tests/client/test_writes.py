"""What each write call does and returns when nothing fails."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Code, OncegateError, OperationFailed, Outcome, RequestId, Session, Tuning
from oncegate.gateway import wire
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, fails, intercept


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
    with pytest.raises(TypeError):
        await session.put("rows", "k", object())
    assert session.outstanding == 0
    assert (await session.put("rows", "k", 1)).sequence == 1


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
