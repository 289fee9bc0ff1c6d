"""What an answer means for each write of a batch. Pure: it resolves promises and sends nothing.

Owns: the table below. Must not know HTTP. Read next: :mod:`oncegate.gateway.client.sender`, which sends the rest again.

| verdict | the write's promise | its number |
|---|---|---|
| applied, refused | its result | complete |
| rejected, retryable | waits on | open; sent again |
| rejected QUOTA, and an outbox has sent it again | its error | abandoned; then sealed |
| rejected STALE, PAYLOAD_MISMATCH | its error | complete: the server knows the number |
| rejected FENCED, SESSION_EXPIRED | its error | abandoned; the session has ended |
| rejected otherwise with outcome not_applied, no attempt in doubt | its error | released: surely not applied |
| rejected otherwise (BAD_ACK, an attempt in doubt) | its error, outcome unknown | abandoned |
| one that tells the fate, and nobody waits any more: cancelled, or told "unknown" at the deadline | none | spent |
| any other but "later", and nobody waits any more | none | abandoned |

The fate of a spent number is kept for its caller (:mod:`oncegate.gateway.client.fates`). An abandoned one is in doubt
(:mod:`oncegate.gateway.client.doubts`): acknowledged, its fate could not be told any more, and given out again, its
number would tell the fate of another write.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from oncegate.gateway.client.batch import TOLD, OperationsBatch, Pending, PlaceFate, RangeBatch
from oncegate.gateway.client.failures import (
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    Resolver,
    known_code,
    known_outcome,
)
from oncegate.gateway.client.fates import SEALED
from oncegate.gateway.client.results import Resolution, RowsPart, WriteResult, told
from oncegate.gateway.client.routing import AttemptFailed
from oncegate.gateway.wire import OperationResult, OperationsResponse, RangeResponse, RangeResult
from oncegate.rifl.errors import REGISTRY, Code, OncegateError, Outcome
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber

KNOWN_TO_SERVER = frozenset((Code.STALE, Code.PAYLOAD_MISMATCH))
JUDGED = frozenset((Code.OVERLOADED, Code.QUOTA))
"""Retryable refusals of a write by what it asks for, and not because no node could take any."""
_RESENT_FINAL = (Code.QUOTA.value,)
SESSION_OVER = frozenset((Code.FENCED, Code.SESSION_EXPIRED))


class Numbers(msgspec.Struct):
    """Places to complete, abandon, spend and release, by their first sequence numbers, and fates nobody waited for."""

    completed: Sequence[int] = ()
    abandoned: list[int] = msgspec.field(default_factory=list)
    released: list[int] = msgspec.field(default_factory=list)
    unclaimed: list[int] = msgspec.field(default_factory=list)
    """The server has their results, and somebody did not receive his: to be spent."""
    late: list[tuple[int, Resolution]] = msgspec.field(default_factory=list)
    """Numbers, each with the fate that nobody waited for."""
    late_rows: list[RowsPart] = msgspec.field(default_factory=list)
    """The same of rows of ranges that were applied."""

    def file(self, number: int, fate: PlaceFate, *, waits: bool = True) -> None:
        """Add one place to the list of its fate; ``waits``: its caller has not given up before."""
        match fate:
            case PlaceFate.COMPLETE if waits:
                self.completed = [*self.completed, number]
            case PlaceFate.COMPLETE | PlaceFate.UNCLAIMED:
                self.unclaimed.append(number)
            case PlaceFate.RELEASE if waits:
                self.released.append(number)
            case _:
                self.abandoned.append(number)


def fate_of(failure: OperationFailed) -> PlaceFate:
    """Return what becomes of the number of a write that ended with ``failure``."""
    if failure.code in KNOWN_TO_SERVER:
        return PlaceFate.COMPLETE
    if failure.outcome is Outcome.NOT_APPLIED and failure.code not in SESSION_OVER:
        return PlaceFate.RELEASE
    return PlaceFate.ABANDON


def never_will(failure: OperationFailed) -> bool:
    """Tell whether the server knows the number of a write that it did not apply, and never will."""
    return failure.code in KNOWN_TO_SERVER and failure.outcome is Outcome.NOT_APPLIED


class SettledAnswer(msgspec.Struct):
    """What an answer left to do.

    Attributes:
        numbers: what became of the sequence numbers.
        highest_commit: highest commit number in the answer.
        rest: operations that are to be sent again, in order; None when all are settled.
        parts: parts of a range that are to be sent again, ascending.
        again: why, with what the server asked for.
        session_over: the refusal that ends the session.
        unsent: writes that are to be sent in the next session.
    """

    numbers: Numbers = msgspec.field(default_factory=Numbers)
    highest_commit: int = 0
    rest: OperationsBatch | None = None
    parts: list[RangeBatch] = msgspec.field(default_factory=list)
    again: AttemptFailed | None = None
    session_over: OperationFailed | None = None
    unsent: list[Pending] = msgspec.field(default_factory=list)


def settle_operations(
    batch: OperationsBatch,
    answer: OperationsResponse,
    client_id: ClientId,
    resolver: Resolver | None = None,
    *,
    ambiguous: bool,
    renews: bool = False,
    resent: bool = False,
) -> SettledAnswer:
    """Resolve the promises of ``batch`` from ``answer``; ``ambiguous``: an earlier attempt may have been applied.

    ``renews``: as of :func:`fail_batch`. ``resent``: an earlier process, or an earlier call, has left these writes in
    an outbox. QUOTA is final for them: whoever enters the session does not wait for room that may never come.

    Raises:
        msgspec.ValidationError: the verdicts are not those of this batch; no promise was touched.
    """
    results, memory_ms = answer.results, answer.memory_ms
    if [verdict.sequence for verdict in results] != list(batch.sequences):
        raise msgspec.ValidationError("the verdicts are not those of the operations sent")
    settled = SettledAnswer()
    highest = 0
    slow: list[tuple[Pending, OperationResult]] = []
    numbers = settled.numbers
    for pending, verdict in zip(batch.pendings, results, strict=True):
        status = verdict.status
        commit = verdict.commit
        if commit is msgspec.UNSET or (status != "applied" and status != "refused"):
            slow.append((pending, verdict))
            continue
        if verdict.writes:
            commit = verdict.writes[-1].commit
        if commit > highest:
            highest = commit
        promise = pending.promise
        if promise.done():
            numbers.unclaimed.append(verdict.sequence)
            fate = Resolution(status, write_result(verdict, client_id, memory_ms))  # type: ignore[arg-type]
            numbers.late.append((verdict.sequence, fate))
            continue
        promise.set_result(write_result(verdict, client_id, memory_ms))
    settled.highest_commit = highest
    if not slow and not numbers.unclaimed:
        numbers.completed = batch.sequences
        return settled
    final = _RESENT_FINAL if resent else ()
    _settle_rejected(settled, batch, slow, client_id, resolver, ambiguous=ambiguous, renews=renews, final=final)
    return settled


def write_result(verdict: OperationResult, client_id: ClientId, memory_ms: int) -> WriteResult:
    """Return the result of a verdict ``applied`` or ``refused``."""
    commit, version, value, code = verdict.commit, verdict.version, verdict.value, verdict.code
    if verdict.writes or verdict.failed:
        return _transaction_result(verdict, client_id, memory_ms)
    return WriteResult(
        client_id,
        verdict.sequence,  # type: ignore[arg-type]
        verdict.status == "applied",
        0 if commit is msgspec.UNSET else commit,
        None if version is msgspec.UNSET else version,
        None if value is msgspec.UNSET else told(value, verdict.encoding),
        verdict.replayed is True,
        memory_ms,
        None if code is msgspec.UNSET else code,
    )


def _transaction_result(verdict: OperationResult, client_id: ClientId, memory_ms: int) -> WriteResult:
    writes = () if verdict.writes is msgspec.UNSET else tuple(verdict.writes)
    plain = msgspec.structs.replace(verdict, writes=msgspec.UNSET, failed=msgspec.UNSET)
    for write in writes:
        write.value = told(write.value, write.encoding)
        for row in write.rows or ():
            row.value = told(row.value, row.encoding)
    if writes:  # the newest, so that reads of the session see all of it
        plain.commit = writes[-1].commit
    failed = verdict.failed if isinstance(verdict.failed, str) else None
    return msgspec.structs.replace(write_result(plain, client_id, memory_ms), writes=writes, failed=failed)


def _settle_rejected(
    settled: SettledAnswer,
    batch: OperationsBatch,
    rejected: list[tuple[Pending, OperationResult]],
    client_id: ClientId,
    resolver: Resolver | None,
    *,
    ambiguous: bool,
    renews: bool,
    final: Sequence[str],
) -> None:
    again: list[Pending] = []
    gone = {verdict.sequence for _, verdict in rejected}.union(settled.numbers.unclaimed)
    settled.numbers.completed = [number for number in batch.sequences if number not in gone]
    for pending, verdict in rejected:
        if _retryable(verdict) and verdict.code not in final:
            again.append(pending)
            settled.again = _again(verdict, settled.again)
            continue
        failure = rejection(verdict, client_id, verdict.sequence, ambiguous=ambiguous)
        if failure.code in SESSION_OVER:
            settled.session_over = failure
        settled.numbers.file(verdict.sequence, fate_of(failure), waits=pending.waits)
        if not pending.waits and never_will(failure):
            settled.numbers.late.append((verdict.sequence, SEALED))
        alone = OperationsBatch([pending], [verdict.sequence])
        settled.unsent += fail_batch(alone, failure, client_id, resolver, renews=renews)
    if again:
        settled.rest = OperationsBatch(again, [pending.operation.sequence for pending in again])


def settle_range(
    batch: RangeBatch,
    answer: RangeResponse,
    client_id: ClientId,
    resolver: Resolver | None = None,
    *,
    ambiguous: bool,
    renews: bool = False,
) -> SettledAnswer:
    """Resolve the promises of ``batch`` from ``answer``; arguments as :func:`settle_operations`.

    The place of the range is in ``numbers`` once no part of it waits.

    Raises:
        msgspec.ValidationError: the parts do not cover the range; no promise was touched.
    """
    at = batch.first
    for verdict in answer.results:
        if verdict.first != at or verdict.last < at:
            raise msgspec.ValidationError("the parts are not those of the range sent")
        at = verdict.last + 1
    if at != batch.last + 1:
        raise msgspec.ValidationError("the parts do not cover the range sent")
    settled = SettledAnswer()
    for verdict in answer.results:
        if verdict.status == "applied" and verdict.commit is not msgspec.UNSET:
            fate = _settle_part(settled.numbers, batch, verdict, verdict.commit, answer.memory_ms, client_id)
            count = verdict.last - verdict.first + 1
            batch.place.note(count, fate)
            settled.highest_commit = max(settled.highest_commit, verdict.commit + count - 1)
        elif _retryable(verdict):
            settled.parts.append(batch.part(verdict.first, verdict.last))
            settled.again = _again(verdict, settled.again)
        else:
            failure = rejection(verdict, client_id, verdict.first, ambiguous=ambiguous)
            if failure.code in SESSION_OVER:
                settled.session_over = failure
            part = batch.part(verdict.first, verdict.last)
            batch.place.note(len(part), fate_of(failure), waits=part.waits)
            if not part.waits and never_will(failure):
                settled.numbers.late += [(number, SEALED) for number in range(part.first, part.last + 1)]
            settled.unsent += fail_batch(part, failure, client_id, resolver, renews=renews)
    whole = batch.place.fate()
    if whole is not None:
        settled.numbers.file(batch.place.first, whole)
    return settled


def _settle_part(
    numbers: Numbers, batch: RangeBatch, verdict: RangeResult, commit: int, memory_ms: int, client_id: ClientId
) -> PlaceFate:
    replayed = verdict.replayed is True
    part = RowsPart(SequenceNumber(verdict.first), SequenceNumber(verdict.last), commit, replayed)
    waits = True
    if batch.rows is not None:
        waits = not batch.rows.done()
        if not waits and batch.rows is not TOLD:
            numbers.late_rows.append(part)
        batch.rows.add(part, memory_ms)
    pendings = (batch.pendings or ())[verdict.first - batch.first : verdict.last - batch.first + 1]
    for sequence, pending in enumerate(pendings, verdict.first):
        number, at = SequenceNumber(sequence), commit + sequence - verdict.first
        if pending.promise.done():
            waits = False
            numbers.late_rows.append(RowsPart(number, number, at, replayed))
            continue
        pending.promise.set_result(WriteResult(client_id, number, True, at, at, None, replayed, memory_ms))
    return PlaceFate.COMPLETE if waits else PlaceFate.UNCLAIMED


def fail_batch(
    batch: OperationsBatch | RangeBatch,
    failure: OperationFailed,
    client_id: ClientId,
    resolver: Resolver | None = None,
    *,
    renews: bool = False,
) -> list[Pending]:
    """Fail every promise of a batch, each with its own request id, but for those of the writes that it returns.

    Those go on in the next session, if there is to be one: their session had ended before they came, so that they
    surely were not applied, and somebody waits for them. A ``put_many`` is not cut in two by that: its caller decides.
    """
    again: list[Pending] = []
    if isinstance(batch, RangeBatch) and batch.rows is not None:
        batch.rows.fail(len(batch), with_id(failure, client_id, batch.first, resolver))
    goes_on = renews and failure.code is Code.SESSION_EXPIRED and failure.outcome is Outcome.NOT_APPLIED
    for pending in batch.pendings or ():
        if goes_on and pending.alone and not pending.promise.done():
            again.append(pending)
        else:
            fail_write(pending, failure, client_id, resolver)
    return again


def fail_write(pending: Pending, failure: OperationFailed, client_id: ClientId, resolver: Resolver | None) -> None:
    """Fail the promise of one write, if its caller still waits, with the write's own request id.

    A number that is given back is no longer the write's: a cancellation that comes now must not name it.
    """
    if not pending.promise.done():
        pending.promise.set_exception(with_id(failure, client_id, pending.operation.sequence, resolver))
        if fate_of(failure) is PlaceFate.RELEASE:
            pending.operation.sequence = 0


def with_id(
    failure: OperationFailed, client_id: ClientId, sequence: int, resolver: Resolver | None = None
) -> OperationFailed:
    """Return a copy of ``failure`` with the id of one write and the resolver for it."""
    copy = type(failure)(
        failure.code,
        failure.detail,
        request_id=RequestId(client_id, SequenceNumber(sequence)) if sequence else None,
        retry_after_ms=failure.retry_after_ms,
        outcome=failure.outcome,
    )
    copy.__cause__ = failure.__cause__
    if isinstance(copy, OutcomeUnknown):
        copy.resolver = resolver
    return copy


def rejection(
    verdict: OperationResult | RangeResult, client_id: ClientId, sequence: int, *, ambiguous: bool
) -> OperationFailed:
    """Return the error of a final rejection; one without a code counts as INTERNAL, outcome unknown."""
    name = verdict.code if isinstance(verdict.code, str) else Code.INTERNAL
    code = known_code(name)
    stated = known_outcome(verdict.outcome) if isinstance(verdict.outcome, str) else REGISTRY[code].outcome
    detail = verdict.detail if isinstance(verdict.detail, str) else ""
    if code is Code.INTERNAL and name != Code.INTERNAL:
        detail = f"{name}: {detail}"
    return OperationFailed(
        code,
        detail,
        request_id=RequestId(client_id, SequenceNumber(sequence)),
        outcome=sharpened(code, stated, ambiguous=ambiguous),
    )


def sharpened(code: Code, stated: Outcome, *, ambiguous: bool) -> Outcome:
    """Correct a stated outcome: only the client knows whether an earlier attempt is in doubt."""
    if ambiguous and code not in KNOWN_TO_SERVER:
        return Outcome.UNKNOWN
    if not ambiguous and code in SESSION_OVER:
        return Outcome.NOT_APPLIED
    return stated


def _retryable(verdict: OperationResult | RangeResult) -> bool:
    return verdict.status == "rejected" and verdict.retryable is True


def _again(verdict: OperationResult | RangeResult, before: AttemptFailed | None) -> AttemptFailed:
    code = known_code(verdict.code) if isinstance(verdict.code, str) else Code.INTERNAL
    doubtful = verdict.outcome != "not_applied" or (before is not None and before.ambiguous)
    return AttemptFailed(code, f"rejected: {code}", ambiguous=doubtful)


def refused(refusal: OncegateError, *, ambiguous: bool) -> OperationFailed:
    """Return what the refusal of a whole request means to each of its writes."""
    kind = type(refusal) if isinstance(refusal, MalformedAnswer) else OperationFailed
    failure = kind(
        refusal.code,
        refusal.detail,
        retry_after_ms=refusal.retry_after_ms,
        outcome=sharpened(refusal.code, refusal.outcome, ambiguous=ambiguous),
    )
    failure.__cause__ = refusal.__cause__
    return failure


def judged_at_deadline(code: Code, detail: str = "", *, ambiguous: bool = False) -> OperationFailed:
    """Return the error of a write of an outbox that each attempt refused until its deadline."""
    why = f"refused until the deadline; last: {detail or code}"
    if ambiguous:
        return OutcomeUnknown(code, why, outcome=Outcome.UNKNOWN)
    return DeadlineExceeded(code, why, outcome=Outcome.NOT_APPLIED)


def not_applied(reason: OperationFailed) -> OperationFailed:
    """Return the error of a write that was never sent because of ``reason``."""
    return OperationFailed(reason.code, reason.detail, outcome=Outcome.NOT_APPLIED)


def doubtful(reason: OperationFailed) -> OperationFailed:
    """Return the error of a write that was under way when ``reason`` ended the session."""
    return OutcomeUnknown(reason.code, reason.detail, outcome=Outcome.UNKNOWN)


def late(why: str, code: Code = Code.TIMEOUT) -> DeadlineExceeded:
    """Return the error of a write whose deadline passed before it was sent; it was surely not applied."""
    return DeadlineExceeded(code, f"not sent before the deadline: {why}", outcome=Outcome.NOT_APPLIED)
