"""A batch as a call: its body and headers, and its answer turned into verdicts.

Owns: the encoding of batches. Must not know sockets or retries (:mod:`oncegate.gateway.client.courier`), nor when a
batch leaves (:mod:`oncegate.gateway.client.sender`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from oncegate.gateway.client.batch import GONE, Batch, OperationsBatch, Pending, RangeBatch
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.failures import DeadlineExceeded, OperationFailed, OutcomeUnknown, Resolver
from oncegate.gateway.client.lease import LeaseClock
from oncegate.gateway.client.paths import OPERATIONS, ranges_path
from oncegate.gateway.client.verdicts import Numbers, SettledAnswer, settle_operations, settle_range, with_id
from oncegate.gateway.wire import (
    H_CLIENT,
    H_EPOCH,
    H_FIRST_INCOMPLETE,
    H_FIRST_SEQUENCE,
    OperationsRequest,
    OperationsResponse,
    RangeBody,
    RangeResponse,
)
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, Epoch
from oncegate.rifl.request_tracker import RequestTracker

_ENCODER: Final = msgspec.msgpack.Encoder()
_OPERATIONS: Final = msgspec.msgpack.Decoder(OperationsResponse)
_RANGES: Final = msgspec.msgpack.Decoder(RangeResponse)
_NEVER: Final = float("inf")


class Ledger(Protocol):
    """What a batch needs of its session; :class:`oncegate.gateway.client.sender.Sender` implements it."""

    client_id: ClientId
    client_id_text: str
    epoch: Epoch
    tracker: RequestTracker
    lease: LeaseClock
    headers: Mapping[str, str]
    highest_commit: int
    resolver: Resolver
    keeps: bool
    """Whether writes are in a durable outbox before they travel."""

    @property
    def first_incomplete(self) -> int:
        """First incomplete, as a request that leaves now sends it."""

    def account(self, numbers: Numbers, settled: int) -> None:
        """Record what became of numbers and places."""

    def end(self, reason: OperationFailed) -> None:
        """Take no further writes."""

    def delayed(self, call: BatchCall) -> None:
        """Let other writes pass a batch whose attempts fail."""


class BatchCall(Call[None]):
    """One request of a batch, encoded when it leaves; accepting its answer settles what has a verdict."""

    __slots__ = ("_ledger", "_rows", "content", "later")

    def __init__(self, ledger: Ledger, path: str, deadline: float) -> None:
        super().__init__("POST", path, deadline=deadline, headers=ledger.headers)
        self.content = b""
        self._ledger = ledger
        self._rows: dict[str, set[str]] | None = None
        self.later: list[RangeBatch] = []
        """Parts of a range that are to travel after this call, however it ends."""

    @property
    def batch(self) -> Batch:
        """What has no verdict yet."""
        raise NotImplementedError

    @property
    def doubtful(self) -> bool:
        """Whether the batch may have been applied, by any attempt so far, or may still be sent from the outbox."""
        return self.ambiguous or self.under_way or self._ledger.keeps

    def encode(self) -> None:
        """Make headers and body of what has no verdict yet."""
        raise NotImplementedError

    def delayed(self) -> None:
        """Tell the session that this batch takes longer."""
        self._ledger.delayed(self)

    def rows(self) -> dict[str, set[str]]:
        """Return the rows that the batch touches, by table; computed once, at the first call."""
        if self._rows is None:
            self._rows = self.batch.keys()
        return self._rows

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline; the batch travels on."""
        raise NotImplementedError

    def _note(self, settled: SettledAnswer, memory_ms: int) -> None:
        ledger = self._ledger
        ledger.lease.extend(self.sent_at, memory_ms)
        if settled.highest_commit > ledger.highest_commit:
            ledger.highest_commit = settled.highest_commit
        if settled.session_over is not None:
            ledger.end(settled.session_over)
        if settled.again is not None:
            self.ambiguous = self.ambiguous or settled.again.ambiguous
            if settled.again.code is Code.WINDOW_FULL:
                ledger.tracker.make_room(told_full=True)


class OperationsCall(BatchCall):
    """``POST /v1/operations``. A verdict that says "later" is an attempt that failed: the rest goes again."""

    __slots__ = ("_batch",)

    def __init__(self, ledger: Ledger, batch: OperationsBatch) -> None:
        self._batch = batch
        super().__init__(ledger, OPERATIONS, batch.deadline)

    @property
    def batch(self) -> OperationsBatch:
        """What has no verdict yet."""
        return self._batch

    def encode(self) -> None:
        """Make the body of what has no verdict yet."""
        self.body = self.content = _encode_operations(self._ledger, self._batch)

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Settle what has a verdict.

        Raises:
            AttemptFailed: some of it is to be sent again.
            msgspec.MsgspecError: the answer is not in the contract.
        """
        ledger, batch = self._ledger, self._batch
        answer = _OPERATIONS.decode(payload)
        settled = settle_operations(batch, answer, ledger.client_id, ledger.resolver, ambiguous=self.ambiguous)
        rest = settled.rest
        ledger.account(settled.numbers, len(batch) - (len(rest) if rest is not None else 0))
        self._note(settled, answer.memory_ms)
        if rest is None or settled.again is None:
            return
        self._batch = rest
        self.encode()
        raise settled.again

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline.

        If no attempt so far is in doubt and none is under way, the expired writes are removed, so that their callers
        learn that they were not applied. Otherwise they are sent on, and the outcome is unknown.
        """
        pendings, client_id = self._batch.pendings, self._ledger.client_id
        if self.doubtful:
            return _expire_in_doubt(pendings, now, self._ledger)
        expired = [pending for pending in pendings if pending.deadline <= now]
        if expired and len(expired) < len(pendings):
            kept = [pending for pending in pendings if pending.deadline > now]
            self._batch = OperationsBatch(kept, [pending.operation.sequence for pending in kept])
            self.encode()
            numbers = Numbers(released=[pending.operation.sequence for pending in expired])
            self._ledger.account(numbers, len(expired))
        for pending in expired:
            if not pending.promise.done():
                pending.promise.set_exception(with_id(_SURELY_NOT, client_id, pending.operation.sequence))
                pending.promise = GONE
        return min([pending.deadline for pending in pendings if pending.deadline > now], default=_NEVER)


class RangeCall(BatchCall):
    """``POST /v1/tables/{table}/ranges``. Parts with a retryable rejection are sent again as separate ranges."""

    __slots__ = ("_batch",)

    def __init__(self, ledger: Ledger, batch: RangeBatch) -> None:
        self._batch = batch
        super().__init__(ledger, ranges_path(batch.table), batch.deadline)

    @property
    def batch(self) -> RangeBatch:
        """What this call waits for; see also :attr:`later`."""
        return self._batch

    def encode(self) -> None:
        """Make headers and body of what has no verdict yet."""
        self.headers = _range_headers(self._ledger, self._batch)
        self.body = self.content = _encode_range(self._batch)

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Settle the parts that have a verdict.

        Raises:
            AttemptFailed: a part is to be sent again.
            msgspec.MsgspecError: the answer is not in the contract.
        """
        ledger, batch = self._ledger, self._batch
        answer = _RANGES.decode(payload)
        settled = settle_range(batch, answer, ledger.client_id, ledger.resolver, ambiguous=self.ambiguous)
        ledger.account(settled.numbers, ended(batch, len(batch) - sum(map(len, settled.parts))))
        self._note(settled, answer.memory_ms)
        if settled.again is None:
            return
        first, *others = settled.parts
        self.later[:0] = others
        if len(first) < len(batch):
            self._batch = first
            self.encode()
        else:
            self.headers = _range_headers(ledger, batch)  # what it acknowledges may have grown
        raise settled.again

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline; the rows travel on."""
        return min(self._expire_part(part, now) for part in (self._batch, *self.later))

    def _expire_part(self, batch: RangeBatch, now: float) -> float:
        client_id = self._ledger.client_id
        if batch.pendings is not None:
            return _expire_in_doubt(batch.pendings, now, self._ledger)
        rows = batch.rows
        if rows is None or rows.done():
            return _NEVER
        if batch.deadline > now:
            return batch.deadline
        # The deadline is that of the whole range and nothing is sent after it: a range that is not in doubt now was
        # never applied.
        failure = _IN_DOUBT if self.doubtful else _SURELY_NOT
        rows.fail(len(batch), with_id(failure, client_id, batch.first, self._ledger.resolver))
        batch.rows = GONE
        return _NEVER


_IN_DOUBT: Final = OutcomeUnknown(Code.TIMEOUT, "no verdict before the deadline")
_SURELY_NOT: Final = DeadlineExceeded(Code.TIMEOUT, "not accepted before the deadline", outcome=Outcome.NOT_APPLIED)


def _expire_in_doubt(pendings: Sequence[Pending], now: float, ledger: Ledger) -> float:
    following = _NEVER
    for pending in pendings:
        if pending.promise.done():
            continue
        if pending.deadline <= now:
            sequence = pending.operation.sequence
            pending.promise.set_exception(with_id(_IN_DOUBT, ledger.client_id, sequence, ledger.resolver))
            pending.promise = GONE
        elif pending.deadline < following:
            following = pending.deadline
    return following


def ended(batch: RangeBatch, rows: int) -> int:
    """Return how many outstanding writes end with ``rows`` rows of a range: put together, they count as one."""
    if batch.pendings is not None:
        return rows
    return 1 if batch.place.fate() is not None else 0


def _encode_operations(ledger: Ledger, batch: OperationsBatch) -> bytes:
    return _ENCODER.encode(
        OperationsRequest(
            ledger.client_id_text,
            ledger.epoch,
            ledger.first_incomplete,
            [pending.operation for pending in batch.pendings],
        )
    )


def _encode_range(batch: RangeBatch) -> bytes:
    return _ENCODER.encode(RangeBody(batch.keys_of_rows, batch.texts))


def _range_headers(ledger: Ledger, batch: RangeBatch) -> dict[str, str]:
    return {
        **ledger.headers,
        H_CLIENT: ledger.client_id_text,
        H_EPOCH: str(ledger.epoch),
        H_FIRST_SEQUENCE: str(batch.first),
        H_FIRST_INCOMPLETE: str(ledger.first_incomplete),
    }
