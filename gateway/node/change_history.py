"""The newest changes of resident rows, of one node: for watches, and for reads at an older commit number.

Owns: the order of the changes, how many are kept, and how far back they reach. Pure: it is told what each applied entry
has changed (:attr:`oncegate.gateway.machine.machine.Machine.changes`). It is neither replicated nor saved: a node that
starts begins it with the state it has saved and fills it while it applies the log behind; a snapshot from the leader
begins it anew. Read next: :mod:`oncegate.gateway.node.watching`, :mod:`oncegate.gateway.node.scans`.

::

    first                                                last
      |  block        block                 newest block   |
      ├──────────────┼──────────────┼─ … ──┼───────────────┤   commit numbers
      └ every change above it is here      └ grows           └ every change up to it is here

A block holds whole entries, so a transaction is in one block, and the oldest block goes as a whole.

What takes effect together, a transaction for one, has a commit number a write, and one state: a number inside it names
the state after the last of them (:meth:`ChangeHistory.end_of`). Nobody is shown half of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from oncegate.gateway.machine.rows import ChangeRun, RowChange, each_change
from oncegate.rifl.errors import Code, OncegateError

BLOCK_CHANGES: Final = 1024
BLOCKS: Final = 64
"""About so many blocks, so that what goes at once is a small part of it all."""
CHANGE_BYTES: Final = 250
"""What a change costs beside its key and its values: a tuple, the row that nobody else holds any more."""
JOINED_BYTES: Final = 130
"""What is kept of a transition of several commit numbers, beside its changes."""
_COMMIT: Final = itemgetter(0)


class HistoryExceeded(OncegateError):
    """The changes above a commit number are not all here any more; those above ``first`` are."""

    def __init__(self, commit: int, first: int) -> None:
        what = f"changes above commit {commit} are not all kept here, those above {first} are"
        todo = "ask another node, or read the rows anew and go on from there"
        super().__init__(Code.RETENTION_EXCEEDED, f"{what}: {todo}")
        self.first = first


class _Block:
    """Changes of some entries, in commit order, and their memory; runs of them until somebody reads them one by one.

    ``joined``: first and last commit number of each transition among them that has several.
    """

    __slots__ = ("bytes", "changes", "count", "joined")

    def __init__(self) -> None:
        self.changes: list[RowChange | ChangeRun] = []
        self.joined: list[tuple[int, int]] = []
        self.count = self.bytes = 0

    def each(self) -> list[RowChange]:
        """Return the changes one by one."""
        if len(self.changes) < self.count:
            self.changes = [*each_change(self.changes)]
        return self.changes  # type: ignore[return-value]

    @property
    def last(self) -> int:
        """Commit number of the last change."""
        change = self.changes[-1]
        return change.after[-1].version if type(change) is ChangeRun else change[0]

    def end_of(self, commit: int) -> int:
        """Return the last commit number of the transition that has this one; it itself where it is none of here."""
        at = bisect_right(self.joined, commit, key=_COMMIT) - 1
        return commit if at < 0 else max(commit, self.joined[at][1])


class ChangeHistory:
    """Changes in commit order, the oldest of which go first.

    Args:
        changes_max: about so many are kept; at least the newest entry's.
        bytes_max: about so many bytes of memory.
        commit: commit number of the state that it begins with.
    """

    def __init__(self, changes_max: int, bytes_max: int, commit: int = 0) -> None:
        self._changes_max = changes_max
        self.bytes_max = bytes_max
        self._block_changes = min(BLOCK_CHANGES, changes_max / BLOCKS)
        self._block_bytes = bytes_max // BLOCKS
        self.reset(commit)

    def reset(self, commit: int) -> None:
        """Begin anew with the state of this commit number: another state has taken the place of the one before."""
        self.first = self.last = commit
        self.changes = self.bytes = 0
        self._blocks: list[_Block] = [_Block()]
        self._lasts: list[int] = []
        """Commit number of the last change of each block but the newest."""

    def record(
        self, changes: Sequence[RowChange | ChangeRun], commit: int, joined: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Add what an entry has changed.

        Args:
            changes: in commit order.
            commit: the state's commit number after it.
            joined: first and last commit number of each transition of several, ascending.
        """
        self.last = commit
        if not changes:
            return
        block = self._blocks[-1]
        if block.count >= self._block_changes or block.bytes >= self._block_bytes:
            self._lasts.append(block.last)
            block = _Block()
            self._blocks.append(block)
        count = size = 0
        for change in changes:
            if type(change) is ChangeRun:
                count += len(change.keys)
                size += change.size
                continue
            _, _, _, key, before, after, _ = change  # type: ignore[misc]  # a cast is a call
            count += 1
            size += len(key) if before is None else len(key) + len(before.value)
            if after is not None:
                size += len(after.value)
        size += CHANGE_BYTES * count
        if joined:
            size += JOINED_BYTES * len(joined)
            block.joined += joined
        block.changes += changes
        block.count += count
        block.bytes += size
        self.changes += count
        self.bytes += size
        while (self.changes > self._changes_max or self.bytes > self.bytes_max) and self._lasts:
            oldest = self._blocks.pop(0)
            self.first = oldest.end_of(self._lasts.pop(0))
            self.changes -= oldest.count
            self.bytes -= oldest.bytes

    def check(self, commit: int) -> None:
        """Raise HistoryExceeded unless every change above this commit number is here."""
        if commit < self.first:
            raise HistoryExceeded(commit, self.first)

    def end_of(self, commit: int) -> int:
        """Return the commit number of the state that this one names: the last of what took effect together with it.

        Raises:
            HistoryExceeded: as :meth:`check`.
        """
        self.check(commit)
        at = bisect_right(self._lasts, commit)
        # Its transition may reach beyond the last change of a block: [put, get] has its change at the first of two.
        return max(block.end_of(commit) for block in self._blocks[max(0, at - 1) : at + 1])

    def since(self, commit: int, most: int) -> tuple[Sequence[RowChange], int]:
        """Return the changes above a commit number, in commit order.

        Args:
            commit: changes above it are asked for; the last of what took effect together, as of :meth:`end_of`.
            most: about so many come at once; what took effect together comes together.

        Returns:
            The changes, and the commit number from which to go on: :attr:`last` if these were all.

        Raises:
            HistoryExceeded: they are not all here.
        """
        self.check(commit)
        if commit >= self.last:
            return (), max(commit, self.last)
        at = bisect_right(self._lasts, commit)
        changes = self._blocks[at].each()
        start = bisect_right(changes, commit, key=_COMMIT)
        end = min(start + most, len(changes))
        if end < len(changes):
            end = bisect_right(changes, changes[end - 1][1], key=_COMMIT)
        if end == len(changes) and at == len(self._lasts):
            return changes[start:end], self.last
        return changes[start:end], changes[end - 1][1]
