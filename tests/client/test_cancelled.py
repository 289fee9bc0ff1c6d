"""A call that is cut off, by a deadline of the application or a cancellation: its id stays known, and its fate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Code, OperationFailed, Outcome, OutcomeUnknown, RequestId, Session, Tuning, request_ids
from oncegate.gateway import wire
from oncegate.rifl.ids import ClientId, SequenceNumber
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, RANGES, arrived, fails, intercept, rejected, results, settle


@pytest.mark.parametrize(
    "cut_off",
    [
        lambda write: _timeout(write),
        lambda write: asyncio.wait_for(write, 0.02),
    ],
    ids=["timeout", "wait_for"],
)
async def test_fate_of_each_cancelled_increment_is_resolved_exactly(
    fake: FakeGateway, client: Client, cut_off: Callable[[Awaitable[object]], Awaitable[object]]
) -> None:
    served = 0

    async def now_and_then(request: web.Request) -> web.StreamResponse | None:
        nonlocal served
        served += 1
        await asyncio.sleep(0.03 if served % 3 else 0.0)  # longer than their callers wait, and then it is applied
        return None

    intercept(fake.nodes[0], OPERATIONS, now_and_then)
    known: list[RequestId] = []
    done = 0
    async with client.session() as session:
        for number in range(60):
            try:
                await cut_off(session.increment("rows", f"n{number % 7}"))
                done += 1
            except TimeoutError as late:
                known += request_ids(late)
        fake.nodes[0].before = None
        fates = [await session.resolve(one) for one in known]
    applied = {(write.client_id, write.sequence) for write in fake.executed}
    assert len(set(known)) == len(known) > 10
    assert [fate.executed for fate in fates] == [one in applied for one in known]
    assert len(fake.executed) == done + sum(fate.applied for fate in fates)


async def _timeout(write: Awaitable[object]) -> object:
    async with asyncio.timeout(0.02):
        return await write


async def test_cancelled_task_tells_the_id_and_one_that_never_travelled_tells_none(
    fake: FakeGateway, session: Session
) -> None:
    fake.nodes[0].freeze()
    first = asyncio.create_task(session.put("rows", "a", 1))
    await arrived(fake.nodes[0])
    second = asyncio.create_task(session.put("rows", "b", 1))
    await settle()
    for task, ids in ((first, (RequestId(session.client_id, 1),)), (second, ())):  # type: ignore[arg-type]
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert request_ids(cancelled.value) == ids
    fake.nodes[0].thaw()
    assert (await session.put("rows", "c", 1)).sequence == 2
    assert (await session.resolve(1)).applied


async def test_cancelled_put_many_tells_the_ids_of_its_rows(fake: FakeGateway, session: Session) -> None:
    await session.put("events", "first", 1)
    let_go = asyncio.Event()

    async def held(_: web.Request) -> None:
        await let_go.wait()

    intercept(fake.nodes[0], RANGES, held)
    many = asyncio.create_task(session.put_many("events", [(f"k{number}", number) for number in range(20)]))
    await arrived(fake.nodes[0], RANGES)
    many.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await many
    assert [one.sequence for one in request_ids(cancelled.value)] == list(range(2, 22))
    let_go.set()


async def test_submitted_write_has_its_id_before_it_travels_and_keeps_it(fake: FakeGateway, session: Session) -> None:
    seen: list[RequestId | None] = []
    submitted = session.submit("increment", "rows", "n")
    assert submitted.request_id is None, "nothing has been sent"

    async def look(request: web.Request) -> web.StreamResponse | None:
        seen.append(submitted.request_id)
        return None

    intercept(fake.nodes[0], OPERATIONS, look)
    result = await submitted
    assert seen == [submitted.request_id] == [result.request_id]
    fake.nodes[0].freeze()
    lost = session.submit("increment", "rows", "n")
    await arrived(fake.nodes[0], count=2)
    lost.cancel()
    assert lost.request_id == RequestId(session.client_id, 2)  # type: ignore[arg-type]
    fake.nodes[0].thaw()


async def test_number_of_a_cancelled_write_that_was_refused_is_not_given_out_again(
    fake: FakeGateway, session: Session
) -> None:
    fake.nodes[0].freeze()
    write = asyncio.create_task(session.put("nowhere", "a", 1))
    await arrived(fake.nodes[0])
    write.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await write
    fake.nodes[0].thaw()
    await session.drain()
    assert (await session.put("rows", "b", 1)).sequence == 2
    (one,) = request_ids(cancelled.value)
    assert not (await session.resolve(one)).executed


async def test_cancellation_in_the_turn_of_a_sure_refusal_names_no_number_that_another_write_gets(
    fake: FakeGateway,
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse | None:
        sent = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        assert [one.sequence for one in sent] == [1, 2]
        return results(*(rejected(one.sequence, "FORBIDDEN") for one in sent))

    async with Client(fake.endpoints, tuning=Tuning(linger_s=0.01)) as client, client.session() as session:
        intercept(fake.nodes[0], OPERATIONS, refuse)
        refused = session.submit("put", "rows", "a", 1)
        write = asyncio.create_task(session.put("rows", "b", 1))
        refused.add_done_callback(lambda _: write.cancel())
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await write
        assert isinstance(refused.exception(), OperationFailed)
        fake.nodes[0].before = None
        assert [(await session.put("rows", key, 1)).sequence for key in "cd"] == [1, 2]
        assert request_ids(cancelled.value) == ()


async def test_cancelled_put_many_names_no_number_of_a_row_that_was_surely_refused(fake: FakeGateway) -> None:
    held = asyncio.Event()

    async def refuse_one(request: web.Request) -> web.StreamResponse | None:
        (one,) = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        if one.key == "a":
            return results(rejected(one.sequence, "PAYLOAD_TOO_LARGE"))
        if one.key == "b":
            held.set()
            await asyncio.Event().wait()
        return None

    tuning = Tuning(batch_operations_max=1, in_flight_max=2, pipeline_min=1)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        await client.table("rows")
        intercept(fake.nodes[0], OPERATIONS, refuse_one)
        many = asyncio.create_task(session.put_many("rows", [("b", 1), ("a", 1)]))
        await held.wait()
        while session.outstanding > 1:
            await asyncio.sleep(0)
        other = await session.put("rows", "c", 1)
        many.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await many
        assert [one.sequence for one in request_ids(cancelled.value)] == [1]
        assert other.sequence == 2, "the number of the refused row is given out again"
        await session.close(drain=False)


async def test_write_told_unknown_at_its_deadline_can_be_resolved_after_its_answer_came(
    fake: FakeGateway, session: Session
) -> None:
    fake.nodes[0].freeze()
    patient = session.submit("put", "rows", "a", 1)
    with pytest.raises(OutcomeUnknown) as unknown:
        await session.increment("rows", "n", timeout_s=0.25)
    fake.nodes[0].thaw()
    await patient
    await session.put("rows", "b", 1)  # acknowledges what was received
    assert (await unknown.value.resolve()).applied


async def test_many_cancelled_writes_leave_room_for_others(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=16) as session:
        for _ in range(5):
            fake.nodes[0].freeze()
            before = fake.nodes[0].requests[f"POST {OPERATIONS}"]
            writes = [asyncio.create_task(session.put("rows", f"k{number}", 1)) for number in range(16)]
            await arrived(fake.nodes[0], count=before + 1)
            for write in writes:
                write.cancel()
            fake.nodes[0].thaw()
            await session.drain()
        before = fake.nodes[0].requests[f"POST {OPERATIONS}"]
        await asyncio.gather(*(session.put("rows", f"k{number}", 2) for number in range(16)))
        assert fake.nodes[0].requests[f"POST {OPERATIONS}"] - before <= 4, "half of the window at least is free"


async def test_number_that_no_write_has_yet_is_not_sealed(session: Session) -> None:
    with fails(Code.BAD_REQUEST):
        await session.resolve(1)
    assert (await session.put("rows", "a", 1)).sequence == 1


def test_errors_of_others_have_no_ids() -> None:
    assert request_ids(ValueError()) == ()


def test_group_of_errors_leads_to_the_ids_of_all() -> None:
    doubts = [OutcomeUnknown(Code.TIMEOUT, "", request_id=RequestId(ClientId(1), SequenceNumber(n))) for n in (1, 2)]
    nested = ExceptionGroup("", [doubts[0], ValueError(), ExceptionGroup("", [doubts[1]])])
    assert [one.sequence for one in request_ids(nested)] == [1, 2]


async def test_write_under_way_in_a_session_that_is_given_up_is_in_doubt(fake: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        await session.put("rows", "warm", 1)
        fake.nodes[0].freeze()
        writing = session.submit("put", "rows", "k", 1)
        await settle()
        await session._sender.abort(OperationFailed(Code.SESSION_EXPIRED, "given up", outcome=Outcome.NOT_APPLIED))
        with fails(Code.SESSION_EXPIRED, Outcome.UNKNOWN):
            await writing
        fake.nodes[0].thaw()
