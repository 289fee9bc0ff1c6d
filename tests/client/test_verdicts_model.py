"""Verdicts on a batch against the table of what each means, in every mixture: each promise and each number."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from oncegate import Code, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway.client.batch import OperationsBatch, Pending
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.results import Resolution, WriteResult
from oncegate.gateway.client.verdicts import SettledAnswer, settle_operations
from oncegate.gateway.wire import Operation, OperationResult, OperationsResponse, TransactionWrite
from oncegate.rifl.ids import ClientId

CLIENT = ClientId(7)
KNOWN = (Code.STALE, Code.PAYLOAD_MISMATCH)
OVER = (Code.FENCED, Code.SESSION_EXPIRED)
CODES = (*KNOWN, *OVER, Code.QUOTA, Code.OVERLOADED, Code.FORBIDDEN, Code.BAD_ACK, Code.INTERNAL)


async def resolver(*_: Any) -> Resolution:
    raise NotImplementedError


def _verdict(dice: random.Random, number: int) -> OperationResult:
    match dice.choice(("applied", "applied", "refused", "transaction", "rejected", "rejected")):
        case "applied":
            return OperationResult(number, "applied", dice.randint(1, 99), 3, "v", replayed=dice.random() < 0.5)
        case "refused":
            return OperationResult(number, "refused", dice.randint(1, 99), 3, "v", code="CONDITION_FAILED")
        case "transaction":
            commit = dice.randint(1, 90)
            return OperationResult(
                number, "applied", commit, writes=[TransactionWrite(commit + at, 1) for at in range(dice.randint(1, 9))]
            )
        case _:
            return OperationResult(
                number,
                "rejected",
                code=dice.choice(CODES).value,
                outcome=dice.choice(("not_applied", "not_applied", "unknown", "applied")),
                retryable=dice.random() < 0.4,
            )


def _outcome(verdict: OperationResult, *, ambiguous: bool) -> Outcome:
    """The outcome that the caller is told: what the server says, but for what only the client knows."""
    code = Code(verdict.code)  # type: ignore[arg-type]
    if ambiguous and code not in KNOWN:
        return Outcome.UNKNOWN
    if not ambiguous and code in OVER:
        return Outcome.NOT_APPLIED
    return Outcome(str(verdict.outcome))


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
    settled = settle_operations(
        OperationsBatch(pendings, numbers),
        OperationsResponse(verdicts, 55),
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
        code = Code(verdict.code)  # type: ignore[arg-type]
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
            _check_failure(pending, number, code, outcome, released=place == "released")
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
        assert settled.again.code == sent[-1].code


def _check_result(result: Any, verdict: OperationResult, number: int, commit: Any) -> None:
    assert isinstance(result, WriteResult)
    assert (result.client_id, result.sequence, result.commit, result.memory_ms_left) == (CLIENT, number, commit, 55)
    assert (result.applied, result.replayed) == (verdict.status == "applied", verdict.replayed is True)
    if verdict.writes:
        assert list(result.writes) == verdict.writes
    else:
        assert (result.version, result.value, result.writes) == (3, "v", ())
    assert result.code == (verdict.code if isinstance(verdict.code, str) else None)


def _check_failure(pending: Pending, number: int, code: Code, outcome: Outcome, *, released: bool) -> None:
    assert isinstance(pending.promise, asyncio.Future)
    failure = pending.promise.exception()
    assert isinstance(failure, OperationFailed)
    assert (failure.code, failure.outcome) == (code, outcome)
    assert isinstance(failure, OutcomeUnknown) == (outcome is Outcome.UNKNOWN)
    assert not isinstance(failure, OutcomeUnknown) or failure.resolver is resolver
    assert failure.request_id == (CLIENT, number)
    assert pending.operation.sequence == (0 if released else number), "a number that is given back is no longer its own"
