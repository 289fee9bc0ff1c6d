"""The journal's segment files: making one ahead of time, and going on without it when the disk is full.

A segment is written with zeros and flushed before it gets its name, so that flushing a batch writes no metadata and
never finds the disk full. While the next one cannot be made, the journal has the room that is left in the current one.
It is written past the page cache, as batches are (:mod:`oncegate.consensus.log.storage`).
Read next: :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

import logging
import mmap
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.reserve import NO_SPACE_ERRNOS, renew_reserve
from oncegate.consensus.log.sealed_file import TEMPORARY_SUFFIX
from oncegate.consensus.log.segment import SEGMENT_HEADER_BYTES, SegmentHeader, encode_header, segment_name
from oncegate.consensus.log.storage import BLOCK_BYTES, File, Storage
from oncegate.consensus.worker import Worker

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
_PREWRITE_BYTES: Final = 1024 * 1024
_ZEROS: Final = memoryview(mmap.mmap(-1, _PREWRITE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ))
"""Takes no memory: every page of it is the kernel's page of zeros."""


@dataclass(slots=True)
class Segment:
    """One open segment, and where the log stood when its first record was written."""

    header: SegmentHeader
    file: File
    prior_end: int = 0
    """Position up to which everything was flushed before."""
    last_index: int = 0
    last_term: int = 0


def make_segment(storage: Storage, header: SegmentHeader) -> Segment:
    """Create a segment that is zero to its end, durable, and published under its name.

    Raises:
        OSError: there is no room, or the disk failed; nothing is left behind but for a crash.
    """
    name = segment_name(header.sequence)
    temporary = name + TEMPORARY_SUFFIX
    try:
        file = storage.create(temporary, header.size)
        try:
            for offset in range(0, header.size, _PREWRITE_BYTES):
                # In pieces, each flushed: the batches of the segment in use queue behind one piece at most.
                piece = min(_PREWRITE_BYTES, header.size - offset)
                if piece % BLOCK_BYTES:
                    file.write([bytes(piece)], offset)
                else:
                    file.write_blocks(_ZEROS[:piece], offset)
                file.sync()
            file.write([encode_header(header)], 0)
            file.sync()
            storage.rename(temporary, name)
            storage.sync_directory()
        except OSError:
            # It is tried again every second: one file left open at each try would end the process.
            file.close()
            raise
    except OSError:
        with suppress(OSError):
            storage.remove(temporary)
        raise
    return Segment(header, file)


class SpareSegment:
    """The segment that comes after the current one."""

    def __init__(self, storage: Storage, worker: Worker) -> None:
        self._storage = storage
        self._worker = worker
        self._header: SegmentHeader | None = None
        self._future: Future[Segment] | None = None
        self.no_space = False
        """The last attempt found the disk full, and no later one has succeeded."""
        self._retry_at = 0.0
        self.ready = False
        """It is there, and :meth:`retry` has nothing to do."""

    @property
    def size(self) -> int:
        """Bytes that it holds for records, 0 while the disk is full."""
        if self._header is None or self.no_space:
            return 0
        return self._header.size - SEGMENT_HEADER_BYTES

    def prepare(self, header: SegmentHeader) -> None:
        """Start to make it."""
        self._header = header
        self.ready = False
        storage = self._storage

        def make() -> Segment:
            # First: a vote needs room more than a command does.
            renew_reserve(storage)
            return make_segment(storage, header)

        self._future = self._worker.submit(make)

    def adopt(self, segment: Segment) -> None:
        """Take one that an earlier process made."""
        self._header = segment.header
        self.ready = False
        storage = self._storage

        def keep() -> Segment:
            try:
                renew_reserve(storage)
            except OSError:
                # Made again, over this one, when there is room for both.
                segment.file.close()
                raise
            return segment

        self._future = self._worker.submit(keep)

    def available(self) -> bool:
        """Wait for it while it is being made for the first time; False while the disk is full.

        Raises:
            OSError: the disk failed otherwise.
        """
        if self.ready or self.no_space:
            return self.ready
        return self._future is not None and self._settle(self._future)

    def take(self) -> Segment:
        """Hand it over; :meth:`available` has said that it is there."""
        future, self._future, self.ready = self._future, None, False
        if future is None:
            raise SafetyViolation("the journal is closed")
        return future.result()

    def retry(self, now: float) -> None:
        """Try again when the disk was full: one attempt a second, never waited for.

        Raises:
            OSError: the disk failed otherwise.
        """
        future = self._future
        if future is not None and future.done() and not self._settle(future):
            self._future = None
            self._retry_at = now + RETRY_S
        if self._future is None and self._header is not None and now >= self._retry_at:
            self.prepare(self._header)

    def close(self) -> None:
        """Wait for it and close it."""
        future, self._future, self.ready = self._future, None, False
        self._header = None
        if future is not None:
            with suppress(OSError):
                future.result().file.close()

    def _settle(self, future: Future[Segment]) -> bool:
        try:
            future.result()
        except OSError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            if not self.no_space:
                logger.warning("no room for the next journal segment, commands will be refused: %s", error)
            self.no_space = True
            return False
        if self.no_space:
            logger.warning("there is room for the next journal segment again")
        self.no_space = False
        self.ready = True
        return True
