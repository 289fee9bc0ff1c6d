"""Reading the directory of a stopped node without changing it: stamp, ballot, log.

Owns: a directory that refuses every change, and a log that is replayed as at a start but not taken up: a torn tail
stays where it is, segments that nobody needs stay too. Read next: :mod:`oncegate.consensus.log.wal_recovery`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from oncegate.consensus.errors import Corrupt, DirectoryLocked
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.identity import DirectoryIdentity, read_identity
from oncegate.consensus.log.segment import RecordKind, SegmentRecord, read_record, segment_name
from oncegate.consensus.log.segment_file import Segment
from oncegate.consensus.log.storage import DirectoryStorage, File, Storage
from oncegate.consensus.log.wal_recovery import RecoveredLog, ReplayedEntries

_MEMORY_BYTES = 1024 * 1024


class ReadOnlyFile:
    """An open file (:class:`oncegate.consensus.log.storage.File`) that cannot be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")

    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def read(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        self._file.seek(offset)
        return self._file.read(size)

    def write(self, buffers: Sequence[bytes], offset: int) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", str(self._path))

    def truncate(self, size: int) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", str(self._path))

    def sync(self) -> None:
        """Nothing was written."""

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", str(self._path))

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class ReadOnlyDirectory(DirectoryStorage):
    """A directory that stays as it is.

    Raises:
        OSError: it is not there or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def lock(self) -> None:
        """Keep nodes out while this is open; other readers are welcome. Raises DirectoryLocked for a live one."""
        try:
            fcntl.flock(self._directory_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryLocked(f"{self._path} is open in another process") from None

    def open(self, name: str) -> File:
        """Open an existing file for reading."""
        return ReadOnlyFile(self._path / name)

    def create(self, name: str, size: int = 0) -> File:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", self.label(name))

    def rename(self, source: str, target: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", self.label(source))

    def link(self, source: str, target: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", self.label(source))

    def remove(self, name: str) -> None:
        """Refuse."""
        raise OSError(errno.EROFS, "opened for reading only", self.label(name))

    def sync_directory(self) -> None:
        """Nothing was changed."""


class LogReader(ReplayedEntries):
    """The log of a stopped node.

    Attributes:
        commit_index: what the log itself knows to be committed: after a kill more may have been.
        sealed: the node was stopped in order.
        was_reset: the log was begun anew behind an installed snapshot.

    Raises:
        Corrupt: bytes that had been flushed are missing or changed; names file and offset.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(_MEMORY_BYTES)
        self._storage = storage
        self.sealed = False
        self.was_reset = False
        found = self._recover(storage)
        self._segments: list[Segment] = [] if found is None else found.segments
        self._bases = [segment.header.base for segment in self._segments]

    def _replay_record(self, record: SegmentRecord, base: int, label: str) -> None:
        self.sealed = record.kind == RecordKind.SEAL
        self.was_reset = self.was_reset or record.kind == RecordKind.RESET
        super()._replay_record(record, base, label)

    def _take_up(
        self, storage: Storage, segments: list[Segment], ends: list[int], torn: list[Any], unneeded: list[int]
    ) -> RecoveredLog:
        # Read only: nothing is wiped, flushed or removed.
        return RecoveredLog(segments=segments, end=0, prior_end=0, spare=None)

    def read(self, first: int, last: int) -> Iterator[Entry]:
        """Yield the entries ``first .. last``, which the log must hold; one segment is in memory at a time.

        Raises:
            Corrupt: a segment has changed since this was opened.
        """
        number, data = -1, b""
        for index in range(first, last + 1):
            position = self._positions[index - self.first_index]
            at = bisect_right(self._bases, position) - 1
            header, file = self._segments[at].header, self._segments[at].file
            if at != number:
                number, data = at, file.read(header.size, 0)
            record = read_record(data, position - header.base, header.seed)
            if record is None or record.log_index != index:
                raise Corrupt(self.file_of(index), position - header.base, "entry unreadable")
            yield record.payload, index, record.term

    def file_of(self, index: int) -> str:
        """Path of the segment that holds an entry."""
        at = bisect_right(self._bases, self._positions[index - self.first_index]) - 1
        return self._storage.label(segment_name(self._segments[at].header.sequence))

    def close(self) -> None:
        """Close the files."""
        for segment in self._segments:
            segment.file.close()
        self._segments = []


def read_hard_state(storage: Storage) -> tuple[DirectoryIdentity, int, str | None]:
    """Return whose directory it is, the latest term it has seen, and whom it voted for; raises Corrupt."""
    ballot = Ballot.load(storage)
    return read_identity(storage), ballot.term, ballot.voted_for
