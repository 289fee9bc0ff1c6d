"""The log's entries as far as they are in memory, and where each lies on disk.

Owns the index: position and term of every entry (8 bytes an entry, two numbers a term), and the newest
entries themselves, up to ``memory_bytes_max``. The log begins behind its base, the last entry that is no longer
needed. Knows nothing of files. Read next: :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TypeAlias

from oncegate.consensus.configuration import MAGIC
from oncegate.consensus.log.log_base import NO_BASE
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.ports import SavedPoint

Entry: TypeAlias = tuple[bytes, int, int]
"""Command, index, term: the order PySyncObj uses."""


class Entries:
    """Index and cache of a log."""

    def __init__(self, memory_bytes_max: int) -> None:
        self._memory_bytes_max = memory_bytes_max
        self.base = NO_BASE
        """Last entry before the log; its index is 0 while nothing was removed."""
        self.first_index = 1
        self.last_index = 0
        self.last_term = 0
        self.membership = Membership()
        self._positions = array("Q")
        self._term_starts: list[int] = []
        self._terms: list[int] = []
        self._recent: list[Entry] = []
        self._recent_first = 1
        self._recent_bytes = 0

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``, or None when the log does not hold it; the base counts as held."""
        if not self.first_index <= index <= self.last_index:
            return self.base.term if index == self.base.index and index else None
        return self._terms[bisect_right(self._term_starts, index) - 1]

    def in_memory(self, index: int) -> bool:
        """The entry at ``index`` is read without the disk."""
        return index >= self._recent_first

    def _recent_entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        found = self._recent[first - self._recent_first : last - self._recent_first + 1]
        total = 0
        for count, entry in enumerate(found):
            # With a record's overhead, which is more than a frame's: many small entries stay within a frame too.
            total += len(entry[0]) + RECORD_HEADER_BYTES
            if total > bytes_max and count:
                return found[:count]
        return found

    def _remember(self, entry: Entry, position: int) -> None:
        command, index, term = entry
        if not self._terms or term != self._terms[-1]:
            self._term_starts.append(index)
            self._terms.append(term)
        # The first byte tells most commands apart without a call.
        if command and not command[0] and command.startswith(MAGIC):
            self.membership.appended(index, command)
        self._positions.append(position)
        self._recent.append(entry)
        self._recent_bytes += len(command) + RECORD_HEADER_BYTES
        self.last_index = index
        self.last_term = term

    def _forget_from(self, index: int) -> None:
        self.membership.truncated(index)
        del self._positions[index - self.first_index :]
        keep = max(0, index - self._recent_first)
        for command, _, _ in self._recent[keep:]:
            self._recent_bytes -= len(command) + RECORD_HEADER_BYTES
        del self._recent[keep:]
        self._recent_first = min(self._recent_first, index)
        while self._term_starts and self._term_starts[-1] >= index:
            self._term_starts.pop()
            self._terms.pop()
        self.last_index = index - 1
        self.last_term = self._terms[-1] if self._terms else self.base.term

    def _forget_to(self, base: SavedPoint) -> None:
        """Begin behind ``base``, an entry of the log or the base it has; the arrays shift by a memory move."""
        count = base.index - self.base.index
        self.base = base
        if base.index:
            self.membership.rebase(base.index, base.configuration)
        self.first_index = first = base.index + 1
        del self._positions[:count]
        if self._recent_first < first:
            gone = first - self._recent_first
            for command, _, _ in self._recent[:gone]:
                self._recent_bytes -= len(command) + RECORD_HEADER_BYTES
            del self._recent[:gone]
            self._recent_first = first
        starts = max(0, bisect_right(self._term_starts, first) - 1)
        del self._term_starts[:starts], self._terms[:starts]
        if not self._positions:
            del self._term_starts[:], self._terms[:]
            self.last_term = base.term
        elif self._term_starts[0] < first:
            self._term_starts[0] = first

    def _restart_at(self, base: SavedPoint) -> None:
        """Forget every entry and begin behind ``base``; without a configuration the one before the log stays."""
        self.membership.truncated(0)
        if base.configuration:
            self.membership.rebase(base.index, base.configuration)
        del self._positions[:], self._recent[:], self._term_starts[:], self._terms[:]
        self._recent_bytes = 0
        self.base = base
        self.first_index = self._recent_first = base.index + 1
        self.last_index, self.last_term = base.index, base.term

    def _evict(self) -> None:
        if self._recent_bytes <= self._memory_bytes_max:
            return
        # An eighth more than needed, so that the list is not shifted at every flush.
        target = self._memory_bytes_max - self._memory_bytes_max // 8
        count = 0
        for command, _, _ in self._recent:
            if self._recent_bytes <= target or count == len(self._recent) - 1:
                break
            self._recent_bytes -= len(command) + RECORD_HEADER_BYTES
            count += 1
        del self._recent[:count]
        self._recent_first += count
