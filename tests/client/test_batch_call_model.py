"""A batch as a call (``client.batch_call``), through answers, attempts and deadlines, against one table of its writes.

The sender is the test's: it notes what the call tells it. What is left to send, what is in doubt, what each caller was
told and what became of each number follows from the answers alone.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from oncegate import Code, DeadlineExceeded, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway.client.batch import GONE, TOLD, BatchPlace, OperationsBatch, Pending, RangeBatch
from oncegate.gateway.client.batch_call import OperationsCall, RangeCall
from oncegate.gateway.client.routing import AttemptFailed
from oncegate.gateway.client.verdicts import JUDGED, SESSION_OVER, Numbers
from oncegate.gateway.sweep import NEVER
from oncegate.gateway.wire import (
    Operation,
    OperationResult,
    OperationsRequest,
    OperationsResponse,
    RangeResponse,
    RangeResult,
)
from oncegate.rifl.ids import ClientId, format_client_id

CLIENT = ClientId(7)
FOR_NOW = (Code.WINDOW_FULL, Code.OVERLOADED, Code.QUOTA, Code.NOT_READY)
FOR_GOOD = (Code.FORBIDDEN, Code.SESSION_EXPIRED, Code.FENCED, Code.STALE)


class Sender:
    """Notes what a call tells its sender."""

    def __init__(self, *, keeps: bool = False, in_order: bool = False, renews: bool = False) -> None:
        self.client_id, self.client_id_text, self.epoch, self.first_incomplete = CLIENT, format_client_id(CLIENT), 3, 1
        self.headers = {"Authorization": "x"}
        self.keeps, self.renews, self.resolver = keeps, renews, None
        self.in_order = object() if in_order else None
        self.highest_commit = 0
        self.lease = self.tracker = self.kinds = self
        self.known = {"e": "stream"}
        self.told: list[Any] = []
        self.unsent: list[int] = []
        self.numbers: list[tuple[Numbers, int]] = []

    def extend(self, sent_at: float, memory_ms: int) -> None:
        self.told.append(("lease", sent_at, memory_ms))

    def make_room(self, *, told_full: bool) -> None:
        self.told.append(("full", told_full))

    def lose(self, failure: OperationFailed) -> None:
        self.told.append(("lost", failure.code))

    def again(self, pendings: list[Pending]) -> int:
        self.unsent += [one.operation.sequence for one in pendings]
        return len(pendings)

    def account(self, numbers: Numbers, settled: int) -> None:
        self.numbers.append((numbers, settled))

    def delayed(self, call: Any) -> None:
        self.told.append(("delayed", call))


class Writes:
    """A call with some writes, and what is known of each."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        sender: Any = Sender(keeps=seed % 2 == 0, in_order=seed % 3 == 0, renews=seed % 5 < 2)
        self.sender: Sender = sender
        self.loop = asyncio.get_running_loop()
        self.left = {number: dice.choice((4.0, 6.0, 8.0, 10.0)) for number in range(4, 4 + dice.randint(1, 5))}
        """Deadlines of what is to be sent."""
        self.callers: dict[int, asyncio.Future[Any]] = {number: self.loop.create_future() for number in self.left}
        self.told: dict[int, Any] = {}
        """Those whose deadline has passed, each with the promise that took the place of its caller's."""
        self.pendings = {
            number: Pending(Operation(number, "put", "t", f"k{number}", value=number), None, self.callers[number], due)
            for number, due in self.left.items()
        }
        self.call = OperationsCall(sender, OperationsBatch([*self.pendings.values()], [*self.left]))
        self.ambiguous = False
        self.judged: Code | None = None
        self.commit, self.now = 0, 1.0
        self.over = False
        """Its last caller was told: nothing of it is sent any more."""
        assert (self.call.kept, self.call.resent, self.call.settled, self.call.later) == (False, False, False, [])

    def check(self) -> None:
        call = self.call
        assert call.ambiguous == self.ambiguous
        assert call.judged == self.judged
        assert call.doubtful == (self.ambiguous or call.under_way or (self.sender.keeps and self.judged is None))
        assert call.settled == (not self.left)
        assert call.left() == ([call.batch] if self.left else [])
        assert self.sender.highest_commit == self.commit
        if self.left:
            assert [*call.batch.sequences] == [one.operation.sequence for one in call.batch.pendings] == [*self.left]

    def sends(self) -> None:
        """A new attempt: what the one before was told of it does not count."""
        self.now += self.dice.choice((0.5, 1.0))
        self.call.sent_at, self.judged = self.now, None
        self.call.encode()
        self.sent()

    def sent(self) -> None:
        body = msgspec.msgpack.decode(self.call.body or b"", type=OperationsRequest)
        assert [one.sequence for one in body.operations] == [*self.left]
        assert (body.client_id, body.epoch, body.first_incomplete) == (format_client_id(CLIENT), 3, 1)
        assert body.in_order == (self.sender.in_order is not None)

    def answers(self) -> None:
        dice, told, before, verdicts = self.dice, self.sender.told, [*self.left], list[OperationResult]()
        expected: list[Any] = [("lease", self.now, 55)]
        again, over, in_doubt = None, None, False
        goes_on: list[int] = []
        """Refused for certain by a session that is over: they go on in the next one."""
        for number in before:
            what = dice.random()
            if what < 0.15:
                commit = dice.randint(1, 99)
                verdicts.append(OperationResult(number, "applied", commit, 1))
                self.commit = max(self.commit, commit)
            elif what < 0.25:
                code = dice.choice(FOR_GOOD)
                over = code if code in SESSION_OVER else over
                if code is Code.SESSION_EXPIRED and self.sender.renews and not self.ambiguous:
                    goes_on += [] if self.pendings[number].promise.done() else [number]
                verdicts.append(OperationResult(number, "rejected", code=code, outcome="not_applied"))
            else:
                again, outcome = dice.choice(FOR_NOW), "unknown" if dice.random() < 0.05 else "not_applied"
                in_doubt |= outcome == "unknown"
                verdicts.append(OperationResult(number, "rejected", code=again, outcome=outcome, retryable=True))
        told.clear()
        self.sender.numbers.clear()
        self.sender.unsent.clear()
        payload = msgspec.msgpack.encode(OperationsResponse(verdicts, 55))
        if again is None:
            self.call.accept(200, {}, payload)
        else:
            with pytest.raises(AttemptFailed) as failed:
                self.call.accept(200, {}, payload)
            assert (failed.value.code, failed.value.ambiguous) == (again, in_doubt)
            self.ambiguous |= in_doubt
            self.judged = again if again in JUDGED else None
        expected += [("lost", over)] * (over is not None) + [("full", True)] * (again is Code.WINDOW_FULL)
        assert told == expected
        self.left = {one.sequence: self.left[one.sequence] for one in verdicts if one.retryable is True}
        ((_, settled),) = self.sender.numbers
        assert self.sender.unsent == goes_on
        assert settled == len(before) - len(self.left) - len(goes_on)
        assert not any(self.callers[number].done() for number in goes_on)
        for number in {*before} - {*self.left, *goes_on}:
            assert self.callers[number].done() or number in self.told
        if self.left:
            assert self.call.deadline == max(self.left.values())
            self.sent()

    def expires(self) -> None:
        """Deadlines pass: surely not applied, and sent no more, or in doubt, and sent on."""
        surely_not = not (self.ambiguous or self.call.under_way or (self.sender.keeps and self.judged is None))
        due = [number for number, deadline in self.left.items() if deadline <= self.now]
        open_ = {number: at for number, at in self.left.items() if not self.pendings[number].promise.done()}
        following = [at for at in (self.left if surely_not else open_).values() if at > self.now]
        waited = {number for number in due if self.pendings[number].waits}
        untold = [number for number in due if number in open_]
        self.sender.numbers.clear()
        assert self.call.expire(self.now) == min(following, default=NEVER)
        for number in untold:
            failure = self.callers[number].exception()
            assert isinstance(failure, DeadlineExceeded if surely_not else OutcomeUnknown)
            assert failure.code is ((surely_not and self.judged) or Code.TIMEOUT)
            assert failure.request_id is not None
            assert failure.request_id.sequence == number
            self.told[number] = TOLD if surely_not else GONE
            assert self.pendings[number].promise is self.told[number]
        if surely_not and due and len(due) < len(self.left):
            ((numbers, settled),) = self.sender.numbers
            assert settled == len(due)
            assert numbers.released == [number for number in due if number in waited]
            assert numbers.abandoned == [number for number in due if number not in waited]
            self.left = {number: at for number, at in self.left.items() if number not in due}
            self.sent()
        else:
            assert not self.sender.numbers
        self.over = all(at <= self.now for at in self.left.values()) and bool(self.left)

    def step(self) -> None:
        match self.dice.choice(("sends", "answers", "answers", "time", "time", "lost", "gone", "under way")):
            case "sends":
                self.sends()
            case "answers":
                self.sends()
                self.answers()
            case "time":
                self.now += self.dice.choice((0.5, 1.0, 1.5))
                self.expires()
            case "lost" if self.left:
                self.call.ambiguous = self.ambiguous = self.dice.random() < 0.2 or self.ambiguous
            case "gone":
                self.callers[self.dice.choice([*self.callers])].cancel()
            case _:
                self.call.under_way = not self.call.under_way


@pytest.mark.parametrize("seed", range(120))
async def test_what_is_left_of_a_batch_and_what_is_told_of_it_follows_from_its_answers_and_deadlines(seed: int) -> None:
    writes = Writes(seed)
    rows = writes.call.rows()
    assert rows == {"t": {f"k{number}" for number in writes.left}}
    for _ in range(12):
        writes.step()
        if writes.over:
            break
        writes.check()
        assert writes.call.rows() is rows, "other writes on a row wait until what has touched it has ended"
        if not writes.left:
            break
    writes.call.delayed()
    assert writes.sender.told[-1] == ("delayed", writes.call)
    if not writes.left:
        writes.sender.numbers.clear()
        assert [writes.call.expire(at) for at in (5.0, 7.0, 9.0, 11.0)] == [NEVER] * 4, "nothing waits any more"
        assert not writes.sender.numbers, "a place is given back once"
    for caller in writes.callers.values():
        if caller.done() and not caller.cancelled() and caller.exception() is None:
            assert caller.result().applied


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("ambiguous", [False, True])
def test_rows_together_are_told_once_at_their_deadline_whether_they_are_in_doubt(keeps: bool, ambiguous: bool) -> None:
    """Also those of parts that are to travel later; and what is told so is known to need no receiver."""
    ends: list[tuple[int, OperationFailed]] = []

    class Together:
        def done(self) -> bool:
            return False

        def fail(self, count: int, failure: OperationFailed) -> None:
            ends.append((count, failure))

    sender: Any = Sender(keeps=keeps)
    keys, texts, rows = [f"k{at}" for at in range(5)], [f"{at}" for at in range(5)], Together()
    whole: Any = {"place": BatchPlace(10, 5), "table": "e", "deadline": 9.0, "rows": rows}
    call = RangeCall(sender, RangeBatch(first=10, keys_of_rows=keys, texts=texts, **whole))
    call.sent_at = 2.0
    parts = [
        RangeResult(first=10, last=10, status="rejected", code="NOT_READY", outcome="not_applied", retryable=True),
        RangeResult(first=11, last=12, status="rejected", code="BAD_REQUEST", outcome="not_applied"),
        RangeResult(first=13, last=14, status="rejected", code="NOT_READY", outcome="not_applied", retryable=True),
    ]
    with pytest.raises(AttemptFailed):
        call.accept(200, {}, msgspec.msgpack.encode(RangeResponse(parts, 55)))
    assert ("lease", 2.0, 55) in sender.told
    assert sender.known == {}, "it may be another table by now"
    assert [(one.first, one.last) for one in call.left()] == [(10, 10), (13, 14)]
    assert [one.first for one in call.later] == [13]
    assert (call.batch.first, call.headers["Oncegate-First-Sequence"]) == (10, "10")
    ends.clear()
    call.ambiguous = ambiguous
    assert call.expire(8.0) == 9.0
    assert not ends
    assert call.expire(9.0) == NEVER
    doubtful = ambiguous or keeps
    assert [(count, failure.outcome) for count, failure in ends] == [
        (count, Outcome.UNKNOWN if doubtful else Outcome.NOT_APPLIED) for count in (1, 2)
    ]
    assert [failure.request_id and failure.request_id.sequence for _, failure in ends] == [10, 13]
    assert all(one.rows is (GONE if doubtful else TOLD) for one in call.left())
    assert call.expire(10.0) == NEVER
    assert len(ends) == 2, "once"
