"""A doubt gets its answer, whatever is written after it: answers that come late are kept, and others are asked for."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    NeverKnown,
    NotKnownYet,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    RequestId,
    Resolution,
    Session,
    Tuning,
    request_ids,
    sync,
)
from oncegate.gateway.client import learning
from oncegate.gateway.client.doubts import Doubts, Question
from oncegate.gateway.client.fates import SEALED, Fates
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import ClientId, Epoch, SequenceNumber
from oncegate.rifl.request_tracker import RequestTracker
from oncegate.testing import FakeCluster, FakeGateway
from tests.client.answers import OPERATIONS, RANGES, arrived, cut, fails, intercept, keep_back, lose_answers


async def doubt(session: Session, key: str = "n") -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown) as unknown:
        await session.increment("rows", key, 3, timeout_s=0.2)
    return unknown.value


async def write(session: Session, writes: int) -> None:
    """Make so many writes, a window's worth at a time."""
    for at in range(0, writes, 500):
        await asyncio.gather(*(session.put("rows", f"k{n % 97}", n) for n in range(at, min(at + 500, writes))))


async def known(session: Session) -> None:
    """Wait until the session is in doubt about nothing."""
    async with asyncio.timeout(60):
        while len(session._sender.doubts):
            await asyncio.sleep(0.005)


def id_of(client_id: int, number: int) -> RequestId:
    return RequestId(ClientId(client_id), SequenceNumber(number))


async def test_result_that_comes_in_the_turn_of_a_cancellation_is_kept(fake: FakeGateway) -> None:
    async with Client(fake.endpoints, tuning=Tuning(linger_s=0.01)) as client, client.session() as session:
        first = session.submit("put", "rows", "a", 1)
        write = asyncio.create_task(session.put("rows", "b", 1))
        first.add_done_callback(lambda _: write.cancel())
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await write
        (one,) = request_ids(cancelled.value)
        for number in range(3):
            await session.put("rows", "c", number)
        assert (await session.resolve(one)).applied


async def test_rows_that_were_applied_before_their_call_was_cancelled_have_fates(
    fake: FakeGateway, client: Client
) -> None:
    served = count()

    async def hold_the_second(_: web.Request) -> None:
        if next(served):
            await asyncio.Event().wait()

    async with client.session(window=8) as session:
        await session.put("events", "first", 0)
        intercept(fake.nodes[0], RANGES, hold_the_second)
        many = asyncio.create_task(session.put_many("events", [(f"k{n}", n) for n in range(16)], timeout_s=0.3))
        await arrived(fake.nodes[0], RANGES, count=2)
        while not session._sender.tracker.first_incomplete > 9:
            await asyncio.sleep(0.001)
        many.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await many
        fake.nodes[0].before = None
        await write(session, 30)
        states = [(await session.resolve(one)).state for one in request_ids(cancelled.value)]
        assert states == ["applied"] * 8 + ["sealed"] * 8


@pytest.mark.parametrize("writes", [700, 5_000])
@pytest.mark.parametrize("applied", [True, False])
async def test_doubt_gets_its_answer_after_any_number_of_further_writes(
    fake: FakeGateway, client: Client, writes: int, applied: bool
) -> None:
    async with client.session() as session:
        if applied:
            fake.nodes[0].after = lose_answers
        else:
            fake.nodes[0].before = keep_back
        unknown = await doubt(session)
        fake.nodes[0].before = fake.nodes[0].after = None
        await write(session, writes)
        fate = await unknown.resolve()
        assert (fate.executed, fate.applied) == (applied, applied)
        assert await unknown.resolve() == fate, "whoever asks again gets the same answer"
        assert fake.machine.trackers[session.client_id].first_incomplete > writes - 512, "the window went on"
    assert sum(one.key == "n" for one in fake.executed) == applied


async def test_answer_that_comes_after_a_cancellation_is_kept_without_a_question(
    fake: FakeGateway, session: Session
) -> None:
    fake.nodes[0].freeze()
    writes = [asyncio.create_task(session.increment("rows", f"n{n}")) for n in range(94)]
    await arrived(fake.nodes[0])
    cut_off = []
    for one in writes:
        one.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await one
        cut_off += request_ids(cancelled.value)
    fake.nodes[0].thaw()
    await session.drain()
    await write(session, 1_500)
    asked = dict(fake.nodes[0].requests)
    resolved = [await session.resolve(one) for one in cut_off]
    assert cut_off
    assert [fate.result and fate.result.value for fate in resolved] == [1] * len(cut_off)
    assert {fate.result and fate.result.request_id for fate in resolved} == set(cut_off)
    assert dict(fake.nodes[0].requests) == asked, "nothing was asked for: the answers had come"


async def test_calls_cut_off_by_a_time_out_get_their_fates_whatever_others_write(
    fake: FakeGateway, client: Client
) -> None:
    served = count()

    async def now_and_then(request: web.Request) -> None:
        await asyncio.sleep(0.03 if next(served) % 3 else 0.0)

    intercept(fake.nodes[0], OPERATIONS, now_and_then)
    cut_off: list[RequestId] = []
    done = 0
    async with client.session(window=32) as session:

        async def other() -> None:
            for n in range(400):
                await session.put("rows", f"o{n % 5}", n)

        others = [asyncio.create_task(other()) for _ in range(4)]
        for n in range(80):
            try:
                async with asyncio.timeout(0.02):
                    await session.increment("rows", f"n{n % 7}")
                done += 1
            except TimeoutError as late:
                cut_off += request_ids(late)
        fake.nodes[0].before = None
        await asyncio.gather(*others)
        resolved = [await session.resolve(one) for one in cut_off]
        written = {(one.client_id, one.sequence) for one in fake.executed}
        assert [fate.executed for fate in resolved] == [one in written for one in cut_off]
        assert sum(one.key.startswith("n") for one in fake.executed) == done + sum(fate.applied for fate in resolved)
    assert len(cut_off) > 10


async def test_doubts_of_an_outage_end_all_when_it_is_over_and_cost_little_while_it_lasts(
    fake: FakeGateway, client: Client
) -> None:
    """Four freezes with six writers whose deadlines are short, and a window that is soon full of doubts."""
    node = fake.nodes[0]
    doubts: list[OutcomeUnknown] = []
    outcomes: set[Outcome] = set()
    done = 0

    async def writer(number: int) -> None:
        nonlocal done
        for n in range(60):
            try:
                await session.increment("rows", f"w{number}-{n % 3}", timeout_s=0.1)
                done += 1
            except OutcomeUnknown as unknown:
                doubts.append(unknown)
            except OperationFailed as refused:
                outcomes.add(refused.outcome)

    async def freeze() -> None:
        for times in range(4):
            node.after = lose_answers if times % 2 else None
            node.freeze()
            await asyncio.sleep(0.5)
            node.after = None
            node.thaw()
            await asyncio.sleep(0.1)

    async with client.session(window=16) as session:
        await asyncio.gather(freeze(), *map(writer, range(6)))
        resolved = [await one.resolve() for one in doubts]
        assert doubts
        assert outcomes <= {Outcome.NOT_APPLIED}
        written = {(one.client_id, one.sequence) for one in fake.executed}
        assert [fate.executed for fate in resolved] == [one.request_id in written for one in doubts]
        assert len(fake.executed) == done + sum(fate.applied for fate in resolved)


async def test_cluster_that_does_not_answer_is_asked_one_question_at_a_time(
    fake: FakeGateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = [0]

    async def no_answer(request: RequestId, *_: object) -> Resolution:
        under_way.append(under_way[-1] + 1)
        await asyncio.sleep(0.001)
        under_way.append(under_way[-1] - 1)
        raise NotKnownYet(Code.TIMEOUT, "", outcome=Outcome.UNKNOWN)

    monkeypatch.setattr(learning, "PAUSE_CAP_S", 0.002)
    async with client.session(window=64) as session:
        answers = session._sender._settle
        monkeypatch.setattr(session._sender, "_settle", no_answer)
        fake.nodes[0].before = keep_back
        await asyncio.gather(*(doubt(session, f"n{n}") for n in range(60)))
        async with asyncio.timeout(60):
            while len(under_way) < 100:
                await asyncio.sleep(0.01)
        assert max(under_way) <= learning.ASKED_MAX
        assert set(under_way[40:]) == {0, 1}
        monkeypatch.setattr(session._sender, "_settle", answers)
        fake.nodes[0].before = None
        await known(session)
        assert [(await session.resolve(number)).state for number in range(1, 61)] == ["sealed"] * 60


@pytest.mark.parametrize("failures", [1, 5])
async def test_after_an_outage_as_many_questions_are_under_way_as_before(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr(learning, "PAUSE_FIRST_S", 0.001)
    tracker = RequestTracker(window=100)
    doubts = Doubts(ClientId(1), Epoch(1), tracker, Fates())
    doubts.gave_up(tracker.take_singles(100))
    under_way = most = failed = 0

    async def ask(question: Question) -> None:
        nonlocal under_way, most, failed
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if failed < failures:
            failed, most = failed + 1, 0
            raise NotKnownYet(Code.TIMEOUT, "", outcome=Outcome.UNKNOWN)
        doubts.learned(question.request, SEALED)

    learner = learning.Learner(doubts, ask, lambda: len(doubts) > 0, lambda: None)
    learner.wake()
    await learner.idle(60)
    assert (len(doubts), most) == (0, learning.ASKED_MAX)


@pytest.mark.parametrize("code", [Code.STALE, Code.SESSION_EXPIRED, Code.FENCED])
@pytest.mark.parametrize("lost", range(1, 5))
async def test_number_that_was_acknowledged_is_lost_alone_and_a_session_that_is_over_with_all_its_doubts(
    monkeypatch: pytest.MonkeyPatch, code: Code, lost: int
) -> None:
    """Whatever number the refusal is of; the doubts of the session that was opened after it are asked about."""
    monkeypatch.setattr(learning, "ASKED_MAX", 1)
    tracker, later = RequestTracker(window=8), RequestTracker(window=8)
    doubts = Doubts(ClientId(1), Epoch(1), tracker, Fates())
    doubts.gave_up(tracker.take_singles(4))
    doubts.go_on(ClientId(2), Epoch(1), later)
    doubts.gave_up(later.take_singles(2))

    async def ask(question: Question) -> None:
        if question.request == (1, lost):
            raise NeverKnown(code, "", outcome=Outcome.UNKNOWN)
        doubts.learned(question.request, SEALED)

    learner = learning.Learner(doubts, ask, lambda: len(doubts) > 0, lambda: None)
    learner.wake()
    await learner.idle(60)
    told = {(client, number) for client in (1, 2) for number in range(1, 9) if doubts.told(id_of(client, number))}
    others = range(1, 5) if code is Code.STALE else range(1, lost)
    assert told == {(1, number) for number in others if number != lost} | {(2, 1), (2, 2)}
    assert not len(doubts)


async def test_doubt_that_comes_as_the_last_question_ends_is_asked_about() -> None:
    """It comes when the task has nothing more to ask, and before anybody has heard of its end."""
    tracker = RequestTracker(window=8)
    doubts = Doubts(ClientId(1), Epoch(1), tracker, Fates())
    further = iter([1, 1, 1])

    async def ask(question: Question) -> None:
        doubts.learned(question.request, SEALED)

    def learned() -> None:
        asyncio.get_running_loop().call_soon(give_up, next(further, 0))

    def give_up(count: int) -> None:
        doubts.gave_up(tracker.take_singles(count))
        learner.wake()

    learner = learning.Learner(doubts, ask, lambda: len(doubts) > 0, learned)
    give_up(1)
    await learner.idle(60)
    assert (len(doubts), len(doubts.fates)) == (0, 1), "all four are known, as one run"
    assert tracker.room_for_singles == 4


async def test_rows_of_a_range_in_doubt_have_each_a_fate(fake: FakeGateway, client: Client) -> None:
    async with client.session(window=64) as session:
        await session.put("events", "first", 0)
        for lost in (fake.nodes[0], None):

            async def lose(request: web.Request, lost: object = lost) -> web.StreamResponse | None:
                answer = await fake.nodes[0].serve(request) if lost else None
                cut(request)
                return answer or web.Response()

            intercept(fake.nodes[0], RANGES, lose)
            with pytest.raises(OutcomeUnknown) as unknown:
                await session.put_many("events", [(f"k{n}", n) for n in range(40)], timeout_s=0.2)
            fake.nodes[0].before = None
            await write(session, 300)
            first = unknown.value.request_id
            assert first is not None
            states = {(await session.resolve(first.sequence + at)).state for at in range(40)}
            assert states == {"applied" if lost else "sealed"}
        await session.put_many("events", [(f"k{n}", n) for n in range(40)])
    assert sum(one.table == "events" for one in fake.executed) == 1 + 80


async def test_late_answer_about_a_range_is_kept_row_by_row(fake: FakeGateway, session: Session) -> None:
    await session.put("events", "first", 0)
    let_go = asyncio.Event()

    async def hold(_: web.Request) -> None:
        await let_go.wait()

    intercept(fake.nodes[0], RANGES, hold)
    many = asyncio.create_task(session.put_many("events", [(f"k{n}", n) for n in range(20)]))
    await arrived(fake.nodes[0], RANGES)
    many.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await many
    let_go.set()
    await session.drain()
    await write(session, 600)
    resolved = [await session.resolve(one) for one in request_ids(cancelled.value)]
    commits = [fate.result.commit for fate in resolved if fate.result]
    assert commits == list(range(commits[0], commits[0] + 20))
    assert {fate.state for fate in resolved} == {"applied"}


async def test_fates_that_nobody_asks_for_hold_further_writes_until_they_are_told_or_forgotten(
    fake: FakeGateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with client.session() as session:
        sender = session._sender
        monkeypatch.setattr(sender.doubts.fates, "_fates_max", 3)
        fake.nodes[0].freeze()
        writes = [asyncio.create_task(session.increment("rows", f"n{n}")) for n in range(3)]
        await arrived(fake.nodes[0])
        for one in writes:
            one.cancel()
        await asyncio.gather(*writes, return_exceptions=True)
        fake.nodes[0].thaw()
        async with asyncio.timeout(60):
            while not sender.doubts.fates.is_full:
                await asyncio.sleep(0.005)
        with fails(Code.WINDOW_FULL, Outcome.NOT_APPLIED):
            await session.put("rows", "a", 1, timeout_s=0.1)
        with fails(Code.WINDOW_FULL, Outcome.NOT_APPLIED):
            session.submit("put", "rows", "a", 1)
        waiting = asyncio.create_task(session.put("rows", "a", 2))
        assert (await session.resolve(1)).applied
        assert (await waiting).applied
        session.forget(2)
        assert len(sender.doubts.fates) == 1
        assert (await session.resolve(3)).applied


async def test_fate_that_is_forgotten_before_it_is_known_is_not_kept(fake: FakeGateway, session: Session) -> None:
    fake.nodes[0].freeze()
    write = asyncio.create_task(session.increment("rows", "n"))
    await arrived(fake.nodes[0])
    write.cancel()
    await asyncio.gather(write, return_exceptions=True)
    session.forget(1)
    fake.nodes[0].thaw()
    await session.drain()
    assert not len(session._sender.doubts.fates)


@pytest.mark.parametrize("late", [True, False])
async def test_rows_that_are_forgotten_before_their_fates_are_known_leave_none(
    fake: FakeGateway, session: Session, late: bool
) -> None:
    """Their answer comes late, or the session has to ask for each."""
    await session.put("events", "first", 0)
    let_go = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse | None:
        await let_go.wait()
        return None if late else fake.nodes[0].problem(OncegateError(Code.NO_LEADER, outcome=Outcome.UNKNOWN))

    intercept(fake.nodes[0], RANGES, hold)
    many = asyncio.create_task(session.put_many("events", [(f"k{n}", n) for n in range(20)], timeout_s=0.3))
    await arrived(fake.nodes[0], RANGES)
    many.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await many
    for one in request_ids(cancelled.value):
        session.forget(one)
    let_go.set()
    await session.drain()
    await known(session)
    assert not len(session._sender.doubts.fates)
    assert sum(one.table == "events" for one in fake.executed) == (21 if late else 1)


async def test_doubt_that_nobody_can_answer_now_is_another_error_than_one_that_nobody_ever_can(
    fake: FakeGateway, client: Client
) -> None:
    async def forbid(request: web.Request) -> web.StreamResponse | None:
        await keep_back(request)
        refusal = OncegateError(Code.FORBIDDEN)
        return fake.nodes[0].problem(refusal) if request.path.endswith("/resolve") else None

    async with client.session() as session:
        fake.nodes[0].before = forbid
        unknown = await doubt(session)
        with fails(Code.FORBIDDEN, Outcome.UNKNOWN, kind=NotKnownYet):
            await unknown.resolve()
        fake.nodes[0].freeze()
        with pytest.raises(NotKnownYet) as later:
            await unknown.resolve(timeout_s=0.1)
        assert later.value.outcome is Outcome.UNKNOWN, "not applied would be said of the question"
        fake.nodes[0].thaw()
        fake.nodes[0].before = None
        assert (await later.value.resolve()).state == "sealed"
        fake.nodes[0].before = forbid
        lost = await doubt(session)
        fake.expire(session.client_id)
        fake.nodes[0].before = None
        with fails(Code.SESSION_EXPIRED, Outcome.UNKNOWN, kind=NeverKnown):
            await lost.resolve()
        with fails(Code.SESSION_EXPIRED, Outcome.UNKNOWN, kind=NeverKnown):
            await client.resolve(lost.request_id or "")
        assert (await unknown.resolve()).state == "sealed", "what was told stays"


async def test_fates_learned_before_a_session_is_opened_anew_are_told_after(fake: FakeGateway, client: Client) -> None:
    async with client.session(renew_lost=True) as session:
        fake.nodes[0].after = lose_answers
        learned = await doubt(session)
        fake.nodes[0].after = None
        await known(session)
        fake.nodes[0].before = keep_back
        lost = asyncio.create_task(doubt(session))
        await lost
        fake.expire(session.client_id)
        fake.nodes[0].before = None
        fake.advance(61)
        before = session.client_id
        assert (await session.put("rows", "a", 1)).client_id == session.client_id != before
        assert (await learned.resolve()).applied
        await known(session)
        await write(session, 600)


async def test_client_knows_what_its_sessions_know(fake: FakeGateway, client: Client, session: Session) -> None:
    fake.nodes[0].after = lose_answers
    unknown = await doubt(session)
    fake.nodes[0].after = None
    await known(session)
    await write(session, 700)
    assert unknown.request_id is not None
    assert (await client.resolve(unknown.request_id)).applied


async def test_doubt_is_learned_before_its_session_is_closed(fake: FakeGateway, client: Client) -> None:
    async with client.session() as session:
        fake.nodes[0].after = lose_answers
        unknown = await doubt(session)
        fake.nodes[0].after = None
    assert (await unknown.resolve()).applied


def test_synchronous_callers_get_their_answers_too(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client, client.session() as session:
        session.put("rows", "a", 1)
        for node in range(len(oncegate_cluster.endpoints)):
            oncegate_cluster.freeze(node)
        with pytest.raises(sync.Doubt) as unknown:
            session.increment("rows", "n", timeout_s=0.2)
        with pytest.raises(sync.NotKnownYet) as later:
            unknown.value.resolve(timeout_s=0.1)
        assert isinstance(later.value, sync.Doubt)
        for node in range(len(oncegate_cluster.endpoints)):
            oncegate_cluster.thaw(node)
        assert later.value.resolve().state in ("applied", "sealed")
        session.forget(1)
