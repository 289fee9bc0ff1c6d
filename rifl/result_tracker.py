"""Completion records of one session: what is remembered of it, for how long, at which bound. RIFL §3.3 and §3.5.

Owns: the records, the ack that drops them, and the invariants below. What they mean for a request is
:mod:`oncegate.rifl.rule`'s to say.

Invariants; whoever is about to break one gets an InvariantViolation, and nothing has changed:

- a sequence number is recorded once, alone or in one range: a second record would hide a second execution;
- what is recorded is at least first incomplete and 1, and at most ``highest``;
- ranges are disjoint and in ascending order, and so are runs;
- a commit number is at least 1; only a seal has none;
- first incomplete never goes back, and is at most ``highest + window``.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

import msgspec

from oncegate.rifl.completion import FINGERPRINT_BYTES, SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import WINDOW_DEFAULT, CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.session import shared_int

RECORD_BYTES_MAX: Final = 16 * 2**20
"""Bytes of remembered results and range fingerprints of one session; over it QUOTA, before execution."""


class Sized(Protocol):
    """A result that knows how many bytes it occupies in memory."""

    @property
    def size(self) -> int:
        """Bytes, roughly."""


class ResultTracker(msgspec.Struct, gc=False):
    """Completion records of one session.

    Bounds: at most ``2 * window`` records and ranges; ``RECORD_BYTES_MAX`` of results. An idle session holds no
    container: both are made for the first record and dropped with the last. Not tracked by the collector: nothing
    in here can be part of a cycle, and a million trackers would be visited at each full collection.
    """

    window: int = WINDOW_DEFAULT
    first_incomplete: SequenceNumber = SequenceNumber(1)
    highest: SequenceNumber = SequenceNumber(0)
    bytes: int = 0
    _records: dict[int, CompletionRecord] | None = None
    _ranges: list[RangeRecord] | None = None
    _runs: list[RangeRecord] | None = None

    @property
    def records(self) -> Mapping[int, CompletionRecord]:
        """Records of single operations by sequence number, to be read only; those of runs are made for each look."""
        if self._runs is None:
            return self.kept_singly
        made = {number: _record_of(run, number) for run in self._runs for number in range(run.first, run.last + 1)}
        return {**made, **self.kept_singly}

    @property
    def records_count(self) -> int:
        """How many :attr:`records` there are."""
        return len(self.kept_singly) + sum([run.last - run.first + 1 for run in self.runs])

    @property
    def kept_singly(self) -> Mapping[int, CompletionRecord]:
        """Those of :attr:`records` that are in no run, to be read only."""
        return {} if self._records is None else self._records

    @property
    def runs(self) -> Sequence[RangeRecord]:
        """The other ones: runs in ascending order, to be read only."""
        return [] if self._runs is None else self._runs

    @property
    def ranges(self) -> Sequence[RangeRecord]:
        """Records of ranges in ascending order, to be read only."""
        return [] if self._ranges is None else self._ranges

    def record(
        self,
        sequence: SequenceNumber,
        fingerprint: Fingerprint,
        commit: CommitNumber,
        result: Sized | None = None,
        traceparent: str = "",
    ) -> CompletionRecord:
        """Remember an applied operation, in the transition that applied it, and return its record.

        Args:
            sequence: its sequence number; not recorded before.
            fingerprint: hash of its payload.
            commit: its commit number.
            result: what a replay answers, with its size in bytes; None for a plain ``applied``.
            traceparent: trace context of the request, at most 55 characters.

        Raises:
            InvariantViolation: it is recorded already or acknowledged, or the commit number is none.
        """
        if commit < 1:
            raise _uncommitted(sequence, commit)
        highest = self.highest
        if sequence <= highest or sequence < self.first_incomplete:
            self._require_new(sequence, sequence)
        record = CompletionRecord(fingerprint, commit, result, traceparent)
        if self._records is None:
            self._records = {sequence: record}
        else:
            self._records[sequence] = record
        if result is not None:
            self.bytes += result.size
        if sequence > highest:
            self.highest = sequence
        return record

    def seal(self, sequence: SequenceNumber) -> None:
        """Remember that an operation which is not recorded was never executed and never will be."""
        self._require_new(sequence, sequence)
        if self._records is None:
            self._records = {}
        self._records[sequence] = CompletionRecord(Fingerprint(0), SEALED_COMMIT)
        self.highest = max(self.highest, sequence)

    def record_range(self, record: RangeRecord) -> None:
        """Remember an applied range, disjoint from all that is recorded.

        Raises:
            InvariantViolation: it is not disjoint from it or from what is acknowledged, its length is not that of its
                fingerprints, or the commit number is none.
        """
        if len(record.fingerprints) != (record.last - record.first + 1) * FINGERPRINT_BYTES or not record.fingerprints:
            raise InvariantViolation(
                f"range {record.first}..{record.last} has {len(record.fingerprints)} bytes of prints"
            )
        if record.commit < 1:
            raise _uncommitted(record.first, record.commit)
        self._require_new(record.first, record.last)
        if self._ranges is None:
            self._ranges = [record]
        else:
            insort(self._ranges, record, key=_first)
        self.bytes += len(record.fingerprints)
        self.highest = max(self.highest, record.last)

    def record_run(self, record: RangeRecord) -> None:
        """Remember single operations under adjacent numbers that were plainly applied, each as :meth:`record` would.

        A run is a short form of as many records, not a range: each operation takes a place, and no bytes are counted.

        Raises:
            InvariantViolation: it is not above all that is recorded and acknowledged, its length is not that of its
                fingerprints, or the commit number is none.
        """
        if len(record.fingerprints) != (record.last - record.first + 1) * FINGERPRINT_BYTES or not record.fingerprints:
            raise InvariantViolation(f"run {record.first}..{record.last}: {len(record.fingerprints)} bytes of prints")
        if record.first <= self.highest or record.first < self.first_incomplete or record.commit < 1:
            raise InvariantViolation(f"run {record.first}..{record.last} is not above the highest, {self.highest}")
        if self._runs is None:
            self._runs = [record]
        else:
            self._runs.append(record)
        self.highest = record.last

    def _require_new(self, first: SequenceNumber, last: SequenceNumber) -> None:
        """Raise InvariantViolation unless ``first``..``last`` may be recorded now."""
        if first < max(1, self.first_incomplete):
            raise InvariantViolation(f"operation {first} is recorded below first incomplete {self.first_incomplete}")
        if first > self.highest:
            return
        # Of a single number nothing is searched: there may be as many records as the window has places.
        known = self.find(first) is not None if first == last else any(first <= s <= last for s in self.records)
        at = bisect_right(self.ranges, last, key=_first) - 1
        if known or (at >= 0 and self.ranges[at].last >= first):
            raise InvariantViolation(f"a record of operations {first} to {last} exists: they were executed twice")

    def acknowledge(self, first_incomplete: SequenceNumber) -> None:
        """Drop what the client has received; a smaller number than known is ignored (RIFL §3.5).

        Costs time in proportion to what is dropped, not to the number.
        """
        if first_incomplete <= self.first_incomplete or first_incomplete > self.highest + self.window:
            return
        if first_incomplete > self.highest:
            self.first_incomplete, self.bytes = first_incomplete, 0
            self._records = self._ranges = self._runs = None
            return
        if self._records is not None:
            self._drop_records(self._records, first_incomplete)
        self.first_incomplete = first_incomplete
        if self._ranges is not None and self._ranges[0].first < first_incomplete:
            self.bytes -= _bytes(self._ranges)
            self._ranges = _from(self._ranges, first_incomplete)
            self.bytes += _bytes(self.ranges)
        if self._runs is not None and self._runs[0].first < first_incomplete:
            self._runs = _from(self._runs, first_incomplete)

    def _drop_records(self, records: dict[int, CompletionRecord], first_incomplete: int) -> None:
        gone: Iterable[int]
        if first_incomplete - self.first_incomplete <= len(records):
            gone = range(self.first_incomplete, first_incomplete)
        else:
            gone = [s for s in records if s < first_incomplete]
        if not self.bytes:
            for sequence in gone:
                records.pop(sequence, None)
        else:
            for sequence in gone:
                record = records.pop(sequence, None)
                if record is not None and record.result is not None:
                    self.bytes -= record.result.size
        if not records:
            self._records = None

    def is_over_bytes(self, first_incomplete: int) -> bool:
        """Tell whether results are over ``RECORD_BYTES_MAX`` even once this ack is processed.

        Without the ack a session over its bytes would refuse the very request that makes room.
        """
        if self.bytes <= RECORD_BYTES_MAX:
            return False
        freed: int = sum(
            record.result.size
            for sequence, record in self.kept_singly.items()
            if sequence < first_incomplete and record.result is not None
        )
        for part in self.ranges:
            if part.first < first_incomplete:
                freed += FINGERPRINT_BYTES * (min(part.last + 1, first_incomplete) - part.first)
        return self.bytes - freed > RECORD_BYTES_MAX

    def has_gap(self, base: int, sequence: int) -> bool:
        """Tell whether anything from ``base`` up to, not including, ``sequence`` is not recorded."""
        singles = sum(base <= s < sequence for s in self.records)
        return (
            singles
            + sum(
                min(r.last, sequence - 1) - max(r.first, base) + 1
                for r in self.ranges
                if r.last >= base and r.first < sequence
            )
            < sequence - base
        )

    def held(self, base: int) -> int:
        """Count the records and ranges that an ack of ``base`` leaves."""
        return sum(s >= base for s in self.records) + sum(r.last >= base for r in self.ranges)

    def find(self, sequence: int) -> CompletionRecord | None:
        """Return the record of an operation, alone, in a run or in a range, or None."""
        record = None if self._records is None else self._records.get(sequence)
        if record is None and self._runs is not None:
            record = _found(self._runs, sequence)
        return _found(self._ranges, sequence) if record is None and self._ranges is not None else record

    def open_requests(self, after: int, limit: int) -> list[tuple[int, int, CompletionRecord | RangeRecord | None]]:
        """Return up to ``limit`` runs of sequence numbers above ``after`` that are not acknowledged, ascending.

        A run has a first and a last number, and a record, a range's record, or None for numbers below ``highest`` that
        were never seen.
        """
        marks: list[tuple[int, int, CompletionRecord | RangeRecord | None]] = [
            *((sequence, sequence, record) for sequence, record in self.records.items()),
            *((part.first, part.last, part) for part in self.ranges),
        ]
        marks.sort(key=itemgetter(0))
        runs: list[tuple[int, int, CompletionRecord | RangeRecord | None]] = []
        at = max(1, self.first_incomplete)
        for first, last, record in marks:
            if at < first:
                runs.append((at, first - 1, None))
            runs.append((first, last, record))
            at = last + 1
        return [run for run in runs if run[1] > after][:limit]

    def places(self, sequence: int, base: int, gap_unit: int = 1) -> int:
        """Count the places from ``base`` up to, not including, ``sequence``.

        Args:
            sequence: where the candidate starts.
            base: effective first incomplete.
            gap_unit: how many missing sequence numbers share a place (``RANGE_LENGTH_MAX`` below a range).
        """
        places, at = 0, base
        singles = sorted(s for s in self.records if base <= s < sequence) if gap_unit > 1 else []
        marks = sorted([(s, s) for s in singles] + [(r.first, r.last) for r in self.ranges if r.last >= base])
        for first, last in marks:
            if first >= sequence:
                break
            if first > at:
                places += -((at - first) // gap_unit)
            places += 1
            at = max(at, last + 1)
        return places + max(0, -((at - sequence) // gap_unit))

    @classmethod
    def restore(
        cls,
        window: int,
        first_incomplete: SequenceNumber,
        highest: SequenceNumber,
        records: dict[int, CompletionRecord],
        ranges: list[RangeRecord],
        runs: list[RangeRecord] | None = None,
    ) -> ResultTracker:
        """Return the tracker that held these; ``ranges`` and ``runs`` in ascending order. Takes over the containers.

        Raises:
            InvariantViolation: no tracker can have held these.
        """
        runs = runs or []
        for name, parts in (("range", ranges), ("run", runs)):
            end = max(1, first_incomplete)
            for part in parts:
                if not end <= part.first <= part.last:
                    raise InvariantViolation(f"saved {name} {part.first}..{part.last} overlaps what is below {end}")
                end = part.last + 1
        if records and min(records) < first_incomplete:
            raise InvariantViolation(f"saved record {min(records)} is below first incomplete {first_incomplete}")
        if max((0, *records, *[part.last for parts in (ranges, runs) for part in parts[-1:]])) > highest:
            raise InvariantViolation(f"a saved record is above {highest}, the highest number seen")
        tracker = cls(shared_int(window), first_incomplete, highest, 0, records or None, ranges or None, runs or None)
        if records:
            tracker.bytes = sum(record.result.size for record in records.values() if record.result is not None)
        if ranges:
            tracker.bytes += sum(len(part.fingerprints) for part in ranges)
        return tracker

    def dump(self) -> list[Any]:
        """Return the state as plain data for a snapshot or a hash, equal on equal replicas."""
        return [
            self.window,
            self.first_incomplete,
            self.highest,
            sorted(self.records.items()),
            list(self.ranges),
        ]


def _uncommitted(sequence: int, commit: int) -> InvariantViolation:
    return InvariantViolation(f"operation {sequence} was executed under commit number {commit}")


def _first(record: RangeRecord) -> SequenceNumber:
    return record.first


def _bytes(ranges: Sequence[RangeRecord]) -> int:
    return sum([len(part.fingerprints) for part in ranges])


def _found(parts: Sequence[RangeRecord], sequence: int) -> CompletionRecord | None:
    at = bisect_right(parts, sequence, key=_first) - 1
    return None if at < 0 or parts[at].last < sequence else _record_of(parts[at], sequence)


def _record_of(part: RangeRecord, sequence: int) -> CompletionRecord:
    fingerprint = Fingerprint(int.from_bytes(part.slice(sequence, sequence), "big"))
    return CompletionRecord(fingerprint, part.commit_of(sequence), None, part.traceparent)


def _from(parts: list[RangeRecord], first: SequenceNumber) -> list[RangeRecord] | None:
    """Return what is left from ``first`` on; None for nothing."""
    return [part if part.first >= first else _cut(part, first) for part in parts if part.last >= first] or None


def _cut(part: RangeRecord, first: SequenceNumber) -> RangeRecord:
    return RangeRecord(first, part.last, part.commit_of(first), part.slice(first, part.last), part.traceparent)
