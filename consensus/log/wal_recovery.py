"""Opening a journal: replay, tell a torn tail from corruption, take up where the flushes ended.

Nothing is modified before everything has been checked. Bytes that had been flushed and are missing or changed refuse
the start, naming file and offset; see :mod:`oncegate.consensus.log.segment` for how that is decided.

What was read need not be on the disk. A killed process leaves its last batch in the page cache, and after a flush that
failed the kernel calls those pages clean: reading returns them, and flushing them again succeeds without writing them.
So recovery writes the last batch over itself, flushes, and only then says that the log holds it
(docs/decisions/0016-a-failed-flush.md). All before the last batch is known to be on the disk: the batch was begun after
a flush that succeeded. The same goes for names: the directory is flushed before anything relies on a segment.
Read next: :mod:`oncegate.consensus.log.wal`.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.entries import Entries
from oncegate.consensus.log.log_base import BASE_FILE, NO_BASE, load_start
from oncegate.consensus.log.segment import (
    KIND_ENTRY,
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    RecordKind,
    SegmentRecord,
    decode_header,
    is_torn,
    proof_of_flush,
    scan,
    segment_name,
)
from oncegate.consensus.log.segment_file import Segment
from oncegate.consensus.log.storage import File, Storage
from oncegate.consensus.ports import SavedPoint


@dataclass(slots=True)
class RecoveredLog:
    """What was found on disk; the entries are in the log."""

    segments: list[Segment]
    end: int
    """Position of the next record."""
    prior_end: int
    spare: Segment | None


@dataclass(frozen=True, slots=True)
class _Torn:
    """Bytes behind the last valid record of a segment: a batch that power loss cut before it was flushed."""

    file: File
    label: str
    start: int
    stop: int


class ReplayedEntries(Entries):
    """Entries that were read from segments."""

    def __init__(self, memory_bytes_max: int) -> None:
        super().__init__(memory_bytes_max)
        self.commit_index = 0
        """What the next record says is committed; after opening, what the journal knows to be."""
        self._published = NO_BASE
        self._whole = True
        """No entry of the log can lie in a segment that was removed."""
        self._last_batch = 0
        """While replaying: position at which the batch written last begins; everything before it was flushed."""

    def _recover(self, storage: Storage) -> RecoveredLog | None:
        """Replay a locked directory; None when it has no journal yet.

        Raises:
            Corrupt: bytes that had been flushed are missing or changed. Nothing is modified then.
        """
        opened: list[File] = []
        try:
            return self._replay_all(storage, opened)
        except BaseException:
            for file in opened:
                file.close()
            raise

    def _replay_all(self, storage: Storage, opened: list[File]) -> RecoveredLog | None:
        start = load_start(storage)
        found = [
            int(name.removesuffix(SEGMENT_SUFFIX).rpartition("-")[2])
            for name in storage.names()
            if name.endswith(SEGMENT_SUFFIX)
        ]
        if not found and start.prior_end is None:
            return None
        # How the log stood at the start of the first segment: the base may lie before or behind that.
        self._restart_at(SavedPoint(start.last_index, start.last_term, b""))
        self._published = start.base
        self._whole = start.prior_end is None
        segments: list[Segment] = []
        ends: list[int] = []
        torn: list[_Torn] = []
        wanted = [sequence for sequence in found if sequence >= start.sequence] or [start.sequence + 1]
        for sequence in wanted:
            label = storage.label(segment_name(sequence))
            expected = start.sequence + len(segments)
            if sequence != expected:
                raise Corrupt(storage.label(segment_name(expected)), 0, "the segment is missing")
            file = storage.open(segment_name(sequence))
            opened.append(file)
            data = file.read(file.size(), 0)
            header = decode_header(data, label=label, sequence=sequence, size=len(data))
            if segments:
                before = segments[-1].header
                if header.base != before.base + before.size:
                    raise Corrupt(label, 0, "segment does not follow the one before it")
                prior_end = before.base + ends[-1]
            else:
                prior_end = header.base + SEGMENT_HEADER_BYTES if start.prior_end is None else start.prior_end
            segment = Segment(header, file, prior_end, self.last_index, self.last_term)
            before_label = storage.label(segment_name(sequence - 1)) if segments else label
            offset = self._replay(data, segment, label, (before_label, ends[-1] if ends else 0), torn)
            used = len(data.rstrip(b"\0"))
            if used > offset:
                proof = proof_of_flush(data, offset, header)
                if proof is not None:
                    raise Corrupt(label, offset, f"not a valid record, but the record at {proof} says it was flushed")
                if not is_torn(data, offset, header.seed):
                    raise Corrupt(label, offset, "not a valid record, and not a torn write: no sector of it is missing")
                torn.append(_Torn(file, label, offset, used))
            segments.append(segment)
            ends.append(offset)
        self._check_whole(storage, segments[-1], ends[-1])
        return self._take_up(storage, segments, ends, torn, [one for one in found if one < start.sequence])

    def _replay(self, data: bytes, segment: Segment, label: str, before: tuple[str, int], torn: list[_Torn]) -> int:
        """Apply a segment's records to the index; returns the offset behind the last valid one."""
        header = segment.header
        end = SEGMENT_HEADER_BYTES
        prior_end = segment.prior_end
        base = header.base
        for record in scan(data, end, header.seed):
            if record.prior_end != prior_end:
                if end == SEGMENT_HEADER_BYTES and prior_end != base + SEGMENT_HEADER_BYTES:
                    raise Corrupt(*before, "records at the end are missing")
                if record.prior_end != base + record.offset:
                    raise Corrupt(label, record.offset, "the batch does not follow the one before it")
                prior_end = record.prior_end
            if torn:
                raise Corrupt(torn[0].label, torn[0].start, "not a valid record, but a later segment was written")
            self._replay_record(record, base, label)
            end = record.offset + RECORD_HEADER_BYTES + len(record.payload)
        if end > SEGMENT_HEADER_BYTES:
            self._last_batch = prior_end
        return end

    def _replay_record(self, record: SegmentRecord, base: int, label: str) -> None:
        index = record.log_index
        if record.kind == KIND_ENTRY:
            if index != self.last_index + 1 or record.term < self.last_term:
                raise Corrupt(label, record.offset, f"entry {index} after entry {self.last_index}")
            self._remember((record.payload, index, record.term), base + record.offset)
            self._evict()
        elif record.kind == RecordKind.TRUNCATE:
            if not (self.first_index if self._whole else 1) <= index <= self.last_index:
                raise Corrupt(label, record.offset, f"truncation at {index} of {self.last_index} entries")
            if index < self.first_index:
                # It reaches into a segment that was removed; what was written next begins the log.
                self._restart_at(SavedPoint(index - 1, 0, b""))
            else:
                self._forget_from(index)
        elif record.kind == RecordKind.RESET:
            self._restart_at(SavedPoint(index, record.term, record.payload))
            self._whole = True
            if index >= self._published.index:
                self._published = self.base
        elif record.kind != RecordKind.SEAL:
            raise Corrupt(label, record.offset, f"unknown kind of record {record.kind}")
        self.commit_index = max(self.commit_index, record.commit)

    def _check_whole(self, storage: Storage, last: Segment, end: int) -> None:
        """The log must reach the base, begin behind it at the latest, and hold all that is known to be committed."""
        base = self._published
        if not self.first_index - 1 <= base.index <= self.last_index:
            held = f"the log has entries {self.first_index} to {self.last_index}, the base is {base.index}"
            raise Corrupt(storage.label(BASE_FILE), 0, held)
        if base.index >= self.first_index and self.term_at(base.index) != base.term:
            raise Corrupt(storage.label(BASE_FILE), 0, f"the log has another entry {base.index}")
        if self.commit_index > self.last_index:
            label = storage.label(segment_name(last.header.sequence))
            raise Corrupt(label, end, "committed entries are missing at the end")
        self._forget_to(base)
        self.commit_index = max(self.commit_index, base.index)

    def _take_up(
        self, storage: Storage, segments: list[Segment], ends: list[int], torn: list[_Torn], unneeded: list[int]
    ) -> RecoveredLog:
        """Choose the segment to go on with, write what may not be on the disk, flush it, and clean up.

        Raises:
            OSError: the disk failed; another start finds the same log.
        """
        active = max((number for number, end in enumerate(ends) if end > SEGMENT_HEADER_BYTES), default=0)
        for tail in torn:
            # Left in place, old bytes could one day line up behind a new, shorter batch.
            tail.file.write([bytes(tail.stop - tail.start)], tail.start)
            tail.file.sync()
        last = segments[active]
        start = max(self._last_batch - last.header.base, SEGMENT_HEADER_BYTES)
        if start < ends[active]:
            last.file.write([last.file.read(ends[active] - start, start)], start)
            last.file.sync()
        storage.sync_directory()
        for sequence in unneeded:
            storage.remove(segment_name(sequence))
        spares = segments[active + 1 :]
        for surplus in spares[1:]:
            surplus.file.close()
            storage.remove(segment_name(surplus.header.sequence))
        end = segments[active].header.base + ends[active]
        empty = ends[active] == SEGMENT_HEADER_BYTES
        return RecoveredLog(
            segments=segments[: active + 1],
            end=end,
            prior_end=segments[active].prior_end if empty else end,
            spare=spares[0] if spares else None,
        )
