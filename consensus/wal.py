"""The journal: Raft's log in segment files, one write and one flush a batch.

Owns the log's segments on disk and its entries. Entries are appended to a batch and become durable at
:meth:`Journal.flush`; the newest ``memory_bytes_max`` stay in memory, older ones are read back from the segments.
The next segment is made by a worker while the current one fills: written with zeros and flushed, so
that flushing a batch writes no metadata. Knows nothing of PySyncObj, elections or peers.
Read next: :mod:`consensus.entries`, :mod:`consensus.segment` for the format and the recovery rule.
"""

from __future__ import annotations

import secrets
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from consensus.entries import Entries, Entry
from consensus.errors import Corrupt, SafetyViolation
from consensus.sealed_file import TEMPORARY_SUFFIX
from consensus.segment import (
    KIND_ENTRY,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    Kind,
    Record,
    SegmentHeader,
    decode_header,
    encode_header,
    encode_record,
    proof_of_flush,
    read_record,
    scan,
    segment_name,
)
from consensus.storage import File, Storage

_PREWRITE_BYTES = 1024 * 1024
_FLUSHES_REMEMBERED = 1024


class Worker(Protocol):
    """Runs the making of a segment; a thread pool in a node, inline in a simulation."""

    def submit(self, job: Callable[[], _Segment], /) -> Future[_Segment]:
        """Start the job."""


@dataclass(slots=True)
class _Segment:
    header: SegmentHeader
    file: File


class Journal(Entries):
    """Raft's log. One owner; not thread-safe (only the making of the next segment runs elsewhere)."""

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
        self.commit_index = 0
        """What the next record says is committed; after opening, what the journal knows to be."""
        self.flushes = 0
        self._batch: list[bytes] = []
        self._flush_seconds: deque[float] = deque(maxlen=_FLUSHES_REMEMBERED)
        self._segments: list[_Segment] = []
        self._bases: list[int] = []
        self._spare: Future[_Segment] | None = None
        self._end = 0
        self._batch_start = 0
        self._prior_end = 0
        self._opened: list[File] = []
        try:
            self._recover()
        except BaseException:
            for file in self._opened:
                file.close()
            raise

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def bytes_used(self) -> int:
        """Bytes from the first segment's start to the end of the log."""
        return self._end - self._bases[0]

    @property
    def dirty(self) -> bool:
        """Something was appended since the last flush."""
        return bool(self._batch)

    @property
    def flush_seconds(self) -> list[float]:
        """Durations of the latest flushes, oldest first."""
        return list(self._flush_seconds)

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
            self._add_record(int(Kind.TRUNCATE), index, self.last_term, b"")
            self._forget_from(index)

    def flush(self) -> None:
        """Make everything appended durable: one write, one flush; nothing when the batch is empty.

        Raises:
            OSError: the disk failed. What is durable is then unknown, so the caller must end the process.
        """
        if not self._batch:
            return
        started = time.perf_counter()
        segment = self._segments[-1]
        segment.file.write(self._batch, self._batch_start - segment.header.base)
        segment.file.sync()
        self._flush_seconds.append(time.perf_counter() - started)
        self.flushes += 1
        self._batch.clear()
        self._batch_start = self._prior_end = self._end
        self.flushed_index = self.last_index
        self._evict()

    def close(self) -> None:
        """Flush, seal and close; a sealed journal accepts no torn tail at the next start."""
        self._add_record(int(Kind.SEAL), self.last_index, self.last_term, b"")
        self.flush()
        self.abandon()

    def abandon(self) -> None:
        """Close the files without flushing."""
        if self._spare is not None:
            self._spare.result().file.close()
            self._spare = None
        for segment in self._segments:
            segment.file.close()
        self._segments.clear()

    # -- inside ----------------------------------------------------------------------------------------

    def _add_record(self, kind: int, index: int, term: int, payload: bytes) -> int:
        size = RECORD_HEADER_BYTES + len(payload)
        header = self._segments[-1].header
        while self._end + size > header.base + header.size:
            self._roll()
            header = self._segments[-1].header
        position = self._end
        self._batch.append(encode_record(header.seed, kind, index, term, self.commit_index, self._prior_end, payload))
        if payload:
            self._batch.append(payload)
        self._end = position + size
        return position

    def _roll(self) -> None:
        # A batch never spans segments: what is prepared is flushed first, so that a torn tail is always the
        # tail of one file.
        self.flush()
        spare = self._spare
        if spare is None:
            raise SafetyViolation("the journal is closed")
        self._enter(spare.result())
        self._prepare_spare()

    def _enter(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self._bases.append(segment.header.base)
        self._end = self._batch_start = segment.header.base + SEGMENT_HEADER_BYTES

    def _prepare_spare(self) -> None:
        last = self._segments[-1].header
        header = SegmentHeader(last.sequence + 1, last.base + last.size, self._segment_bytes, secrets.randbits(32))
        storage = self._storage
        self._spare = self._worker.submit(lambda: _make_segment(storage, header))

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
                block = segment.file.read(size - start, start)
                record = read_record(block, 0, seed)
                if record is None or record.log_index != index:
                    raise Corrupt(self._storage.label(segment_name(segment.header.sequence)), start, "entry unreadable")
            if record is None:
                break
            found.append((record.payload, record.log_index, record.term))
        return found

    # -- recovery --------------------------------------------------------------------------------------

    def _recover(self) -> None:
        sequences = [
            int(name.removesuffix(SEGMENT_SUFFIX).rpartition("-")[2])
            for name in self._storage.names()
            if name.endswith(SEGMENT_SUFFIX)
        ]
        if not sequences:
            header = SegmentHeader(1, 0, self._segment_bytes, secrets.randbits(32))
            self._enter(_make_segment(self._storage, header))
            self._prior_end = self._end
            self._prepare_spare()
            return
        segments: list[_Segment] = []
        ends: list[int] = []
        cleanups: list[tuple[File, int, int]] = []
        torn: tuple[str, int] | None = None
        for sequence in sequences:
            label = self._storage.label(segment_name(sequence))
            if sequence != sequences[0] + len(segments):
                raise Corrupt(label, 0, f"segment {sequences[0] + len(segments)} before it is missing")
            file = self._storage.open(segment_name(sequence))
            self._opened.append(file)
            data = file.read(file.size(), 0)
            header = decode_header(data, label=label, sequence=sequence, size=len(data))
            if segments and header.base != segments[-1].header.base + segments[-1].header.size:
                raise Corrupt(label, 0, "segment does not follow the one before it")
            offset = self._replay(data, header, label, segments, ends, torn)
            used = len(data.rstrip(b"\0"))
            if used > offset:
                proof = proof_of_flush(data, offset, header)
                if proof is not None:
                    raise Corrupt(label, offset, f"not a valid record, but the record at {proof} says it was flushed")
                torn = (label, offset)
                cleanups.append((file, offset, used))
            segments.append(_Segment(header, file))
            ends.append(offset)
        self._adopt(segments, ends, cleanups)

    def _replay(
        self,
        data: bytes,
        header: SegmentHeader,
        label: str,
        segments: list[_Segment],
        ends: list[int],
        torn: tuple[str, int] | None,
    ) -> int:
        """Apply a segment's records to the index; returns the offset behind the last valid one."""
        end = SEGMENT_HEADER_BYTES
        prior_end = segments[-1].header.base + ends[-1] if segments else header.base + SEGMENT_HEADER_BYTES
        base = header.base
        for record in scan(data, end, header.seed):
            if record.prior_end != prior_end:
                if end == SEGMENT_HEADER_BYTES and segments:
                    before = segments[-1].header
                    raise Corrupt(
                        self._storage.label(segment_name(before.sequence)), ends[-1], "records at the end are missing"
                    )
                if record.prior_end != base + record.offset:
                    raise Corrupt(label, record.offset, "the batch does not follow the one before it")
                prior_end = record.prior_end
            if torn is not None:
                raise Corrupt(*torn, "not a valid record, but a later segment was written")
            self._replay_record(record, base, label)
            end = record.offset + RECORD_HEADER_BYTES + len(record.payload)
        return end

    def _replay_record(self, record: Record, base: int, label: str) -> None:
        if record.kind == KIND_ENTRY:
            if record.log_index != self.last_index + 1 or record.term < self.last_term:
                raise Corrupt(label, record.offset, f"entry {record.log_index} after entry {self.last_index}")
            self._remember((record.payload, record.log_index, record.term), base + record.offset)
            self._evict()
        elif record.kind == Kind.TRUNCATE:
            if not self.first_index <= record.log_index <= self.last_index:
                raise Corrupt(label, record.offset, f"truncation at {record.log_index} of {self.last_index} entries")
            self._forget_from(record.log_index)
        elif record.kind != Kind.SEAL:
            raise Corrupt(label, record.offset, f"unknown kind of record {record.kind}")
        self.commit_index = max(self.commit_index, record.commit)

    def _adopt(self, segments: list[_Segment], ends: list[int], cleanups: list[tuple[File, int, int]]) -> None:
        """Choose the segment to go on with, wipe torn bytes, and flush what only the page cache may hold."""
        if self.commit_index > self.last_index:
            header = segments[-1].header
            raise Corrupt(
                self._storage.label(segment_name(header.sequence)), ends[-1], "committed entries are missing at the end"
            )
        active = max((number for number, end in enumerate(ends) if end > SEGMENT_HEADER_BYTES), default=0)
        for file, start, stop in cleanups:
            # Left in place, old bytes could one day line up behind a new, shorter batch.
            file.write([bytes(stop - start)], start)
            file.sync()
        for segment in segments[: active + 1]:
            segment.file.sync()
            self._segments.append(segment)
            self._bases.append(segment.header.base)
        self._end = self._batch_start = self._prior_end = self._bases[-1] + ends[active]
        self.flushed_index = self.last_index
        spares = segments[active + 1 :]
        if spares:
            self._spare = Future()
            self._spare.set_result(spares[0])
            for surplus in spares[1:]:
                surplus.file.close()
                self._storage.remove(segment_name(surplus.header.sequence))
        else:
            self._prepare_spare()


def _make_segment(storage: Storage, header: SegmentHeader) -> _Segment:
    """Create a segment that is zero to its end, durable, and published under its name."""
    name = segment_name(header.sequence)
    file = storage.create(name + TEMPORARY_SUFFIX, header.size)
    zeros = bytes(_PREWRITE_BYTES)
    for offset in range(0, header.size, _PREWRITE_BYTES):
        # In pieces, each flushed: the batches of the segment in use queue behind one piece at most.
        file.write([zeros[: min(_PREWRITE_BYTES, header.size - offset)]], offset)
        file.sync()
    file.write([encode_header(header)], 0)
    file.sync()
    storage.rename(name + TEMPORARY_SUFFIX, name)
    storage.sync_directory()
    return _Segment(header, file)
