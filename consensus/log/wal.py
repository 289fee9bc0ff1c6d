"""The journal: Raft's log in segment files, one write and one flush a batch.

Owns the log's segments on disk and its entries. Entries are appended to a batch and become durable at
:meth:`Journal.flush`; the newest ``memory_bytes_max`` stay in memory, older ones are read back from the segments.
The next segment is made by a worker while the current one fills, and segments that are no longer needed are removed by
it. Knows nothing of PySyncObj, elections or peers.
Read next: :mod:`oncegate.consensus.log.entries`, :mod:`oncegate.consensus.log.segment` for the format and the recovery
rule, :mod:`oncegate.consensus.log.log_base` for what happens to old segments,
:mod:`oncegate.consensus.log.wal_recovery` for opening.
"""

from __future__ import annotations

import logging
import secrets
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable

from oncegate.consensus.errors import Corrupt, FlushFailed, SafetyViolation
from oncegate.consensus.histogram import Histogram
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.log_base import BASE_FILE, FIRST_START, LogStart, publish_and_remove
from oncegate.consensus.log.reserve import NO_SPACE_ERRNOS
from oncegate.consensus.log.segment import (
    KIND_ENTRY,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    RecordKind,
    SegmentHeader,
    encode_record,
    read_record,
    segment_name,
)
from oncegate.consensus.log.segment_file import RETRY_S, Segment, SpareSegment, make_segment
from oncegate.consensus.log.storage import BlockWriter, Storage
from oncegate.consensus.log.wal_recovery import RecoveredLog, ReplayedEntries
from oncegate.consensus.ports import SavedPoint
from oncegate.consensus.worker import Task, Worker

__all__ = ["Journal", "Worker"]

logger = logging.getLogger(__name__)

_FLUSHES_REMEMBERED = 1024


class Journal(ReplayedEntries):
    """Raft's log. One owner; not thread-safe (only making and removing whole segments runs elsewhere)."""

    def __init__(self, storage: Storage, worker: Worker, *, segment_bytes: int, memory_bytes_max: int) -> None:
        """Open and replay the journal of a locked directory; an empty directory gets its first segment.

        Raises:
            Corrupt: bytes that had been flushed are missing or changed. Nothing is modified then.
        """
        super().__init__(memory_bytes_max)
        self._storage = storage
        self._worker = worker
        self._segment_bytes = segment_bytes
        self.flushed_index = 0
        self.flushes = 0
        self.flush_times = Histogram()
        self._batch: list[bytes] = []
        self._writer = BlockWriter()
        self._flush_seconds: deque[float] = deque(maxlen=_FLUSHES_REMEMBERED)
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._spare = SpareSegment(storage, worker)
        self._end = 0
        self._batch_start = 0
        self._prior_end = 0
        self._start = FIRST_START
        self._unneeded: list[Segment] = []
        self._removal: Task[None] = Task(worker, lambda: None)
        self._removal_at = 0.0
        self._adopt(self._recover(storage))

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """Bytes from the first segment's start to the end of the log."""
        return self._end - self._bases[0]

    def bytes_after(self, index: int) -> int:
        """Bytes of the entries behind ``index``; all of the log's for one that is gone from it."""
        if index >= self.last_index or not self._positions:
            return 0
        return self._end - self._positions[max(index + 1, self.first_index) - self.first_index]

    @property
    def end(self) -> int:
        """Position behind the last record; only grows, also when entries are taken back."""
        return self._end

    @property
    def base_file(self) -> str:
        """What an operator calls the file that says where the log begins."""
        return self._storage.label(BASE_FILE)

    @property
    def dirty(self) -> bool:
        """Something was appended since the last flush."""
        return bool(self._batch)

    @property
    def flush_seconds(self) -> list[float]:
        """Durations of the latest flushes, oldest first."""
        return list(self._flush_seconds)

    @property
    def disk_full(self) -> bool:
        """The next segment could not be made for want of room; what is left in the current one is all there is."""
        return self._spare.no_space

    @property
    def room_bytes(self) -> int:
        """Bytes of records that can be appended for certain or, while the next segment is being made, probably."""
        last = self._segments[-1].header
        return last.base + last.size - self._end + self._spare.size

    def has_room(self, size_bytes: int, *, reserve_bytes: int = 0) -> bool:
        """``size_bytes`` of records can be appended, and ``reserve_bytes`` after them.

        Waits for the next segment when it is needed and being made for the first time.

        Raises:
            OSError: the disk failed.
        """
        needed = size_bytes + reserve_bytes
        return self._fits(needed) or (self._spare.available() and needed <= self._spare.size)

    def entry(self, index: int) -> Entry:
        """The entry at ``index``, which the log must hold."""
        if index >= self._recent_first:
            return self._recent[index - self._recent_first]
        return self.entries(index, index, bytes_max=1)[0]

    def entries(self, first: int, last: int, *, bytes_max: int) -> list[Entry]:
        """Entries from ``first`` to at most ``last``, at least one, and no more than ``bytes_max`` beyond that.

        One call reads one block, so it may return fewer than asked for.
        """
        if first < self._recent_first:
            return self._read_back(first, min(last, self._recent_first - 1), bytes_max)
        return self._recent_entries(first, last, bytes_max)

    # -- writing ---------------------------------------------------------------------------------------

    def append(self, command: bytes, index: int, term: int) -> None:
        """Add one entry to the batch; durable after :meth:`flush`."""
        if index != self.last_index + 1 or term < self.last_term:
            raise SafetyViolation(
                f"entry {index} of term {term} after entry {self.last_index} of term {self.last_term}"
            )
        position = self._add_record(KIND_ENTRY, index, term, command)
        self._remember((command, index, term), position)

    def truncate_from(self, index: int) -> None:
        """Remove entries from ``index`` on (Raft §5.3); a committed entry is never removed."""
        if index <= self.commit_index:
            raise SafetyViolation(f"entry {index} is committed (up to {self.commit_index}) and would be removed")
        if index <= self.last_index:
            self._add_record(int(RecordKind.TRUNCATE), index, self.last_term, b"")
            self._forget_from(index)

    def flush(self) -> None:
        """Make everything appended durable: one write, one flush; nothing when the batch is empty.

        Raises:
            FlushFailed: the disk failed. What is durable is then unknown, so the caller must end the process.
        """
        if not self._batch:
            return
        started = time.perf_counter()
        segment = self._segments[-1]
        try:
            offset, size_bytes = self._batch_start - segment.header.base, self._end - self._batch_start
            self._writer.write(segment.file, self._batch, offset, size_bytes, segment.header.size)
            segment.file.sync()
        except OSError as error:
            raise FlushFailed(self._storage.label(segment_name(segment.header.sequence)), error) from error
        lasted_s = time.perf_counter() - started
        self._flush_seconds.append(lasted_s)
        self.flush_times.observe(lasted_s)
        self.flushes += 1
        self._batch.clear()
        self._batch_start = self._prior_end = self._end
        self.flushed_index = self.last_index
        self._evict()

    # -- forgetting ------------------------------------------------------------------------------------

    def compact(self, index: int, *, kept_bytes: int, configuration_at: Callable[[int], bytes]) -> None:
        """Remove whole segments of entries up to ``index``, but keep the newest ``kept_bytes`` of the log.

        Atomic against a crash, and done by the worker: the new base is durable before anything is removed. Entries
        up to the new base are gone from here at once. Does nothing while an earlier removal is under way.

        Raises:
            SafetyViolation: an entry up to ``index`` is not committed or not flushed.
        """
        if index > min(self.commit_index, self.flushed_index):
            raise SafetyViolation(f"entry {index} may not be removed: it is not committed and flushed")
        if self._removal.busy or self._unneeded or index <= self.base.index:
            return
        count = bisect_right(self._bases, self._end - kept_bytes) - 1
        if index < self.last_index:
            count = min(count, bisect_right(self._bases, self._positions[index + 1 - self.first_index]) - 1)
        if count <= 0:
            return
        base_index = self.first_index + bisect_left(self._positions, self._bases[count]) - 1
        term = self.term_at(base_index)
        if base_index > self.base.index and term is not None:
            self._forget_to(SavedPoint(base_index, term, configuration_at(base_index)))
        self._unneeded = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        first = self._segments[0]
        self._start = LogStart(self.base, first.header.sequence, first.prior_end, first.last_index, first.last_term)
        self._remove_unneeded()

    def reset_to(self, point: SavedPoint) -> None:
        """Let the log go on behind ``point``, whose state was installed; durable when this returns.

        Entries behind it are kept if the log holds that entry (Raft §7, figure 13, rule 6), else all are discarded:
        by a record, so that a crash leaves the old log or the new one. Old segments go at the next :meth:`compact`.

        Raises:
            SafetyViolation: the point is committed here, with another term.
        """
        if self.term_at(point.index) != point.term:
            if point.index <= self.commit_index:
                raise SafetyViolation(f"entry {point.index} is committed and is not the one that was installed")
            self.commit_index = point.index
            self._add_record(int(RecordKind.RESET), point.index, point.term, point.configuration)
            self._restart_at(point)
        self.commit_index = max(self.commit_index, point.index)
        self.flush()

    def maintain(self, now: float) -> None:
        """Go on with what could not be done for want of room; ``now`` in seconds of any one clock.

        Raises:
            OSError: the disk failed.
        """
        if not self._spare.ready:
            self._spare.retry(now)
        if not self._removal.busy and not self._unneeded:
            return
        if self._removal.done:
            try:
                self._removal.fetch()
            except OSError as error:
                if error.errno not in NO_SPACE_ERRNOS:
                    raise
                logger.warning("old journal segments are not removed yet: %s", error)
                self._removal_at = now + RETRY_S
        if self._unneeded and not self._removal.busy and now >= self._removal_at:
            self._remove_unneeded()

    def close(self) -> None:
        """Flush, seal and close; a sealed journal accepts no torn tail at the next start."""
        if self._fits(RECORD_HEADER_BYTES) or self._spare.available():
            self._add_record(int(RecordKind.SEAL), self.last_index, self.last_term, b"")
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without flushing; waits for the worker."""
        self._spare.close()
        if self._removal.busy:
            try:
                self._removal.fetch()
            except OSError as error:
                logger.warning("old journal segments are left to the next start: %s", error)
        for segment in self._unneeded + self._segments:
            segment.file.close()
        self._unneeded.clear()
        self._segments.clear()

    # -- inside ----------------------------------------------------------------------------------------

    def _add_record(self, kind: int, index: int, term: int, payload: bytes) -> int:
        size = RECORD_HEADER_BYTES + len(payload)
        while not self._fits(size):
            self._roll()
        header = self._segments[-1].header
        position = self._end
        self._batch.append(encode_record(header.seed, kind, index, term, self.commit_index, self._prior_end, payload))
        if payload:
            self._batch.append(payload)
        self._end = position + size
        return position

    def _fits(self, size: int) -> bool:
        header = self._segments[-1].header
        return self._end + size <= header.base + header.size

    def _roll(self) -> None:
        # A batch never spans segments: what is prepared is flushed first, so that a torn tail is always the
        # tail of one file.
        self.flush()
        self._enter(self._spare.take())
        self._prepare_spare()

    def _enter(self, segment: Segment) -> None:
        segment.prior_end, segment.last_index, segment.last_term = self._prior_end, self.last_index, self.last_term
        self._segments.append(segment)
        self._bases.append(segment.header.base)
        self._end = self._batch_start = segment.header.base + SEGMENT_HEADER_BYTES

    def _prepare_spare(self) -> None:
        last = self._segments[-1].header
        header = SegmentHeader(last.sequence + 1, last.base + last.size, self._segment_bytes, secrets.randbits(32))
        self._spare.prepare(header)

    def _remove_unneeded(self) -> None:
        storage, start, segments = self._storage, self._start, self._unneeded
        self._removal.start(lambda: publish_and_remove(storage, start, segments))

    def _adopt(self, found: RecoveredLog | None) -> None:
        if found is None:
            self._prior_end = SEGMENT_HEADER_BYTES
            self._enter(make_segment(self._storage, SegmentHeader(1, 0, self._segment_bytes, secrets.randbits(32))))
            self._prepare_spare()
            return
        self._segments = found.segments
        self._bases = [segment.header.base for segment in found.segments]
        self._end = self._batch_start = found.end
        self._prior_end = found.prior_end
        self.flushed_index = self.last_index
        if found.spare is not None:
            self._spare.adopt(found.spare)
        else:
            self._prepare_spare()

    def _read_back(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        position = self._positions[first - self.first_index]
        number = bisect_right(self._bases, position) - 1
        segment = self._segments[number]
        base, size, seed = segment.header.base, segment.header.size, segment.header.seed
        start = position - base
        block = segment.file.read(min(bytes_max + RECORD_HEADER_BYTES, size - start), start)
        found: list[Entry] = []
        for index in range(first, last + 1):
            offset = self._positions[index - self.first_index] - position
            record = read_record(block, offset, seed) if offset < len(block) else None
            if record is None and not found:
                # Larger than the block: it alone, since what follows could be any number of bytes.
                following = self._positions[first + 1 - self.first_index] if first < self.last_index else base + size
                block = segment.file.read(min(following, base + size) - position, start)
                record = read_record(block, 0, seed)
                if record is None or record.log_index != index:
                    raise Corrupt(self._storage.label(segment_name(segment.header.sequence)), start, "entry unreadable")
            if record is None:
                break
            found.append((record.payload, record.log_index, record.term))
        return found
