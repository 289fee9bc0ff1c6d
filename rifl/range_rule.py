"""The apply rule for ranges: one decision for ten thousand operations (SEMANTICS, *Ranges*).

A range is a run of contiguous sequence numbers of one session. The rule of :mod:`oncegate.rifl.result_tracker` holds as
if each operation had come alone; where verdicts differ the range is split. A range that meets nothing recorded,
the normal case, costs one comparison with the newest record. Departure from RIFL, which has no ranges.
"""

from __future__ import annotations

from typing import NamedTuple

from oncegate.rifl.completion import FINGERPRINT_BYTES, SEALED_COMMIT, RangeRecord
from oncegate.rifl.ids import RANGE_LENGTH_MAX
from oncegate.rifl.result_tracker import ResultTracker, Standing, Verdict


class RangePart(NamedTuple):
    """A run ``first``..``last`` with one verdict; ``commit`` is the first one's when it is a replay."""

    first: int
    last: int
    verdict: Verdict
    commit: int = 0


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
        return [RangePart(first, last, Verdict.BAD_ACK)]
    if first > tracker.highest and first >= first_incomplete and first >= tracker.first_incomplete:
        return [RangePart(first, last, _unrecorded(tracker, first, first_incomplete, stand))]
    parts: list[RangePart] = []
    at = first
    if first_incomplete > at:
        at = min(first_incomplete, last + 1)
        parts.append(RangePart(first, at - 1, Verdict.BAD_ACK))
    if at <= last and stand is Standing.FENCED:
        return [*parts, RangePart(at, last, Verdict.FENCED)]
    if at <= last and at < tracker.first_incomplete:
        stale_last = min(tracker.first_incomplete - 1, last)
        parts.append(RangePart(at, stale_last, Verdict.STALE))
        at = stale_last + 1
    if at > last:  # nothing is left to look up; a record that begins in the refused part must not answer
        return parts
    for known in _recorded(tracker, at, last):
        if known.first > at:
            verdict = _unrecorded(tracker, at, first_incomplete, stand)
            parts.append(RangePart(at, known.first - 1, verdict))
            at = known.first
        end = min(known.last, last)
        parts.extend(_compare(known, at, end, _cut(fingerprints, at - first, end - first)))
        at = end + 1
    if at <= last:
        parts.append(RangePart(at, last, _unrecorded(tracker, at, first_incomplete, stand)))
    return _joined(parts)


def decide_range_without_session(first: int, last: int, first_incomplete: int) -> list[RangePart]:
    """Apply rows 1 and 2 where there is no session."""
    split = min(max(first_incomplete, first), last + 1)
    parts = [RangePart(first, split - 1, Verdict.BAD_ACK), RangePart(split, last, Verdict.SESSION_EXPIRED)]
    return [part for part in parts if part.first <= part.last]


def _recorded(tracker: ResultTracker, first: int, last: int) -> list[RangeRecord]:
    """Return what is recorded in ``first``..``last`` in ascending order, single operations as ranges of one."""
    found = [known for known in tracker.ranges if known.last >= first and known.first <= last]
    found += [
        RangeRecord(sequence, sequence, record.commit, record.fingerprint.to_bytes(FINGERPRINT_BYTES, "big"))
        for sequence, record in tracker.records.items()
        if first <= sequence <= last
    ]
    return sorted(found, key=lambda known: known.first)


def _compare(known: RangeRecord, first: int, last: int, fingerprints: bytes) -> list[RangePart]:
    """Tell replays from reused ids in the part of ``known`` that a request covers again."""
    if known.commit == SEALED_COMMIT:
        return [RangePart(first, last, Verdict.SEALED)]
    stored = known.slice(first, last)
    if stored == fingerprints:
        return [RangePart(first, last, Verdict.REPLAY, known.commit_of(first))]
    return [
        RangePart(sequence, sequence, Verdict.REPLAY, known.commit_of(sequence))
        if _cut(stored, sequence - first, sequence - first) == _cut(fingerprints, sequence - first, sequence - first)
        else RangePart(sequence, sequence, Verdict.PAYLOAD_MISMATCH)
        for sequence in range(first, last + 1)
    ]


def _unrecorded(tracker: ResultTracker, first: int, first_incomplete: int, stand: Standing) -> Verdict:
    if stand is Standing.FENCED:
        return Verdict.FENCED
    if stand is Standing.ENDED:
        return Verdict.SESSION_EXPIRED
    base = max(tracker.first_incomplete, first_incomplete)
    # Cheap first: places are never more than sequence numbers.
    if first >= base + tracker.window and tracker.places(first, base, RANGE_LENGTH_MAX) >= tracker.window:
        return Verdict.WINDOW_FULL
    # Short ranges from high to low would each see one gap below and pass for ever; the lowest missing always may.
    if (
        len(tracker.records) + len(tracker.ranges) >= tracker.window
        and tracker.held(base) >= tracker.window
        and tracker.has_gap(base, first)
    ):
        return Verdict.WINDOW_FULL
    if tracker.is_over_bytes(first_incomplete):
        return Verdict.QUOTA
    return Verdict.EXECUTE


def _cut(fingerprints: bytes, low: int, high: int) -> bytes:
    return fingerprints[low * FINGERPRINT_BYTES : (high + 1) * FINGERPRINT_BYTES]


def _joined(parts: list[RangePart]) -> list[RangePart]:
    """Join neighbours that share a verdict and, if replayed, have adjacent commit numbers."""
    joined: list[RangePart] = []
    for part in parts:
        if joined and joined[-1].verdict is part.verdict:
            before = joined[-1]
            adjacent = before.commit + part.first - before.first == part.commit
            if part.verdict is not Verdict.REPLAY or adjacent:
                joined[-1] = before._replace(last=part.last)
                continue
        joined.append(part)
    return joined
