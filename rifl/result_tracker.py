"""The apply rule: is this operation new, a replay, or refused? RIFL §3.4, server half.

Runs inside the state machine on every replica, from the log entry alone. First row that holds decides:

| row | condition | verdict |
|---|---|---|
| 1 | first incomplete of the request > its sequence number, or > highest seen + window | BAD_ACK |
| 2 | no such session | SESSION_EXPIRED |
| 3 | epoch of the request older than the session's | FENCED |
| 4 | sequence number < first incomplete of the session | STALE |
| 4a | the record says that the id was sealed (:mod:`oncegate.rifl.resolve_rule`) | SEALED |
| 5 | completion record exists, fingerprint equal | REPLAY |
| 6 | completion record exists, fingerprint differs | PAYLOAD_MISMATCH |
| 7 | lease ended | SESSION_EXPIRED |
| 8 | sequence number >= max(first incomplete of session, of request) + window, in places | WINDOW_FULL |
| 9 | otherwise | EXECUTE |

After EXECUTE the caller applies the operation and calls :meth:`ResultTracker.record` in the same transition, then
:meth:`ResultTracker.acknowledge`; after REPLAY it acknowledges too; otherwise nothing changes.

A *place* is what the window counts: one operation, or one recorded range whatever its length. A gap below a
sequence number counts one place an operation; below a range, one place for each ``RANGE_LENGTH_MAX`` of it,
since ranges may be missing there. Ranges are decided in :mod:`oncegate.rifl.range_rule`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import msgspec

from oncegate.rifl.completion import FINGERPRINT_BYTES, SEALED_COMMIT, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import WINDOW_DEFAULT
from oncegate.rifl.session import Session, shared_int

RECORD_BYTES_MAX: Final = 16 * 2**20
"""Bytes of remembered results and range fingerprints of one session; over it QUOTA, before execution."""


class Sized(Protocol):
    """A result that knows how many bytes it occupies in memory."""

    @property
    def size(self) -> int:
        """Bytes, roughly."""


class Verdict(Enum):
    """What the apply rule says of one operation; the value is the error code, if it is a refusal."""

    EXECUTE = None
    REPLAY = None, "replay"
    BAD_ACK = Code.BAD_ACK
    SESSION_EXPIRED = Code.SESSION_EXPIRED
    FENCED = Code.FENCED
    STALE = Code.STALE
    PAYLOAD_MISMATCH = Code.PAYLOAD_MISMATCH
    WINDOW_FULL = Code.WINDOW_FULL
    QUOTA = Code.QUOTA
    NOT_FOUND = Code.NOT_FOUND
    BAD_REQUEST = Code.BAD_REQUEST
    FORBIDDEN = Code.FORBIDDEN
    SEALED = Code.STALE, "sealed"

    @property
    def code(self) -> Code | None:
        """The refusal's code; None for EXECUTE and REPLAY."""
        value = self.value[0] if isinstance(self.value, tuple) else self.value
        return value if isinstance(value, Code) else None


class Standing(Enum):
    """What rows 2, 3 and 7 need of the session; the same for all operations of one request."""

    LIVE = 0
    FENCED = 1
    ENDED = 2


def decide_without_session(sequence: int, first_incomplete: int) -> Verdict:
    """Apply rows 1 and 2 where there is no session: never treated as new."""
    return Verdict.BAD_ACK if first_incomplete > sequence else Verdict.SESSION_EXPIRED


def standing(session: Session, epoch: int, now_ms: int) -> Standing:
    """Say how a request of ``epoch`` stands at cluster time ``now_ms``; an epoch never given out is fenced too."""
    if epoch != session.epoch:
        return Standing.FENCED
    if session.ends_ms < now_ms:
        return Standing.ENDED
    return Standing.LIVE


class ResultTracker(msgspec.Struct, gc=False):
    """Completion records of one session, and the rule that reads them.

    Bounds: at most ``2 * window`` records and ranges; ``RECORD_BYTES_MAX`` of results. An idle session holds no
    container: both are made for the first record and dropped with the last. Not tracked by the collector: nothing
    in here can be part of a cycle, and a million trackers would be visited at each full collection.
    """

    window: int = WINDOW_DEFAULT
    first_incomplete: int = 1
    highest: int = 0
    bytes: int = 0
    _records: dict[int, CompletionRecord] | None = None
    _ranges: list[RangeRecord] | None = None

    @property
    def records(self) -> Mapping[int, CompletionRecord]:
        """Records of single operations by sequence number, to be read only."""
        return {} if self._records is None else self._records

    @property
    def ranges(self) -> Sequence[RangeRecord]:
        """Records of ranges in ascending order, to be read only."""
        return [] if self._ranges is None else self._ranges

    def new_below(self, first_incomplete: int, stand: Standing) -> int:
        """Return the number below which the rule says EXECUTE of all above :attr:`highest`; 0 if it may say otherwise.

        The usual case, so that a request of new operations costs two comparisons an operation. It holds
        while :attr:`bytes` is at most ``RECORD_BYTES_MAX``, whatever of the request has been recorded since.
        """
        base = self.first_incomplete if self.first_incomplete > first_incomplete else first_incomplete
        return base + self.window if stand is _LIVE and base <= self.highest + 1 else 0

    def decide(
        self, sequence: int, first_incomplete: int, fingerprint: int, stand: Standing
    ) -> tuple[Verdict, CompletionRecord | None]:
        """Apply the rule to one operation; changes nothing.

        Returns:
            The verdict, and with REPLAY the record to answer from.
        """
        if first_incomplete > sequence or first_incomplete > self.highest + self.window:  # row 1
            return _BAD_ACK
        if stand is Standing.FENCED:  # row 3 (row 2: see decide_without_session)
            return _FENCED
        if sequence < self.first_incomplete:  # row 4
            return _STALE
        record = None if self._records is None else self._records.get(sequence)
        if record is None and self._ranges is not None:
            record = self._of_range(sequence)
        if record is not None:
            if not record.commit:  # row 4a
                return _SEALED
            if record.fingerprint == fingerprint:  # row 5
                return Verdict.REPLAY, record
            return _PAYLOAD_MISMATCH  # row 6
        if stand is Standing.ENDED:  # row 7
            return _SESSION_EXPIRED
        base = self.first_incomplete if self.first_incomplete > first_incomplete else first_incomplete
        if sequence >= base + self.window and self.places(sequence, base) >= self.window:  # row 8
            return _WINDOW_FULL
        if self.is_over_bytes(first_incomplete):
            return _QUOTA
        return _EXECUTE  # row 9

    def record(
        self, sequence: int, fingerprint: int, commit: int, result: Sized | None = None, traceparent: str = ""
    ) -> CompletionRecord:
        """Remember an applied operation, in the transition that applied it, and return its record.

        Args:
            sequence: its sequence number; not recorded before.
            fingerprint: hash of its payload.
            commit: its commit number.
            result: what a replay answers, with its size in bytes; None for a plain ``applied``.
            traceparent: trace context of the request, at most 55 characters.
        """
        record = CompletionRecord(fingerprint, commit, result, traceparent)
        if self._records is None:
            self._records = {sequence: record}
        else:
            self._records[sequence] = record
        if result is not None:
            self.bytes += result.size
        if sequence > self.highest:
            self.highest = sequence
        return record

    def seal(self, sequence: int) -> None:
        """Remember that an operation which is not recorded was never executed and never will be."""
        self.record(sequence, 0, SEALED_COMMIT)

    def record_range(self, record: RangeRecord) -> None:
        """Remember an applied range, disjoint from all that is recorded."""
        ranges = self._ranges
        if ranges is None:
            self._ranges = [record]
        elif ranges[-1].first > record.first:
            ranges.insert(bisect_right(ranges, record.first, key=_first), record)
        else:
            ranges.append(record)
        self.bytes += len(record.fingerprints)
        if record.last > self.highest:
            self.highest = record.last

    def acknowledge(self, first_incomplete: int) -> None:
        """Drop what the client has received; a smaller number than known is ignored (RIFL §3.5).

        Costs time in proportion to what is dropped, not to the number.
        """
        if first_incomplete <= self.first_incomplete or first_incomplete > self.highest + self.window:
            return
        if first_incomplete > self.highest:
            self.first_incomplete, self.bytes = first_incomplete, 0
            self._records = self._ranges = None
            return
        if self._records is not None:
            self._drop_records(self._records, first_incomplete)
        self.first_incomplete = first_incomplete
        if self._ranges is not None and self._ranges[0].first < first_incomplete:
            kept: list[RangeRecord] = []
            for part in self._ranges:
                if part.last < first_incomplete:
                    self.bytes -= len(part.fingerprints)
                elif part.first < first_incomplete:
                    rest = _cut(part, first_incomplete)
                    self.bytes -= len(part.fingerprints) - len(rest.fingerprints)
                    kept.append(rest)
                else:
                    kept.append(part)
            self._ranges = kept or None

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
            for sequence, record in self.records.items()
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
        """Return the record of an operation, alone or in a range, or None."""
        return self.records.get(sequence) or self._of_range(sequence)

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
        if sequence > at:
            places += -((at - sequence) // gap_unit)
        return places

    def _of_range(self, sequence: int) -> CompletionRecord | None:
        ranges = self.ranges
        at = bisect_right(ranges, sequence, key=_first) - 1
        if at < 0 or ranges[at].last < sequence:
            return None
        part = ranges[at]
        fingerprint = int.from_bytes(part.slice(sequence, sequence), "big")
        return CompletionRecord(fingerprint, part.commit_of(sequence), None, part.traceparent)

    @classmethod
    def restore(
        cls,
        window: int,
        first_incomplete: int,
        highest: int,
        records: dict[int, CompletionRecord],
        ranges: list[RangeRecord],
    ) -> ResultTracker:
        """Return the tracker that held these; ``ranges`` in ascending order. Takes over both containers."""
        tracker = cls(shared_int(window), first_incomplete, highest, 0, records or None, ranges or None)
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


def _first(record: RangeRecord) -> int:
    return record.first


def _cut(part: RangeRecord, first: int) -> RangeRecord:
    return RangeRecord(first, part.last, part.commit_of(first), part.slice(first, part.last), part.traceparent)


_LIVE = Standing.LIVE
_BAD_ACK = (Verdict.BAD_ACK, None)
_SESSION_EXPIRED = (Verdict.SESSION_EXPIRED, None)
_FENCED = (Verdict.FENCED, None)
_STALE = (Verdict.STALE, None)
_SEALED = (Verdict.SEALED, None)
_PAYLOAD_MISMATCH = (Verdict.PAYLOAD_MISMATCH, None)
_WINDOW_FULL = (Verdict.WINDOW_FULL, None)
_QUOTA = (Verdict.QUOTA, None)
_EXECUTE = (Verdict.EXECUTE, None)
