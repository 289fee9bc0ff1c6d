"""A batch as a call: its body and headers, and its answer turned into verdicts.

Owns: the encoding of batches. Must not know sockets or retries (:mod:`oncegate.gateway.client.courier`), nor when a
batch leaves (:mod:`oncegate.gateway.client.sender`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from oncegate.gateway.client.batch import GONE, TOLD, OperationsBatch, Pending, PlaceFate, RangeBatch, Rows
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.failures import DeadlineExceeded, OperationFailed, OutcomeUnknown
from oncegate.gateway.client.paths import OPERATIONS, ranges_path
from oncegate.gateway.client.verdicts import (
    JUDGED,
    Numbers,
    SettledAnswer,
    fail_write,
    judged_at_deadline,
    settle_operations,
    settle_range,
    with_id,
)
from oncegate.gateway.sweep import NEVER
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

if TYPE_CHECKING:
    from oncegate.gateway.client.sender import Sender

B = TypeVar("B", OperationsBatch, RangeBatch)
_ENCODER: Final = msgspec.msgpack.Encoder()
_OPERATIONS: Final = msgspec.msgpack.Decoder(OperationsResponse)
_RANGES: Final = msgspec.msgpack.Decoder(RangeResponse)


class BatchCall(Call[None], Generic[B]):
    """One request of a batch, encoded when it leaves; accepting its answer settles what has a verdict.

    Attributes:
        batch: what has no verdict yet.
        later: parts of a range that are to travel after this call, however it ends.
        kept: whether its writes are in the outbox, if there is one.
        resent: whether they were left there by an earlier process, or in doubt.
        settled: whether all of ``batch`` has a verdict: nothing is left to expire or to fail.
    """

    __slots__ = ("_judged", "_rows", "_sender", "batch", "kept", "later", "resent", "settled")

    def __init__(self, sender: Sender, path: str, batch: B) -> None:
        super().__init__("POST", path, deadline=batch.deadline, headers=sender.headers)
        self.batch: B = batch
        self.later: list[RangeBatch] = []
        self.kept = False
        self.resent = False
        self._judged: tuple[Code, float] | None = None  # and when that attempt was sent: a newer one has not said so
        self.settled = False
        self._sender = sender
        self._rows: Rows | None = None

    @property
    def judged(self) -> Code | None:
        """The refusal of the newest attempt, if it was of these writes and not of the time: see ``JUDGED``."""
        return self._judged[0] if self._judged is not None and self._judged[1] == self.sent_at else None

    @property
    def doubtful(self) -> bool:
        """Whether the batch may have been applied, by any attempt so far, or may still be sent from the outbox."""
        return self.ambiguous or self.under_way or (self._sender.keeps and self.judged is None)

    def encode(self) -> None:
        """Make headers and body of what has no verdict yet."""
        raise NotImplementedError

    def delayed(self) -> None:
        """Let other writes of the session pass this batch."""
        self._sender.delayed(self)

    def left(self) -> list[B | RangeBatch]:
        """Return what has no verdict yet, in order."""
        return [*self.later] if self.settled else [self.batch, *self.later]

    def rows(self) -> Rows:
        """Return the rows that the batch touches, or has touched; found once, at the first call."""
        if self._rows is None:
            self._rows = self.batch.keys()
        return self._rows

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline; the batch travels on."""
        raise NotImplementedError

    def _note(self, settled: SettledAnswer, memory_ms: int) -> None:
        sender = self._sender
        sender.lease.extend(self.sent_at, memory_ms)
        if settled.highest_commit > sender.highest_commit:
            sender.highest_commit = settled.highest_commit
        if settled.session_over is not None:
            sender.lose(settled.session_over)
        if settled.again is not None:
            self.ambiguous = self.ambiguous or settled.again.ambiguous
            self._judged = (settled.again.code, self.sent_at) if settled.again.code in JUDGED else None
            if settled.again.code is Code.WINDOW_FULL:
                sender.tracker.make_room(told_full=True)

    def _expire_in_doubt(self, pendings: Sequence[Pending], now: float) -> float:
        following = NEVER
        for pending in pendings:
            if pending.promise.done():
                continue
            if pending.deadline <= now:
                self._fail(pending, _IN_DOUBT)
            elif pending.deadline < following:
                following = pending.deadline
        return following

    def _fail(self, pending: Pending, failure: OperationFailed, then: Any = GONE) -> None:
        if not pending.promise.done():
            fail_write(pending, failure, self._sender.client_id, self._sender.resolver)
            pending.promise = then


class OperationsCall(BatchCall[OperationsBatch]):
    """``POST /v1/operations``. A verdict that says "later" is an attempt that failed: the rest goes again."""

    __slots__ = ()

    def __init__(self, sender: Sender, batch: OperationsBatch) -> None:
        super().__init__(sender, OPERATIONS, batch)

    def encode(self) -> None:
        """Make the body of what has no verdict yet."""
        sender, operations = self._sender, [pending.operation for pending in self.batch.pendings]
        self.body = _ENCODER.encode(
            OperationsRequest(
                sender.client_id_text,
                sender.epoch,
                sender.first_incomplete,
                operations,
                in_order=sender.in_order is not None,
            )
        )

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Settle what has a verdict.

        Raises:
            AttemptFailed: some of it is to be sent again.
            msgspec.MsgspecError: the answer is not in the contract.
        """
        sender, batch = self._sender, self.batch
        answer = _OPERATIONS.decode(payload)
        settled = settle_operations(
            batch,
            answer,
            sender.client_id,
            sender.resolver,
            ambiguous=self.ambiguous,
            renews=sender.renews,
            resent=self.resent,
        )
        rest = settled.rest
        left = sender.again(settled.unsent) if settled.unsent else 0
        sender.account(settled.numbers, len(batch) - left - (len(rest) if rest is not None else 0))
        self._note(settled, answer.memory_ms)
        if rest is None or settled.again is None:
            self.settled = True
            return
        self.batch = rest
        self.deadline = rest.deadline  # nothing of it is sent later: its callers have been told by then
        self.encode()
        raise settled.again

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline.

        If no attempt so far is in doubt and none is under way, the expired writes are removed, so that their callers
        learn that they were not applied. Otherwise they are sent on, and the outcome is unknown.
        """
        if self.settled:
            return NEVER
        pendings = self.batch.pendings
        if self.doubtful:
            return self._expire_in_doubt(pendings, now)
        expired = [pending for pending in pendings if pending.deadline <= now]
        if expired and len(expired) < len(pendings):
            kept = [pending for pending in pendings if pending.deadline > now]
            self.batch = OperationsBatch(kept, [pending.operation.sequence for pending in kept])
            self.encode()
            numbers = Numbers()
            for pending in expired:
                numbers.file(pending.operation.sequence, PlaceFate.RELEASE, waits=pending.waits)
            self._sender.account(numbers, len(expired))
        for pending in expired:
            self._fail(pending, _SURELY_NOT if self.judged is None else judged_at_deadline(self.judged), TOLD)
        return min([pending.deadline for pending in pendings if pending.deadline > now], default=NEVER)


class RangeCall(BatchCall[RangeBatch]):
    """``POST /v1/tables/{table}/ranges``. Parts with a retryable rejection are sent again as separate ranges."""

    __slots__ = ()

    def __init__(self, sender: Sender, batch: RangeBatch) -> None:
        super().__init__(sender, ranges_path(batch.table), batch)

    def encode(self) -> None:
        """Make headers and body of what has no verdict yet."""
        batch, sender = self.batch, self._sender
        self.headers = {
            **sender.headers,
            H_CLIENT: sender.client_id_text,
            H_EPOCH: str(sender.epoch),
            H_FIRST_SEQUENCE: str(batch.first),
            H_FIRST_INCOMPLETE: str(sender.first_incomplete),
        }
        self.body = _ENCODER.encode(RangeBody(batch.keys_of_rows, batch.texts))

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Settle the parts that have a verdict.

        Raises:
            AttemptFailed: a part is to be sent again.
            msgspec.MsgspecError: the answer is not in the contract.
        """
        sender, batch = self._sender, self.batch
        answer = _RANGES.decode(payload)
        if any(part.code == Code.BAD_REQUEST for part in answer.results):
            sender.kinds.known.pop(batch.table, None)  # it may be another table by now: the next call asks
        settled = settle_range(
            batch, answer, sender.client_id, sender.resolver, ambiguous=self.ambiguous, renews=sender.renews
        )
        left = sender.again(settled.unsent)
        sender.account(settled.numbers, ended(batch, len(batch) - sum(map(len, settled.parts))) - left)
        self._note(settled, answer.memory_ms)
        if settled.again is None:
            self.settled = True
            return
        self.batch, *others = settled.parts
        self.later[:0] = others
        self.encode()  # also where nothing has a verdict: what it acknowledges may have grown
        raise settled.again

    def expire(self, now: float) -> float:
        """Fail the promises whose deadline has passed and return the next deadline; the rows travel on."""
        return min([self._expire_part(part, now) for part in self.left()], default=NEVER)

    def _expire_part(self, batch: RangeBatch, now: float) -> float:
        if batch.pendings is not None:
            return self._expire_in_doubt(batch.pendings, now)
        rows, sender = batch.rows, self._sender
        if rows is None or rows.done():
            return NEVER
        if batch.deadline > now:
            return batch.deadline
        # The deadline is that of the whole range and nothing is sent after it: a range that is not in doubt now was
        # never applied.
        failure = _IN_DOUBT if self.doubtful else _SURELY_NOT
        rows.fail(len(batch), with_id(failure, sender.client_id, batch.first, sender.resolver))
        batch.rows = GONE if self.doubtful else TOLD
        return NEVER


_IN_DOUBT: Final = OutcomeUnknown(Code.TIMEOUT, "no verdict before the deadline")
_SURELY_NOT: Final = DeadlineExceeded(Code.TIMEOUT, "not accepted before the deadline", outcome=Outcome.NOT_APPLIED)


def ended(batch: RangeBatch, rows: int) -> int:
    """Return how many outstanding writes end with ``rows`` rows of a range: put together, they count as one."""
    if batch.pendings is not None:
        return rows
    return 1 if batch.place.fate() is not None else 0
