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
from collections.abc import Iterable
from itertools import islice

from oncegate.gateway.client.batch import Batch, BatchPlace, OperationsBatch, Pending, PendingRows, RangeBatch
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
        self._tracker = tracker
        self._tuning = tuning
        self.waiting: deque[Pending | PendingRows] = deque()

    def take(self, travelling: Iterable[dict[str, set[str]]]) -> tuple[Batch | None, int]:
        """Cut the next batch and give its writes their numbers.

        Args:
            travelling: the rows that unanswered batches touch, by table.

        Returns:
            The batch, or None when nothing may leave now, and how many writes were dropped because nobody waits
            for them any more.
        """
        dropped = self._drop_done()
        if not self.waiting:
            return None, dropped
        busy = _merged(travelling)
        head = self.waiting[0]
        if isinstance(head, PendingRows):
            rows = busy.get(head.table) if busy else None
            if (rows is not None and not rows.isdisjoint(head.keys)) or not self._has_room(ranged=True):
                return None, dropped
            self.waiting.popleft()
            return self._range_of_rows(head), dropped
        size, ranged = self._cut(busy)
        if not self._has_room(ranged=ranged):
            return None, dropped
        if size == 0:
            overtaking = [] if self._in_order else self._overtake(busy)
            return self._operations(overtaking) if overtaking else None, dropped
        count = size if ranged else min(size, self._tracker.room_for_singles)
        popleft = self.waiting.popleft
        pendings: list[Pending] = [popleft() for _ in range(count)]  # type: ignore[misc]
        return self._range_of_puts(pendings) if ranged else self._operations(pendings), dropped

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

    def _has_room(self, *, ranged: bool) -> bool:
        tracker = self._tracker
        if ranged:
            if not tracker.room_for_range:
                tracker.make_room()
            return tracker.room_for_range
        if not tracker.room_for_singles:
            tracker.make_room()
        return tracker.room_for_singles > 0

    def _drop_done(self) -> int:
        # Drop only at the front: a cancelled write further back is dropped when it gets here.
        waiting, dropped = self.waiting, 0
        while waiting and waiting[0].promise.done():
            waiting.popleft()
            dropped += 1
        return dropped

    def _cut(self, busy: dict[str, set[str]]) -> tuple[int, bool]:
        """Return how many writes at the front may travel in one request, and whether as a range."""
        range_min = self._tuning.range_min
        operations_max = self._tuning.batch_operations_max
        count = run = 0  # of these writes, the last ``run`` are puts on one stream table
        run_table = ""
        for pending in islice(self.waiting, max(operations_max, self._tuning.range_rows_max)):
            if isinstance(pending, PendingRows) or pending.promise.done():
                break
            operation = pending.operation
            table = operation.table
            if busy and table in busy and operation.key in busy[table]:
                break
            if pending.text is not None and run and table == run_table:
                run += 1
            elif run >= range_min:
                break  # the run began at the front and is a range by itself
            elif pending.text is not None:
                run, run_table = 1, table
            else:
                run = 0
            count += 1
            if run == range_min and count > run:
                return count - run, False  # writes in front of a range are sent first
            if count >= operations_max and run != count:
                break
        return count, run >= range_min

    def _overtake(self, busy: dict[str, set[str]]) -> list[Pending]:
        """Take writes that may pass those in front, which wait for a row under way; each row keeps its order."""
        room = min(self._tuning.batch_operations_max, self._tracker.room_for_singles)
        passing: list[Pending] = []
        staying: list[Pending | PendingRows] = []
        held: set[tuple[str, str]] = set()
        for pending in self.waiting:
            if isinstance(pending, PendingRows) or len(passing) == room:
                break
            operation = pending.operation
            row = (operation.table, operation.key)
            if row in held or operation.key in busy.get(operation.table, ()):
                held.add(row)
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

    def _operations(self, pendings: list[Pending]) -> OperationsBatch:
        numbers = self._tracker.take_singles(len(pendings))
        for pending, number in zip(pendings, numbers, strict=True):
            pending.operation.sequence = number
        return OperationsBatch(pendings, numbers)

    def _range_of_rows(self, rows: PendingRows) -> RangeBatch:
        first = self._tracker.take_range(len(rows.keys))
        return RangeBatch(
            place=BatchPlace(first, len(rows.keys)),
            first=first,
            table=rows.table,
            keys_of_rows=rows.keys,
            texts=rows.texts,
            deadline=rows.deadline,
            rows=rows.promise,
            span=rows.span,
        )

    def _range_of_puts(self, pendings: list[Pending]) -> RangeBatch:
        first = self._tracker.take_range(len(pendings))
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


def _merged(travelling: Iterable[dict[str, set[str]]]) -> dict[str, set[str]]:
    merged: dict[str, set[str]] = {}
    for rows in travelling:
        for table, keys in rows.items():
            known = merged.get(table)
            merged[table] = keys if known is None else known | keys
    return merged
