# ruff: noqa: D102, N802 - names of the interface of the library, documented there.
"""The journal and the ballot, under the names that the library calls.

Owns how the library counts: positions in a list whose first item is the last entry before the log. Knows no more of the
library than these names. Read next: :mod:`oncegate.consensus.log.wal`, :mod:`oncegate.consensus.log.ballot`,
:mod:`oncegate.consensus.core.library`.
"""

from __future__ import annotations

from oncegate.consensus.errors import StorageError
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.storage import Storage
from oncegate.consensus.log.wal import Journal, Worker


class LibraryLog(Journal):
    """The log of the library.

    Its list begins with the last entry before the log once there is one (its term is compared, its command
    never looked at), and with entry 1, its own, before that.
    """

    def __init__(
        self, storage: Storage, worker: Worker, ballot: Ballot, *, segment_bytes: int, memory_bytes_max: int
    ) -> None:
        super().__init__(storage, worker, segment_bytes=segment_bytes, memory_bytes_max=memory_bytes_max)
        if self.last_term > ballot.term:
            self.abandon()
            raise StorageError(
                f"the journal knows term {self.last_term}, the ballot only {ballot.term}: the ballot is not the latest"
            )
        self._ballot = ballot
        # The library's first entry is the same on every node.
        self.commit_index = max(1, self.commit_index)

    @property
    def _list_first(self) -> int:
        return self.base.index or 1

    def __len__(self) -> int:
        return self.last_index - self._list_first + 1

    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        if item == -1:
            return b"", self.last_index, self.last_term
        first = self.base.index or 1
        if item == 0:
            return b"", first, self.base.term
        if isinstance(item, slice):
            start, stop, _ = item.indices(self.last_index - first + 1)
            recent = self._recent_first
            if first + start >= recent:
                return self._recent[first + start - recent : first + stop - recent]
            found: list[Entry] = []
            if start < stop and first + start == self.base.index:
                found.append((b"", self.base.index, self.base.term))
                start += 1
            while start < stop:
                part = self.entries(first + start, first + stop - 1, bytes_max=1 << 62)
                found += part
                start += len(part)
            return found
        return self.entry(first + item)

    def add(self, command: bytes, index: int, term: int) -> None:
        self.append(command, index, term)

    def deleteEntriesFrom(self, position: int) -> None:
        self.truncate_from(self._list_first + position)

    def setRaftCommitIndex(self, index: int) -> None:
        self.commit_index = index

    def getRaftCommitIndex(self) -> int:
        return self.commit_index

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:
        self._ballot.save(term, voted_for)

    def getCurrentTerm(self) -> int:
        return self._ballot.term

    def getVotedForNodeId(self) -> str | None:
        return self._ballot.voted_for

    def onOneSecondTimer(self) -> None:
        """Nothing here is written behind."""
