"""Verdicts on a batch against the table of what each means, in every mixture: each promise and each number."""

from __future__ import annotations

import asyncio
import random
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from oncegate import Code, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway.client.batch import OperationsBatch, Pending
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.gateway.client.verdicts import SettledAnswer, settle_operations
from oncegate.gateway.wire import Operation, OperationResult, OperationsResponse, TakenRow, TransactionWrite, Verdict
from oncegate.rifl.errors import REGISTRY
from oncegate.rifl.ids import ClientId

CLIENT = ClientId(7)
KNOWN = (Code.STALE, Code.PAYLOAD_MISMATCH)
OVER = (Code.FENCED, Code.SESSION_EXPIRED)
CODES = (*KNOWN, *OVER, Code.QUOTA, Code.OVERLOADED, Code.FORBIDDEN, Code.BAD_ACK, Code.INTERNAL)


async def resolver(*_: Any) -> Resolution:
    raise NotImplementedError


def _value(dice: random.Random) -> Any:
    """A value as it travels, and how it says bytes."""
    return dice.choice((("djE=", msgspec.UNSET), ("djE=", "base64"), (b"v1", msgspec.UNSET), (b"v1", "base64")))


def _plain(one: Any) -> Any:
    return b"v1" if one.encoding == "base64" else one.value


def _why(dice: random.Random) -> dict[str, Any]:
    """What a rejection says of itself; a node of another build may say less, or what this one does not know."""
    why: dict[str, Any] = {"outcome": dice.choice(("not_applied", "not_applied", "unknown", "applied"))}
    why["code"] = dice.choice(("MOON_PHASE", "INTERNAL")) if dice.random() < 0.1 else dice.choice(CODES).value
    if dice.random() < 0.5:
        why["detail"] = "waning"
    for name in ("outcome", "code"):
        if dice.random() < 0.05:
            del why[name]
    return why


def _code(verdict: Verdict) -> Code:
    return Code(verdict.code) if verdict.code in set(Code) else Code.INTERNAL


def _some(dice: random.Random, verdict: OperationResult) -> OperationResult:
    """A verdict that may leave out what not every write has."""
    if dice.random() < 0.2:
        verdict.value = verdict.encoding = msgspec.UNSET
    if dice.random() < 0.2:
        verdict.version = msgspec.UNSET
    return verdict


def _verdict(dice: random.Random, number: int) -> OperationResult:
    value, encoding = _value(dice)
    match dice.choice(("applied", "applied", "refused", "transaction", "transaction refused", "rejected", "rejected")):
        case "applied":
            one = OperationResult(number, "applied", dice.randint(1, 99), 3, value, encoding=encoding)
            one.replayed = dice.random() < 0.5
            return _some(dice, one)
        case "refused":
            one = OperationResult(number, "refused", dice.randint(1, 99), 3, value, encoding=encoding)
            one.code = "CONDITION_FAILED"
            return _some(dice, one)
        case "transaction refused":
            one = OperationResult(number, "refused", dice.randint(1, 99), 3, value, encoding=encoding)
            one.failed, one.code = dice.choice(("conditions[0]", "writes[1]")), "CONDITION_FAILED"
            return one
        case "transaction":
            commit = dice.randint(1, 90)
            writes = []
            for at in range(dice.randint(1, 9)):
                value, encoding = _value(dice)
                rows = [TakenRow(f"k{row}", 1, *_value(dice)) for row in range(dice.choice((0, 0, 2)))]
                writes.append(TransactionWrite(commit + at, 1, value, encoding, rows or msgspec.UNSET))
            return OperationResult(number, "applied", commit, writes=writes)
        case _:
            return OperationResult(number, "rejected", retryable=dice.random() < 0.4, **_why(dice))


def _outcome(verdict: Verdict, *, ambiguous: bool) -> Outcome:
    """The outcome that the caller is told: what the server says, but for what only the client knows."""
    code = _code(verdict)
    if ambiguous and code not in KNOWN:
        return Outcome.UNKNOWN
    if not ambiguous and code in OVER:
        return Outcome.NOT_APPLIED
    return Outcome(verdict.outcome) if verdict.outcome else REGISTRY[code].outcome


def _detail(verdict: Verdict) -> str:
    detail = verdict.detail or ""
    return f"MOON_PHASE: {detail}" if verdict.code == "MOON_PHASE" else detail


@pytest.mark.parametrize("seed", range(300))
def test_each_verdict_means_for_its_promise_and_its_number_what_the_table_says(seed: int) -> None:
    loop = asyncio.new_event_loop()
    try:
        _play(loop, random.Random(seed))
    finally:
        loop.close()


def _play(loop: asyncio.AbstractEventLoop, dice: random.Random) -> None:
    first = dice.randint(1, 50)
    numbers = sorted(dice.sample(range(first, first + 12), k=dice.choice((1, 2, 6))))
    pendings: list[Pending] = []
    promises: dict[int, asyncio.Future[WriteResult]] = {}
    for number in numbers:
        promise: asyncio.Future[WriteResult] = loop.create_future()
        pending = Pending(Operation(number, "put", "t", "k"), None, promise, 9.0)
        pending.alone = dice.random() < 0.7
        pendings.append(pending)
        promises[number] = promise
        if dice.random() < 0.25:
            promise.cancel()
    gone = {number for number, one in zip(numbers, pendings, strict=True) if one.promise.done()}
    ambiguous, renews, resent = (dice.random() < 0.4 for _ in range(3))
    verdicts = [_verdict(dice, number) for number in numbers]
    sent = deepcopy(verdicts)
    settled = settle_operations(
        OperationsBatch(pendings, numbers),
        OperationsResponse(sent, 55),
        CLIENT,
        resolver,
        ambiguous=ambiguous,
        renews=renews,
        resent=resent,
    )
    places: dict[str, list[int]] = {name: [] for name in ("completed", "abandoned", "released", "unclaimed")}
    late: list[int] = []
    again: list[int] = []
    unsent: list[Pending] = []
    over: list[Code] = []
    commits = [0]
    for number, pending, verdict in zip(numbers, pendings, verdicts, strict=True):
        waited = number not in gone
        if verdict.status != "rejected":
            commit = verdict.writes[-1].commit if verdict.writes else verdict.commit
            commits.append(commit)  # type: ignore[arg-type]
            places["completed" if waited else "unclaimed"].append(number)
            if waited:
                _check_result(promises[number].result(), verdict, number, commit)
            else:
                late.append(number)
                fate = dict(settled.numbers.late)[number]
                assert fate.state == verdict.status
                _check_result(fate.result, verdict, number, commit)
            continue
        code = _code(verdict)
        if verdict.retryable and not (resent and code is Code.QUOTA):
            again.append(number)
            assert pending.promise.done() is not waited, "it waits on"
            continue
        outcome = _outcome(verdict, ambiguous=ambiguous)
        if code in OVER:
            over.append(code)
        if code in KNOWN:
            place = "completed" if waited else "unclaimed"
        elif outcome is Outcome.NOT_APPLIED and code not in OVER:
            place = "released" if waited else "abandoned"
        else:
            place = "abandoned"
        places[place].append(number)
        if code in KNOWN and outcome is Outcome.NOT_APPLIED and not waited:
            late.append(number)
            assert dict(settled.numbers.late)[number] == SEALED
        goes_on = renews and pending.alone and waited and code is Code.SESSION_EXPIRED
        if goes_on and outcome is Outcome.NOT_APPLIED:
            unsent.append(pending)
            assert not pending.promise.done()
        elif waited:
            _check_failure(pending, verdict, code, outcome, released=place == "released")
    _check_settled(settled, places, again, verdicts)
    assert sorted(number for number, _ in settled.numbers.late) == late
    assert settled.highest_commit == max(commits)
    assert settled.unsent == unsent
    assert (settled.session_over is None) == (not over)
    assert settled.session_over is None or settled.session_over.code in over


def _check_settled(
    settled: SettledAnswer, places: dict[str, list[int]], again: list[int], verdicts: list[OperationResult]
) -> None:
    told = {name: sorted(getattr(settled.numbers, name)) for name in places}
    assert told == places
    assert (settled.rest is None) == (settled.again is None) == (not again)
    if settled.rest is not None:
        assert settled.again is not None
        assert list(settled.rest.sequences) == [one.operation.sequence for one in settled.rest.pendings] == again
        sent = [one for one in verdicts if one.sequence in again]
        assert settled.again.ambiguous == any(one.outcome != "not_applied" for one in sent)
        assert settled.again.code == _code(sent[-1])


def _check_result(result: Any, verdict: OperationResult, number: int, commit: Any) -> None:
    assert isinstance(result, WriteResult)
    assert (result.client_id, result.sequence, result.commit, result.memory_ms_left) == (CLIENT, number, commit, 55)
    assert (result.applied, result.replayed) == (verdict.status == "applied", verdict.replayed is True)
    if verdict.writes:
        told = [(one.commit, one.version, one.value, [row.value for row in one.rows or ()]) for one in result.writes]
        assert told == [
            (one.commit, one.version, _plain(one), [_plain(row) for row in one.rows or ()]) for one in verdict.writes
        ]
    else:
        version, value = None if verdict.version is msgspec.UNSET else 3, _plain(verdict)
        assert (result.version, result.value, result.writes) == (version, None if value is msgspec.UNSET else value, ())
    assert result.failed == (verdict.failed or None)
    assert result.code == (verdict.code if isinstance(verdict.code, str) else None)


def _check_failure(pending: Pending, verdict: OperationResult, code: Code, outcome: Outcome, *, released: bool) -> None:
    number = verdict.sequence
    assert isinstance(pending.promise, asyncio.Future)
    failure = pending.promise.exception()
    assert isinstance(failure, OperationFailed)
    assert (failure.code, failure.outcome, failure.detail) == (code, outcome, _detail(verdict))
    assert isinstance(failure, OutcomeUnknown) == (outcome is Outcome.UNKNOWN)
    assert not isinstance(failure, OutcomeUnknown) or failure.resolver is resolver
    assert failure.request_id == (CLIENT, number)
    assert pending.operation.sequence == (0 if released else number), "a number that is given back is no longer its own"


def test_answer_that_is_not_of_the_batch_settles_nothing() -> None:
    loop = asyncio.new_event_loop()
    try:
        for numbers in ([], [3], [3, 5], [4, 3], [3, 4, 5], [3, 3]):
            promises: list[asyncio.Future[WriteResult]] = [loop.create_future(), loop.create_future()]
            pendings = [
                Pending(Operation(number, "put", "t", "k"), None, promise, 9.0)
                for number, promise in zip((3, 4), promises, strict=True)
            ]
            answer = OperationsResponse([OperationResult(number, "applied", 1, 1) for number in numbers], 55)
            with pytest.raises(msgspec.ValidationError):
                settle_operations(OperationsBatch(pendings, [3, 4]), answer, CLIENT, ambiguous=False)
            assert not any(promise.done() for promise in promises)
    finally:
        loop.close()
