"""Ranges: decided by parts as if each operation had come alone (case 40), at one cost whatever their length."""

from __future__ import annotations

import pytest

from oncegate.rifl.completion import RangeRecord
from oncegate.rifl.ids import RANGE_LENGTH_MAX
from oncegate.rifl.range_rule import NewPart, RefusedPart, decide_range
from oncegate.rifl.result_tracker import RECORD_BYTES_MAX, ResultTracker
from oncegate.rifl.rule import Refusal, Standing
from oncegate.rifl.rule import decide as decide_one
from tests.rifl.told import part_told

LIVE, FENCED, ENDED = Standing.LIVE, Standing.FENCED, Standing.ENDED
Parts = list[tuple[int, int, str, int]]


def prints(first: int, last: int, *, changed: tuple[int, ...] = ()) -> bytes:
    return b"".join((s + 1000 * (s in changed)).to_bytes(8, "big") for s in range(first, last + 1))


def decide(
    tracker: ResultTracker, first: int, last: int, fi: int = 1, stand: Standing = LIVE, **how: tuple[int, ...]
) -> Parts:
    before = tracker.dump()
    parts = decide_range(tracker, first, prints(first, last, **how), fi, stand)
    assert tracker.dump() == before, "to decide changes nothing"
    assert [part.first for part in parts] == [first, *(part.last + 1 for part in parts[:-1])]
    assert parts[-1].last == last
    assert all(part.first <= part.last for part in parts)
    return [part_told(part) for part in parts]


def known(window: int = 8) -> ResultTracker:
    """First incomplete 4; recorded: the range 4..6 (commits 14..16), 8 (commit 30), the range 9..10 (31, 32)."""
    tracker = ResultTracker(window=window)
    tracker.record_range(RangeRecord(1, 6, 11, prints(1, 6)))
    tracker.record(8, 8, 30)
    tracker.record_range(RangeRecord(9, 10, 31, prints(9, 10)))
    tracker.acknowledge(4)
    return tracker


@pytest.mark.parametrize(
    ("name", "first", "last", "fi", "stand", "parts"),
    [
        ("above all that is known", 11, 14, 4, LIVE, [(11, 14, "EXECUTE", 0)]),
        ("sent twice", 4, 6, 4, LIVE, [(4, 6, "REPLAY", 14)]),
        ("cut differently", 5, 5, 4, LIVE, [(5, 5, "REPLAY", 15)]),
        ("overlapping the end", 9, 12, 4, LIVE, [(9, 10, "REPLAY", 31), (11, 12, "EXECUTE", 0)]),
        ("over a gap", 6, 9, 4, LIVE, [(6, 6, "REPLAY", 16), (7, 7, "EXECUTE", 0), (8, 9, "REPLAY", 30)]),
        ("over single operations", 7, 8, 4, LIVE, [(7, 7, "EXECUTE", 0), (8, 8, "REPLAY", 30)]),
        ("adjacent commits join", 8, 10, 4, LIVE, [(8, 10, "REPLAY", 30)]),
        ("partly acknowledged", 2, 5, 1, LIVE, [(2, 3, "STALE", 0), (4, 5, "REPLAY", 14)]),
        ("all acknowledged", 1, 3, 1, LIVE, [(1, 3, "STALE", 0)]),
        ("partly below its own ack", 4, 7, 6, LIVE, [(4, 5, "BAD_ACK", 0), (6, 6, "REPLAY", 16), (7, 7, "EXECUTE", 0)]),
        ("all below its own ack", 4, 5, 6, LIVE, [(4, 5, "BAD_ACK", 0)]),
        ("absurd ack", 11, 14, 2**64 - 1, LIVE, [(11, 14, "BAD_ACK", 0)]),
        ("ack beyond highest + window", 19, 30, 19, LIVE, [(19, 30, "BAD_ACK", 0)]),
        ("ack at highest + window", 18, 30, 18, LIVE, [(18, 30, "EXECUTE", 0)]),
        ("fenced", 5, 12, 4, FENCED, [(5, 12, "FENCED", 0)]),
        ("fenced, above all", 11, 12, 4, FENCED, [(11, 12, "FENCED", 0)]),
        ("fenced, partly below its own ack", 5, 8, 7, FENCED, [(5, 6, "BAD_ACK", 0), (7, 8, "FENCED", 0)]),
        ("lease ended: old is replayed", 9, 12, 4, ENDED, [(9, 10, "REPLAY", 31), (11, 12, "SESSION_EXPIRED", 0)]),
        ("lease ended: new is refused", 11, 12, 4, ENDED, [(11, 12, "SESSION_EXPIRED", 0)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_range_is_split_where_verdicts_differ(
    name: str, first: int, last: int, fi: int, stand: Standing, parts: Parts
) -> None:
    assert decide(known(), first, last, fi, stand) == parts, name


@pytest.mark.parametrize("stand", [LIVE, FENCED, ENDED])
@pytest.mark.parametrize("acknowledged", range(1, 19))
def test_each_operation_of_a_range_is_decided_as_if_it_had_come_alone(acknowledged: int, stand: Standing) -> None:
    """Whatever was recorded and acknowledged before, also more than was recorded."""
    tracker = known()
    tracker.acknowledge(acknowledged)
    for first in range(1, 19):
        for last in (first, first + 1, first + 4):
            for fi in range(1, 19):
                told = {
                    sequence: (verdict, commit and commit + sequence - a)
                    for a, b, verdict, commit in decide(tracker, first, last, fi, stand)
                    for sequence in range(a, b + 1)
                }
                alone = {
                    sequence: decide(tracker, sequence, sequence, fi, stand)[0][2:]
                    for sequence in range(first, last + 1)
                }
                assert told == alone, (first, last, fi)
                for sequence in told:
                    one = decide_one(tracker, sequence, fi, sequence, stand)
                    verdict = one.name if isinstance(one, Refusal) else type(one).__name__.upper()
                    assert told[sequence][0] == verdict or "WINDOW_FULL" in (told[sequence][0], verdict), sequence


def test_changed_payload_is_refused_for_that_operation_only() -> None:
    assert decide(known(), 4, 6, 4, changed=(5,)) == [
        (4, 4, "REPLAY", 14),
        (5, 5, "PAYLOAD_MISMATCH", 0),
        (6, 6, "REPLAY", 16),
    ]
    assert decide(known(), 8, 11, 4, changed=(8, 9))[:2] == [(8, 9, "PAYLOAD_MISMATCH", 0), (10, 10, "REPLAY", 32)]


def test_record_that_begins_in_the_refused_part_does_not_answer_for_it() -> None:
    """A range wholly below its own ack, right before a recorded one: nothing of it is replayed."""
    tracker = ResultTracker(window=4)
    tracker.record_range(RangeRecord(2, 3, 2, prints(2, 3)))
    assert decide_range(tracker, 2, prints(2, 2), 3, LIVE) == [RefusedPart(2, 2, Refusal.BAD_ACK)]


def test_range_counts_one_place_whatever_its_length() -> None:
    tracker = ResultTracker(window=3)
    for at in range(3):
        first = at * RANGE_LENGTH_MAX + 1
        part = decide_range(tracker, first, bytes(8 * RANGE_LENGTH_MAX), 1, LIVE)[0]
        assert isinstance(part, NewPart)
        tracker.record_range(RangeRecord(first, part.last, first, bytes(8 * RANGE_LENGTH_MAX)))
    assert decide(tracker, 3 * RANGE_LENGTH_MAX + 1, 3 * RANGE_LENGTH_MAX + 2)[0][2] == "WINDOW_FULL"
    assert decide_one(tracker, 3 * RANGE_LENGTH_MAX + 1, 1, 1, LIVE) is Refusal.WINDOW_FULL
    tracker.acknowledge(RANGE_LENGTH_MAX + 1)
    assert decide(tracker, 3 * RANGE_LENGTH_MAX + 1, 3 * RANGE_LENGTH_MAX + 2, RANGE_LENGTH_MAX + 1)[0][2] == "EXECUTE"


def test_gap_below_a_range_counts_the_ranges_that_may_be_missing_there() -> None:
    tracker = ResultTracker(window=3)
    assert decide(tracker, 3 * RANGE_LENGTH_MAX, 3 * RANGE_LENGTH_MAX)[0][2] == "WINDOW_FULL"
    assert decide(tracker, 2 * RANGE_LENGTH_MAX + 1, 2 * RANGE_LENGTH_MAX + 1)[0][2] == "EXECUTE"


def test_lowest_missing_range_always_fits() -> None:
    """Whatever lies above: otherwise a session could never go on."""
    tracker = ResultTracker(window=2)
    for first in (RANGE_LENGTH_MAX + 1, 5_000):
        assert decide(tracker, first, first)[0][2] == "EXECUTE"
        tracker.record_range(RangeRecord(first, first, first, prints(first, first)))
    assert decide(tracker, 1, 1)[0][2] == "EXECUTE"


def test_records_of_ranges_stay_bounded_however_they_are_cut() -> None:
    """Ranges of one operation, sent from high to low with holes: each sees one gap below and nothing else."""
    tracker = ResultTracker(window=4)
    for commit, sequence in enumerate(range(3 * RANGE_LENGTH_MAX, 3 * RANGE_LENGTH_MAX - 200, -2), start=1):
        if isinstance(decide_range(tracker, sequence, prints(sequence, sequence), 1, LIVE)[0], NewPart):
            tracker.record_range(RangeRecord(sequence, sequence, commit, prints(sequence, sequence)))
    assert len(tracker.records) + len(tracker.ranges) <= 2 * tracker.window


def test_range_over_the_sessions_bytes_is_refused_and_its_ack_helps() -> None:
    tracker = ResultTracker(window=8)
    tracker.record_range(RangeRecord(1, 10, 1, prints(1, 10)))
    tracker.bytes += RECORD_BYTES_MAX
    assert decide(tracker, 11, 12)[0][2] == "QUOTA"
    assert decide(tracker, 1, 12) == [(1, 10, "REPLAY", 1), (11, 12, "QUOTA", 0)]
    assert decide(tracker, 11, 12, 11) == [(11, 12, "EXECUTE", 0)], "this ack makes room, so it must get through"
