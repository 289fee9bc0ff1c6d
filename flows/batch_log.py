"""Metadata of a flow's sealed batches, without their items.

Owns: numbers, commit ranges, counts and seal times of the batches that retention has left. Part of the replicated
state, pure. Must not know files or consumers. Read next: :mod:`oncegate.flows.cursor`, :mod:`oncegate.flows.retention`.

Batches are numbered without gaps, so the log is a few columns and a number: 40 bytes a batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from oncegate.flows.chunks import int64s_from_bytes, int64s_to_bytes
from oncegate.flows.errors import BadRequestError, NotFoundError, RetentionExceededError


class BatchMeta(NamedTuple):
    """One sealed batch, numbered from 1; commits inclusive, the size as the open segment counted it, cluster time of
    the seal.
    """

    number: int
    first_commit: int
    last_commit: int
    items: int
    size_bytes: int
    sealed_ms: int


class BatchLogState(msgspec.Struct, frozen=True):
    """Snapshot of a batch log. Columns are little-endian int64; that of event times may be shorter than the others."""

    first: int
    items_dropped: int
    event_dropped_ms: int
    unclocked_dropped: bool
    first_commits: bytes
    last_commits: bytes
    items_through: bytes
    sizes_bytes: bytes
    sealed_ms: bytes
    event_ms: bytes = b""


class BatchLog:
    """The retained batches of one flow, ``first .. last``; empty when ``first > last``.

    Attributes:
        first: smallest retained batch number; that of the next batch when none is retained. A new log begins with it:
            above 1 where a flow of the same name has used the numbers below.
        clock_resets: how often the event times were forgotten, or seal times shifted, in this process; not part of the
            replicated state.
    """

    __slots__ = (
        "_bytes_through",
        "_event_dropped_ms",
        "_event_ms",
        "_first_commits",
        "_items_dropped",
        "_items_through",
        "_last_commits",
        "_sealed_ms",
        "_sizes_bytes",
        "_unclocked_dropped",
        "clock_resets",
        "first",
    )

    def __init__(self, first: int = 1) -> None:
        self.first = first
        self._items_dropped = 0
        self._first_commits = array("q")
        self._last_commits = array("q")
        # Items from batch 1 up to and including each batch: a lag is one subtraction, not a sum.
        self._items_through = array("q")
        self._sizes_bytes = array("q")
        # Sizes summed up, from anywhere: only differences are asked for. Not saved.
        self._bytes_through = array("q")
        self._sealed_ms = array("q")
        # The clock at each batch, as far as it is known: shorter than the others.
        self._event_ms = array("q")
        self._event_dropped_ms = 0
        # Whether a batch was dropped of which the event time was not known, and never will be.
        self._unclocked_dropped = False
        self.clock_resets = 0

    def __len__(self) -> int:
        return len(self._sealed_ms)

    @property
    def last(self) -> int:
        """The newest batch number; that before the log's first, 0 for most, if none was ever sealed."""
        return self.first + len(self._sealed_ms) - 1

    @property
    def items_total(self) -> int:
        """Items of all batches ever sealed."""
        return self._items_through[-1] if self._items_through else self._items_dropped

    @property
    def has_dropped(self) -> bool:
        """Whether any batch was ever dropped."""
        return self._items_dropped > 0

    def append(self, first_commit: int, last_commit: int, items: int, size_bytes: int, sealed_ms: int) -> int:
        """Record the seal of the next batch and return its number; the arguments are those of :class:`BatchMeta`.

        Raises:
            ValueError: empty, or commits or cluster time do not follow the batch before; nothing was recorded.
        """
        previous_commit = self._last_commits[-1] if self._last_commits else 0
        previous_ms = self._sealed_ms[-1] if self._sealed_ms else sealed_ms
        if not previous_commit < first_commit <= last_commit or items < 1 or sealed_ms < previous_ms:
            raise ValueError(f"batch {self.last + 1} does not follow batch {self.last}")
        items_through = self.items_total + items
        self._first_commits.append(first_commit)
        self._last_commits.append(last_commit)
        self._items_through.append(items_through)
        self._sizes_bytes.append(size_bytes)
        self._bytes_through.append((self._bytes_through[-1] if self._bytes_through else 0) + size_bytes)
        self._sealed_ms.append(sealed_ms)
        return self.last

    def get(self, number: int) -> BatchMeta:
        """Return a retained batch.

        Raises RetentionExceededError if it was dropped, NotFoundError if it is not sealed yet, BadRequestError below 1.
        """
        row = self._row(number)
        before = self._items_through[row - 1] if row else self._items_dropped
        return BatchMeta(
            number,
            self._first_commits[row],
            self._last_commits[row],
            self._items_through[row] - before,
            self._sizes_bytes[row],
            self._sealed_ms[row],
        )

    def _row(self, number: int) -> int:
        if number < 1:
            raise BadRequestError(f"batch number {number} is below 1")
        if number < self.first:
            raise RetentionExceededError(f"batch {number} was dropped; the oldest is {self.first}")
        if number > self.last:
            raise NotFoundError(f"batch {number} is not sealed; the newest is {self.last}")
        return number - self.first

    def of_commit(self, commit: int) -> int | None:
        """Return the retained batch that spans a commit number, None if there is none.

        Commits of other tables lie between a batch's items, so the batch need not hold an item of that number.
        """
        row = bisect_left(self._last_commits, commit)
        if row == len(self) or self._first_commits[row] > commit:
            return None
        return self.first + row

    def items_after(self, number: int) -> int:
        """Return the items in retained batches above ``number``."""
        row = number - self.first
        if row >= len(self):
            return 0
        return self.items_total - (self._items_through[row] if row >= 0 else self._items_dropped)

    def bytes_after(self, number: int) -> int:
        """Return the bytes of retained batches above ``number``."""
        row, through = number - self.first, self._bytes_through
        if not through or row >= len(through):
            return 0
        return through[-1] - (through[row] if row >= 0 else through[0] - self._sizes_bytes[0])

    def before_bytes(self, size_bytes: int) -> int:
        """Return the newest batch after which at most ``size_bytes`` are retained, at least ``first - 1``."""
        through = self._bytes_through
        if not through or self.bytes_after(self.first - 1) <= size_bytes:
            return self.first - 1
        return self.first + bisect_left(through, through[-1] - size_bytes)

    @property
    def clocked_through(self) -> int:
        """The newest batch of which the event time is known; ``first - 1`` if of none."""
        return self.first + len(self._event_ms) - 1

    def clock(self, first: int, newest_ms: Sequence[int]) -> None:
        """Record the newest event times of the batches from ``first`` on; what is known already stays."""
        for number, newest in enumerate(newest_ms, first):
            if number == self.clocked_through + 1 and number <= self.last:
                self._event_ms.append(max(newest, self.event_ms_at(number - 1)))

    def event_ms_at(self, number: int) -> int:
        """Return the clock at a batch: the newest event time of it and all before, as far as known; 0 if none."""
        row = min(number, self.clocked_through) - self.first
        return self._event_ms[row] if row >= 0 else self._event_dropped_ms

    def before_event(self, event_ms: int) -> int:
        """Return the cursor from which on all items with this event time or a later one are read.

        Raises:
            RetentionExceededError: some of them may be in a batch that was dropped.
        """
        row = bisect_left(self._event_ms, event_ms)
        if not row and self.has_dropped and (self._unclocked_dropped or self._event_dropped_ms >= event_ms):
            raise RetentionExceededError(f"items of that event time may have been dropped; the oldest is {self.first}")
        return self.first - 1 + row

    def reset_clock(self) -> None:
        """Forget all event times; those of dropped batches will never be known."""
        self._event_ms = array("q")
        self._event_dropped_ms, self._unclocked_dropped = 0, self.has_dropped
        self.clock_resets += 1

    def sleep(self, slept_ms: int) -> None:
        """Let ``slept_ms`` of cluster time count for no batch: each is as old afterwards as it was before."""
        self._sealed_ms = array("q", (sealed + slept_ms for sealed in self._sealed_ms))
        self.clock_resets += 1

    def before_time(self, time_ms: int) -> int:
        """Return the cursor from which on all items applied at cluster time ``time_ms`` or later are read.

        Raises:
            RetentionExceededError: some of them may be in a batch that was dropped.
        """
        cursor = self.last_sealed_by(time_ms - 1)
        if cursor < self.first and self.has_dropped:
            raise RetentionExceededError(f"batches of that time may have been dropped; the oldest is {self.first}")
        return cursor

    def sealed_ms_after(self, number: int) -> int | None:
        """Return the cluster time at which the oldest retained batch above ``number`` was sealed, if there is one."""
        row = max(0, number + 1 - self.first)
        return self._sealed_ms[row] if row < len(self) else None

    def last_sealed_by(self, time_ms: int) -> int:
        """Return the newest batch sealed at or before cluster time ``time_ms``; ``first - 1`` if there is none."""
        return self.first - 1 + bisect_right(self._sealed_ms, time_ms)

    def drop_through(self, number: int) -> range:
        """Forget the batches up to and including ``number``; return the numbers that were forgotten now.

        Raises:
            BadRequestError: ``number`` is above the newest batch.
        """
        if number > self.last:
            raise BadRequestError(f"batch {number} is not sealed")
        dropped = range(self.first, max(self.first, number + 1))
        count = len(dropped)
        if count:
            self._items_dropped = self._items_through[count - 1]
            self._unclocked_dropped |= number > self.clocked_through
            self._event_dropped_ms = self.event_ms_at(number)
            del self._event_ms[:count]
            for column in (*self._columns(), self._bytes_through):
                del column[:count]
            self.first += count
        return dropped

    def _columns(self) -> tuple[array[int], ...]:
        return (self._first_commits, self._last_commits, self._items_through, self._sizes_bytes, self._sealed_ms)

    def snapshot(self, after: int = 0) -> BatchLogState:
        """Return the replicated state as plain data; ``after``: without the columns of the batches up to this one."""
        start = min(max(0, after + 1 - self.first), len(self))
        columns = self._columns() if not start else tuple(column[start:] for column in self._columns())
        saved = [int64s_to_bytes(column) for column in (*columns, self._event_ms[start:])]
        dropped = self._items_dropped, self._event_dropped_ms, self._unclocked_dropped
        return BatchLogState(self.first, *dropped, *saved)

    @classmethod
    def restore(cls, state: BatchLogState) -> BatchLog:
        """Return the log that gave ``state``."""
        log = cls(state.first)
        log._items_dropped = state.items_dropped
        log._first_commits = int64s_from_bytes(state.first_commits)
        log._last_commits = int64s_from_bytes(state.last_commits)
        log._items_through = int64s_from_bytes(state.items_through)
        log._sizes_bytes = int64s_from_bytes(state.sizes_bytes)
        log._bytes_through = array("q", accumulate(log._sizes_bytes))
        log._sealed_ms = int64s_from_bytes(state.sealed_ms)
        log._event_ms = int64s_from_bytes(state.event_ms)
        log._event_dropped_ms, log._unclocked_dropped = state.event_dropped_ms, state.unclocked_dropped
        return log
