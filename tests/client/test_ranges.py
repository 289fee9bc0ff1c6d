"""Ranges on stream tables: formed by themselves, split where verdicts differ."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    OncegateError,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    PartialFailure,
    Session,
    Tuning,
)
from oncegate.gateway import wire
from oncegate.gateway.client.batch import BatchPlace, PlaceFate, RangeBatch
from oncegate.gateway.client.routing import AttemptFailed
from oncegate.gateway.client.sender import AnyCall
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, RANGES, arrived, fails, intercept, results, settle

SENT = f"POST {RANGES}"

QUICK = Tuning(attempt_timeout_s=0.15, backoff_first_s=0.001, backoff_cap_s=0.01)


async def test_put_many_on_a_stream_table_is_one_range(fake: FakeGateway, session: Session) -> None:
    result = await session.put_many("events", [(f"k{n}", {"n": n}) for n in range(300)])
    assert (result.first, result.last, result.commit, result.replayed) == (1, 300, 1, False)
    assert len(result.parts) == 1
    assert session.highest_commit == 300
    assert fake.nodes[0].requests[SENT] == 1
    assert fake.nodes[0].requests["GET /v1/tables/events"] == 1
    assert [write.key for write in fake.executed] == [f"k{n}" for n in range(300)]


async def test_put_many_on_a_resident_table_travels_as_operations(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=64) as session:
        result = await session.put_many("rows", {f"k{n}": n for n in range(200)})
        assert (result.first, result.last) == (1, 200)
        assert session.outstanding == 0
    assert fake.nodes[0].requests[SENT] == 0
    assert len(fake.executed) == 200


async def test_put_many_longer_than_a_range_gives_one_result(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=128) as session:
        result = await session.put_many("events", ((f"k{n}", n) for n in range(1000)))
        assert (result.first, result.last) == (1, 1000)
        assert sum(part.last - part.first + 1 for part in result.parts) == 1000
    assert len(fake.executed) == 1000


@pytest.mark.parametrize(("window", "ranges"), [(4096, 1), (1024, 4)])
async def test_put_many_travels_in_ranges_as_long_as_the_window_allows(
    fake: FakeGateway, window: int, ranges: int
) -> None:
    async with Client(fake.endpoints) as client, client.session(window=window) as session:
        result = await session.put_many("events", ((f"k{n}", n) for n in range(4096)))
        assert (result.first, result.last) == (1, 4096)
    assert fake.nodes[0].requests[SENT] == ranges


async def test_put_many_on_an_unknown_table_is_refused_before_anything_is_sent(session: Session) -> None:
    with fails(Code.NOT_FOUND):
        await session.put_many("nowhere", {"k": 1})
    with pytest.raises(OperationFailed):
        await session.put_many("events", [])
    assert session.outstanding == 0


async def test_puts_that_wait_together_become_a_range(fake: FakeGateway, client: Client, session: Session) -> None:
    await client.table("events")
    results = await asyncio.gather(*(session.put("events", f"k{n}", n) for n in range(100)))
    assert [result.commit for result in results] == list(range(1, 101))
    assert [result.sequence for result in results] == list(range(1, 101))
    assert fake.nodes[0].requests[SENT] == 1
    assert fake.nodes[0].requests[f"POST {OPERATIONS}"] == 0


async def test_few_puts_on_a_stream_table_stay_operations(fake: FakeGateway, client: Client, session: Session) -> None:
    await client.table("events")
    await asyncio.gather(*(session.put("events", f"k{n}", n) for n in range(7)))
    assert fake.nodes[0].requests[SENT] == 0
    assert len(fake.executed) == 7


async def test_kind_of_a_table_is_asked_once_in_passing(fake: FakeGateway, client: Client, session: Session) -> None:
    while "events" not in client._connection.kinds.known:
        await session.put("events", "k", 1)
    await asyncio.gather(*(session.put("events", f"k{n}", n) for n in range(50)))
    assert fake.nodes[0].requests["GET /v1/tables/events"] == 1
    assert fake.nodes[0].requests[SENT] == 1


async def test_ranges_and_singles_keep_order_and_numbers(fake: FakeGateway, client: Client, session: Session) -> None:
    await client.table("events")
    await client.table("rows")
    writes = [session.submit("put", "rows", "a", 0)]
    writes += [session.submit("put", "events", f"k{n}", n) for n in range(20)]
    writes += [session.submit("put", "events", "k3", "new"), session.submit("delete", "events", "k4")]
    writes += [session.submit("put", "rows", "a", 1)]
    results = await asyncio.gather(*writes)
    assert [result.sequence for result in results] == list(range(1, 25))
    assert [write.sequence for write in fake.executed] == list(range(1, 25))
    assert await fake.value("events", "k3") == "new"
    with pytest.raises(OncegateError):
        await fake.value("events", "k4")


async def test_lost_answer_of_a_range_is_replayed(fake: FakeGateway, session: Session) -> None:
    fake.nodes[0].lose_answers(1)
    result = await session.put_many("events", {f"k{n}": n for n in range(50)})
    assert result.replayed
    assert result.commit == 1
    assert len(fake.executed) == 50


def applied(first: int, last: int, commit: int, *, replayed: bool = False) -> dict[str, Any]:
    """A part that a node has applied."""
    return {"first": first, "last": last, "status": "applied", "commit": commit, "replayed": replayed}


def refused(first: int, last: int, code: str, outcome: str = "not_applied", *, later: bool = False) -> dict[str, Any]:
    """A part that a node refuses, for now or for good."""
    return {"first": first, "last": last, "status": "rejected", "code": code, "outcome": outcome, "retryable": later}


def answer_ranges(fake: FakeGateway, *answers: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Answer the first ranges with these parts; return where first number and length of each range are noted."""
    sent: list[tuple[int, int]] = []

    async def answer(request: web.Request) -> web.StreamResponse | None:
        body = msgspec.msgpack.decode(await request.read(), type=wire.RangeBody)
        sent.append((int(request.headers[wire.H_FIRST_SEQUENCE]), len(body.keys)))
        return results(*answers[len(sent) - 1]) if len(sent) <= len(answers) else None

    intercept(fake.nodes[0], RANGES, answer)
    return sent


async def test_parts_rejected_for_now_travel_again_and_results_fall_into_place(fake: FakeGateway) -> None:
    parts = [
        applied(1, 10, 900),
        refused(11, 20, "OVERLOADED", later=True),
        applied(21, 25, 920, replayed=True),
        refused(26, 30, "OVERLOADED", later=True),
    ]
    sent = answer_ranges(fake, parts)
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:
        await client.table("events")
        written = await asyncio.gather(*(session.put("events", f"k{n}", n) for n in range(1, 31)))
        assert [first for first, _ in sent] == [1, 11, 26]
        assert [result.sequence for result in written] == list(range(1, 31))
        assert [result.commit for result in written[:10]] == list(range(900, 910))
        assert [result.replayed for result in written[20:25]] == [True] * 5
        assert session.outstanding == 0
    assert [write.key for write in fake.executed] == [f"k{n}" for n in (*range(11, 21), *range(26, 31))]


async def test_rows_rejected_for_good_are_a_partial_failure(fake: FakeGateway, session: Session) -> None:
    answer_ranges(fake, [applied(1, 4, 1), refused(5, 6, "PAYLOAD_MISMATCH")])
    with pytest.raises(PartialFailure) as partial:
        await session.put_many("events", {f"k{n}": n for n in range(6)})
    failure = partial.value
    assert (failure.applied, failure.failed, failure.code) == (4, 2, Code.PAYLOAD_MISMATCH)
    assert failure.outcome is Outcome.NOT_APPLIED
    assert failure.request_id.sequence == 5


async def test_doubt_about_a_range_stays_with_each_part_that_travels_again(fake: FakeGateway) -> None:
    doubt, never = {"code": "TIMEOUT", "outcome": "unknown", "later": True}, {"code": "FORBIDDEN"}
    answers = [
        [refused(1, 2, **doubt), applied(3, 4, 1), refused(5, 6, **doubt)],
        [refused(1, 2, **never)],
        [refused(5, 6, **never)],
    ]
    sent = answer_ranges(fake, *answers)
    tuning = msgspec.structs.replace(QUICK, range_min=6)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        await client.table("events")  # from here on, puts on it make ranges
        rows = [session.submit("put", "events", f"k{n}", n) for n in range(6)]
        told = await asyncio.gather(*rows, return_exceptions=True)
    assert sent == [(1, 6), (1, 2), (5, 2)]
    outcomes = [one.outcome if isinstance(one, OncegateError) else "applied" for one in told]
    assert outcomes == [*["unknown"] * 2, *["applied"] * 2, *["unknown"] * 2]


async def test_rows_in_doubt_make_a_partial_failure_an_outcome_unknown(fake: FakeGateway, session: Session) -> None:
    answer_ranges(fake, [applied(1, 4, 1), refused(5, 6, "INTERNAL", "unknown")])
    with pytest.raises(OutcomeUnknown) as doubt:
        await session.put_many("events", {f"k{n}": n for n in range(6)})
    assert isinstance(doubt.value, PartialFailure)
    assert (doubt.value.applied, doubt.value.failed) == (4, 2)
    assert not (await doubt.value.resolve()).applied


async def test_parts_that_do_not_cover_the_range_are_malformed(fake: FakeGateway, session: Session) -> None:
    answer_ranges(fake, *[[applied(1, 9, 1)]] * 100)
    with fails(outcome=Outcome.UNKNOWN):
        await session.put_many("events", {f"k{n}": n for n in range(10)})


@pytest.mark.parametrize(
    ("table", "window"), [("events", 512), ("rows", 16)], ids=["one range", "operations, some of them sent"]
)
async def test_put_many_whose_deadline_passes_says_unknown_and_takes_no_place(
    fake: FakeGateway, table: str, window: int
) -> None:
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session(window=window) as session:
        await client.table(table)
        fake.nodes[0].freeze()
        with fails(outcome=Outcome.UNKNOWN):
            await session.put_many(table, {f"k{n}": n for n in range(100)}, timeout_s=0.5)
        fake.nodes[0].thaw()
        await session.drain()
        assert session.outstanding == 0
        assert (await session.put("rows", "a", 1)).applied


async def test_put_many_in_an_ended_session_is_not_applied(fake: FakeGateway, client: Client, session: Session) -> None:
    await client.table("events")
    fake.expire(session.client_id)
    with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
        await session.put_many("events", {f"k{n}": n for n in range(2000)})
    assert session.outstanding == 0


async def test_cancelled_put_many_leaves_nothing_behind(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=8) as session:
        await client.table("rows")
        fake.nodes[0].freeze()
        many = asyncio.create_task(session.put_many("rows", {f"k{n}": n for n in range(100)}))
        await arrived(fake.nodes[0])
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        fake.nodes[0].thaw()
        await session.drain()
        assert session.outstanding == 0
    assert len(fake.executed) <= 8


async def test_table_that_was_declared_again_as_another_kind_is_written_as_what_it_is(
    fake: FakeGateway, session: Session
) -> None:
    """Another client drops it: this one learns it from the refusal, and no restart is needed."""
    await session.put_many("events", [("a", 1), ("b", 2)])
    async with Client(fake.endpoints) as other:
        await other.drop_table("events", force=True)
        await other.declare_table("events")
    assert (await session.put_many("events", [("a", 3), ("b", 4)])).first
    assert await fake.value("events", "b") == 4


async def test_writes_that_met_another_kind_fail_once(fake: FakeGateway, session: Session) -> None:
    await session.put_many("events", [("a", 1), ("b", 2)])
    async with Client(fake.endpoints) as other:
        await other.drop_table("events", force=True)
        await other.declare_table("events")
    made = [session.submit("put", "events", f"k{n}", n) for n in range(8)]
    await asyncio.gather(*made, return_exceptions=True)
    made = [session.submit("put", "events", f"k{n}", n) for n in range(8)]
    assert all(one.applied for one in await asyncio.gather(*made))


async def test_parts_of_parts_travel_one_after_another_and_none_is_lost(fake: FakeGateway) -> None:
    answers = [
        [refused(1, 10, "OVERLOADED", later=True), applied(11, 20, 900), refused(21, 30, "OVERLOADED", later=True)],
        [refused(1, 3, "OVERLOADED", later=True), applied(4, 6, 910), refused(7, 10, "OVERLOADED", later=True)],
    ]
    sent = answer_ranges(fake, *answers)
    async with Client(fake.endpoints, tuning=QUICK) as client, client.session() as session:
        await client.table("events")
        async with asyncio.timeout(20):
            written = await asyncio.gather(*(session.put("events", f"k{n}", n) for n in range(1, 31)))
        assert sent == [(1, 30), (1, 10), (1, 3), (7, 4), (21, 10)]
        assert [result.sequence for result in written] == list(range(1, 31))
        assert session.outstanding == 0
    assert [write.key for write in fake.executed] == [f"k{n}" for n in (1, 2, 3, 7, 8, 9, 10, *range(21, 31))]


async def test_doubt_about_one_part_outlives_a_sure_refusal_of_a_part_behind_it(fake: FakeGateway) -> None:
    doubt, sure = {"code": "TIMEOUT", "outcome": "unknown", "later": True}, {"code": "OVERLOADED", "later": True}
    answers = [
        [refused(1, 2, **doubt), applied(3, 4, 1), refused(5, 6, **sure)],
        [refused(1, 2, "FORBIDDEN")],
    ]
    sent = answer_ranges(fake, *answers)
    tuning = msgspec.structs.replace(QUICK, range_min=6)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        await client.table("events")
        rows = [session.submit("put", "events", f"k{n}", n) for n in range(6)]
        told = await asyncio.gather(*rows, return_exceptions=True)
    assert sent == [(1, 6), (1, 2), (5, 2)]
    outcomes = [one.outcome if isinstance(one, OncegateError) else "applied" for one in told]
    assert outcomes == [*["unknown"] * 2, *["applied"] * 4]


async def test_short_deadline_of_one_row_of_a_range_leaves_the_others_alone(
    fake: FakeGateway, client: Client, session: Session
) -> None:
    await client.table("events")
    fake.nodes[0].freeze()
    hasty = session.submit("put", "events", "hasty", 0, timeout_s=0.25)
    patient = [session.submit("put", "events", f"k{n}", n) for n in range(20)]
    with pytest.raises(OutcomeUnknown):
        await hasty
    assert not any(write.done() for write in patient)
    fake.nodes[0].thaw()
    assert all(result.applied for result in await asyncio.gather(*patient))


class HeldBack:
    """Stands where the courier stands: the requests of a session, and when each is answered."""

    def __init__(self) -> None:
        self.calls: list[tuple[AnyCall, asyncio.Future[None]]] = []

    async def exchange(self, call: AnyCall) -> None:
        call.at_once = True
        self.calls.append((call, asyncio.get_running_loop().create_future()))
        await self.calls[-1][1]

    def answer(self, at: int, *verdicts: Any) -> None:
        """Answer a request, as a connection does: before the task that waits for it goes on."""
        call, ended = self.calls[at]
        with contextlib.suppress(AttemptFailed):  # something is to be sent again: it is still under way
            call.accept(200, {}, msgspec.msgpack.encode({"results": verdicts, "memory_ms": 60_000}))
            ended.set_result(None)


async def test_write_on_a_row_whose_part_has_yet_to_travel_does_not_pass_it(fake: FakeGateway) -> None:
    """Two answers come in one turn; of the range one part has a verdict, and another one travels next."""
    held, tuning = HeldBack(), Tuning(in_flight_max=2, pipeline_min=1)
    async with Client(fake.endpoints, tuning=tuning) as client, client.session() as session:
        await client.table("events")
        await client.table("rows")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session._sender, "_courier", held)
            writes = [session.submit("put", "events", f"k{n}", n) for n in range(1, 31)]
            await settle()
            writes.append(session.submit("put", "rows", "x", 0))
            await settle()
            writes.append(session.submit("put", "events", "k25", "new"))
            await settle()
            later = [refused(first, first + 9, "OVERLOADED", later=True) for first in (1, 21)]
            held.answer(0, later[0], applied(11, 20, 900), later[1])
            held.answer(1, wire.OperationResult(31, "applied", commit=910, version=910))
            held.answer(0, applied(1, 10, 911))
            await settle()
            travelling = [call.batch.keys() for call, _ in held.calls[2:]]
            at = 2
            while at < len(held.calls):
                batch = held.calls[at][0].batch
                if isinstance(batch, RangeBatch):
                    held.answer(at, applied(batch.first, batch.last, 900 + batch.first))
                else:
                    held.answer(at, wire.OperationResult(32, "applied", commit=932, version=932))
                await settle()
                at += 1
            results = await asyncio.gather(*writes)
    assert travelling == [{"events": {f"k{n}" for n in range(21, 31)}}]
    assert [results[at].commit for at in (24, -1)] == [925, 932]


@pytest.mark.parametrize("fate", [PlaceFate.RELEASE, PlaceFate.COMPLETE])
def test_place_of_rows_whose_caller_has_gone_in_doubt_is_neither_given_out_again_nor_acknowledged(
    fate: PlaceFate,
) -> None:
    for waits, wanted in ((True, fate), (False, PlaceFate.ABANDON)):
        place = BatchPlace(1, 3)
        place.note(1, fate)
        place.note(1, fate, waits=waits)
        assert place.fate() is None, "a row of it waits"
        place.note(1, fate)
        assert place.fate() is wanted
