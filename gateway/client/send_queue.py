"""Waiting writes, and how they are cut into batches. Pure: it only reads whether promises are done.

Owns: the queue, its order, the end of writes that were never sent, and when a write gets its sequence number: when it
is sent, so that a write that was cancelled or expired before leaves no gap. Must not know asyncio or HTTP.

Order. Writes leave in the order in which they were submitted, with one exception: a write on a row of an unanswered
batch waits for the answer, and writes on other rows may pass it. So writes of one session on the same row are applied
in the order submitted, also when an attempt is lost and made again, unless the server rejects one of them for now and
takes a later one of the same batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from oncegate.gateway.client.batch import (
    Batch,
    BatchPlace,
    OperationsBatch,
    Pending,
    PendingRows,
    RangeBatch,
    Rows,
    rows_of,
    rows_of_all,
    share_a_row,
)
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.client.verdicts import late, not_applied
from oncegate.rifl.request_tracker import RequestTracker


class SendQueue:
    """The writes of one session that have not travelled.

    Args:
        tracker: gives out the numbers.
        tuning: bounds of a batch.
        in_order: whether no write may pass those in front of it, whatever its row.
    """

    def __init__(self, tracker: RequestTracker, tuning: Tuning, *, in_order: bool = False) -> None:
        self._in_order = in_order
        self.tracker = tracker
        self._tuning = tuning
        self.waiting: deque[Pending | PendingRows] = deque()

    def take(self, travelling: Sequence[Rows], requests: int = 1) -> tuple[Batch | None, int]:
        """Cut the next batch and give its writes their numbers.

        Args:
            travelling: the rows that unanswered batches touch, of each.
            requests: in how many of equal size what waits may travel; fewer, if one would have less than
                ``pipeline_min`` operations. Ranges have their own size.

        Returns:
            The batch, or None when nothing may leave now, and how many writes were dropped because nobody waits
            for them any more.
        """
        dropped = self._drop_done()
        if not self.waiting:
            return None, dropped
        head = self.waiting[0]
        if isinstance(head, PendingRows):
            rows = {head.table: set(head.keys)} if travelling else None
            if rows and any(share_a_row(rows, other) for other in travelling):
                return None, dropped
            if not self._has_room(ranged=True):
                return None, dropped
            self.waiting.popleft()
            return self._range_of_rows(head, rows), dropped
        waiting = len(self.waiting)
        parts = 1 if self._in_order else min(requests, waiting // max(1, self._tuning.pipeline_min))
        operations_max = self._tuning.batch_operations_max
        if parts > 1:
            operations_max = min(operations_max, -(-waiting // parts))
        size, ranged = self._cut(operations_max, waiting)
        touched: Rows | None = None
        if travelling and size:
            touched = rows_of_all(list(islice(self.waiting, size)))  # type: ignore[arg-type]
            if any(share_a_row(touched, other) for other in travelling):
                touched = None
                size, ranged = self._cut(operations_max, self._first_busy(travelling))
        if not self._has_room(ranged=ranged):
            return None, dropped
        if size == 0:
            overtaking = [] if self._in_order else self._overtake(_merged(travelling), operations_max)
            return self._operations(overtaking) if overtaking else None, dropped
        count = size if ranged else min(size, self.tracker.room_for_singles)
        popleft = self.waiting.popleft
        pendings: list[Pending] = [popleft() for _ in range(count)]  # type: ignore[misc]
        if ranged:
            return self._range_of_puts(pendings), dropped
        return self._operations(pendings, touched if count == size else None), dropped

    def expire(self, now: float) -> tuple[int, float]:
        """Fail the writes whose deadline has passed; remove them, and those without a waiting caller.

        Returns:
            How many left the queue, and the next deadline, which may be infinite.
        """
        kept: list[Pending | PendingRows] = []
        for pending in self.waiting:
            if pending.promise.done():
                continue
            if pending.deadline <= now:
                _fail(pending, late("it was never sent"))
            else:
                kept.append(pending)
        expired = len(self.waiting) - len(kept)
        if expired:
            self.waiting.clear()
            self.waiting.extend(kept)
        return expired, min((pending.deadline for pending in kept), default=float("inf"))

    def refuse(self, reason: OperationFailed) -> int:
        """Fail all writes, because the session has ended; returns how many."""
        unsent = list(self.waiting)
        self.waiting.clear()
        for pending in unsent:
            if not pending.promise.done():
                _fail(pending, not_applied(reason))
        return len(unsent)

    def refuse_rows(self, reason: OperationFailed) -> int:
        """Fail the rows of each ``put_many``, because the session has ended and another one follows; returns how many.

        Rows of one call are not spread over two sessions.
        """
        rows = [pending for pending in self.waiting if isinstance(pending, PendingRows) or not pending.alone]
        kept = [pending for pending in self.waiting if isinstance(pending, Pending) and pending.alone]
        self.waiting.clear()
        self.waiting.extend(kept)
        for pending in rows:
            _fail(pending, not_applied(reason))
        return len(rows)

    def _has_room(self, *, ranged: bool) -> bool:
        tracker = self.tracker
        if ranged:
            if not tracker.room_for_range:
                tracker.make_room()
            return tracker.room_for_range
        # Half of the window is left to writes whose fates are known here: others can ask for them as long.
        wanted = min(len(self.waiting), tracker.window // 2) or 1
        if tracker.room_for_singles < wanted:
            tracker.make_room(wanted)
        return tracker.room_for_singles > 0

    def _drop_done(self) -> int:
        # Drop only at the front: a cancelled write further back is dropped when it gets here.
        waiting, dropped = self.waiting, 0
        while waiting and waiting[0].promise.done():
            waiting.popleft()
            dropped += 1
        return dropped

    def _first_busy(self, travelling: Sequence[Rows]) -> int:
        """Return how many writes are in front of the first that touches a row under way."""
        busy = _merged(travelling)
        for at, pending in enumerate(self.waiting):
            if isinstance(pending, PendingRows):
                return at
            if any(key in busy.get(name, ()) for name, key in rows_of(pending.operation)):
                return at
        return len(self.waiting)

    def _cut(self, operations_max: int, limit: int) -> tuple[int, bool]:
        """Return how many of the first ``limit`` writes may travel in one request, and whether as a range."""
        range_min = self._tuning.range_min
        count = run = 0  # of these writes, the last ``run`` are puts on one stream table
        run_table = ""
        for pending in islice(self.waiting, min(limit, max(operations_max, self._tuning.range_rows_max))):
            if isinstance(pending, PendingRows) or pending.promise.done():
                break
            if pending.text is not None and run and pending.operation.table == run_table:
                run += 1
            elif run >= range_min:
                break  # the run began at the front and is a range by itself
            elif pending.text is not None:
                run, run_table = 1, pending.operation.table
            else:
                run = 0
            count += 1
            if run == range_min and count > run:
                return count - run, False  # writes in front of a range are sent first
            if count >= operations_max and run != count:
                break
        ranged = run >= range_min
        # Puts that are too few for a range were counted without this bound.
        return (count if ranged or count < operations_max else operations_max), ranged

    def _overtake(self, busy: Rows, operations_max: int) -> list[Pending]:
        """Take writes that may pass those in front, which wait for a row under way; each row keeps its order."""
        room = min(operations_max, self.tracker.room_for_singles)
        passing: list[Pending] = []
        staying: list[Pending | PendingRows] = []
        held: set[tuple[str, str]] = set()
        for pending in self.waiting:
            if isinstance(pending, PendingRows) or len(passing) == room:
                break
            rows = rows_of(pending.operation)
            if any(row in held or row[1] in busy.get(row[0], ()) for row in rows):
                held.update(rows)
                staying.append(pending)
            elif pending.promise.done():
                staying.append(pending)  # dropped when it gets to the front
            else:
                passing.append(pending)
        if passing:
            staying.extend(islice(self.waiting, len(passing) + len(staying), None))
            self.waiting.clear()
            self.waiting.extend(staying)
        return passing

    def _operations(self, pendings: list[Pending], touched: Rows | None = None) -> OperationsBatch:
        numbers = self.tracker.take_singles(len(pendings))
        for pending, number in zip(pendings, numbers, strict=True):
            pending.operation.sequence = number
        return OperationsBatch(pendings, numbers, touched)

    def _range_of_rows(self, rows: PendingRows, touched: Rows | None) -> RangeBatch:
        first = rows.first = self.tracker.take_range(len(rows.keys))
        return RangeBatch(
            place=BatchPlace(first, len(rows.keys)),
            first=first,
            table=rows.table,
            keys_of_rows=rows.keys,
            texts=rows.texts,
            deadline=rows.deadline,
            rows=rows.promise,
            span=rows.span,
            touched=touched,
        )

    def _range_of_puts(self, pendings: list[Pending]) -> RangeBatch:
        first = self.tracker.take_range(len(pendings))
        for sequence, pending in enumerate(pendings, first):
            pending.operation.sequence = sequence
        return RangeBatch(
            place=BatchPlace(first, len(pendings)),
            first=first,
            table=pendings[0].operation.table,
            keys_of_rows=[pending.operation.key for pending in pendings],
            texts=[pending.text or "null" for pending in pendings],
            deadline=max([pending.deadline for pending in pendings]),
            pendings=pendings,
        )


def _fail(pending: Pending | PendingRows, failure: OperationFailed) -> None:
    if isinstance(pending, PendingRows):
        pending.promise.fail(len(pending.keys), failure)
    else:
        pending.promise.set_exception(failure)


def _merged(travelling: Sequence[Rows]) -> Rows:
    merged: Rows = {}
    for rows in travelling:
        for table, keys in rows.items():
            known = merged.get(table)
            merged[table] = keys if known is None else known | keys
    return merged
