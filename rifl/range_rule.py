"""The apply rule for ranges: one decision for ten thousand operations (SEMANTICS, *Ranges*).

A range is a run of contiguous sequence numbers of one session. The table of :mod:`oncegate.rifl.rule` holds as if
each operation had come alone; where verdicts differ the range is split. A range that meets nothing recorded,
the normal case, costs one comparison with the newest record. Departure from RIFL, which has no ranges.
"""

from __future__ import annotations

import msgspec

from oncegate.rifl.completion import FINGERPRINT_BYTES, SEALED_COMMIT, RangeRecord
from oncegate.rifl.ids import CommitNumber, SequenceNumber
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Standing, is_range_beyond_window


class NewPart(msgspec.Struct, frozen=True, gc=False):
    """Operations ``first``..``last`` are new: execute and record them."""

    first: SequenceNumber
    last: SequenceNumber


class ReplayPart(msgspec.Struct, frozen=True, gc=False):
    """Operations ``first``..``last`` were executed before; ``commit`` is that of the first; the others follow it."""

    first: SequenceNumber
    last: SequenceNumber
    commit: CommitNumber


class RefusedPart(msgspec.Struct, frozen=True, gc=False):
    """Operations ``first``..``last`` are neither executed nor answered."""

    first: SequenceNumber
    last: SequenceNumber
    refusal: Refusal


RangePart = NewPart | ReplayPart | RefusedPart
"""A run of operations with one verdict."""


def decide_range(
    tracker: ResultTracker,
    first: int,
    fingerprints: bytes,
    first_incomplete: int,
    stand: Standing,
) -> list[RangePart]:
    """Apply the rule to the operations from ``first`` on; changes nothing.

    Args:
        tracker: the session's records.
        first: sequence number of the first operation.
        fingerprints: 8 bytes an operation; their number is the range's length, 1..RANGE_LENGTH_MAX.
        first_incomplete: the request's.
        stand: how the session stands.

    Returns:
        Disjoint parts in ascending order that cover the range.
    """
    last = first + len(fingerprints) // FINGERPRINT_BYTES - 1
    if first_incomplete > tracker.highest + tracker.window:
        return [_refused(first, last, Refusal.BAD_ACK)]
    if first > tracker.highest and first >= first_incomplete and first >= tracker.first_incomplete:
        return [_unrecorded(tracker, first, last, first_incomplete, stand)]
    parts: list[RangePart] = []
    at = first
    if first_incomplete > at:
        at = min(first_incomplete, last + 1)
        parts.append(_refused(first, at - 1, Refusal.BAD_ACK))
    if at <= last and stand is Standing.FENCED:
        return [*parts, _refused(at, last, Refusal.FENCED)]
    if at <= last and at < tracker.first_incomplete:
        stale_last = min(tracker.first_incomplete - 1, last)
        parts.append(_refused(at, stale_last, Refusal.STALE))
        at = stale_last + 1
    if at > last:  # the rest is refused: a record that begins in it must not answer
        return parts
    for known in _recorded(tracker, at, last):
        if known.first > at:
            parts.append(_unrecorded(tracker, at, known.first - 1, first_incomplete, stand))
            at = known.first
        end = min(known.last, last)
        parts.extend(_compare(known, at, end, _cut(fingerprints, at - first, end - first)))
        at = end + 1
    if at <= last:
        parts.append(_unrecorded(tracker, at, last, first_incomplete, stand))
    return _joined(parts)


def decide_range_without_session(first: int, last: int, first_incomplete: int) -> list[RefusedPart]:
    """Apply the rule to a range of a session that does not exist: it is never treated as new."""
    split = min(max(first_incomplete, first), last + 1)
    parts = [_refused(first, split - 1, Refusal.BAD_ACK), _refused(split, last, Refusal.SESSION_EXPIRED)]
    return [part for part in parts if part.first <= part.last]


def _recorded(tracker: ResultTracker, first: int, last: int) -> list[RangeRecord]:
    """Return what is recorded in ``first``..``last`` in ascending order, single operations as ranges of one."""
    found = [known for known in tracker.ranges if known.last >= first and known.first <= last]
    found += [
        RangeRecord(number, number, record.commit, record.fingerprint.to_bytes(FINGERPRINT_BYTES, "big"))
        for number, record in ((SequenceNumber(s), record) for s, record in tracker.records.items())
        if first <= number <= last
    ]
    return sorted(found, key=lambda known: known.first)


def _compare(known: RangeRecord, first: int, last: int, fingerprints: bytes) -> list[RangePart]:
    """Separate replays from reused ids in the part of ``known`` that the request covers."""
    if known.commit == SEALED_COMMIT:
        return [_refused(first, last, Refusal.SEALED)]
    stored = known.slice(first, last)
    if stored == fingerprints:
        return [_replayed(first, last, known.commit_of(first))]
    return [
        _replayed(sequence, sequence, known.commit_of(sequence))
        if _cut(stored, sequence - first, sequence - first) == _cut(fingerprints, sequence - first, sequence - first)
        else _refused(sequence, sequence, Refusal.PAYLOAD_MISMATCH)
        for sequence in range(first, last + 1)
    ]


def _unrecorded(tracker: ResultTracker, first: int, last: int, first_incomplete: int, stand: Standing) -> RangePart:
    """Apply the remaining conditions to a run that is neither recorded nor acknowledged."""
    if stand is Standing.FENCED:
        return _refused(first, last, Refusal.FENCED)
    if stand is Standing.ENDED:
        return _refused(first, last, Refusal.SESSION_EXPIRED)
    if is_range_beyond_window(tracker, first, first_incomplete):
        return _refused(first, last, Refusal.WINDOW_FULL)
    if tracker.is_over_bytes(first_incomplete):
        return _refused(first, last, Refusal.QUOTA)
    return NewPart(SequenceNumber(first), SequenceNumber(last))


def _refused(first: int, last: int, refusal: Refusal) -> RefusedPart:
    return RefusedPart(SequenceNumber(first), SequenceNumber(last), refusal)


def _replayed(first: int, last: int, commit: int) -> ReplayPart:
    return ReplayPart(SequenceNumber(first), SequenceNumber(last), CommitNumber(commit))


def _cut(fingerprints: bytes, low: int, high: int) -> bytes:
    return fingerprints[low * FINGERPRINT_BYTES : (high + 1) * FINGERPRINT_BYTES]


def _joined(parts: list[RangePart]) -> list[RangePart]:
    """Join neighbours that share a verdict and, if replayed, have adjacent commit numbers."""
    joined: list[RangePart] = []
    for part in parts:
        match joined[-1] if joined else None, part:
            case RefusedPart(first, _, before), RefusedPart(_, last, refusal) if before is refusal:
                joined[-1] = _refused(first, last, refusal)
            case ReplayPart(first, _, before), ReplayPart(at, last, commit) if before + at - first == commit:
                joined[-1] = _replayed(first, last, before)
            case _:
                joined.append(part)
    return joined
