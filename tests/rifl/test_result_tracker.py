"""What a tracker remembers, for how long and at which bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.errors import REGISTRY, Code, InvariantViolation, Outcome
from oncegate.rifl.ids import ID_MAX
from oncegate.rifl.result_tracker import RECORD_BYTES_MAX, ResultTracker
from oncegate.rifl.rule import EXECUTE, Refusal, Replay, Standing, decide, standing
from oncegate.rifl.session import SessionRecord, SessionTable
from tests.rifl.told import name_of

LIVE, FENCED, ENDED = Standing.LIVE, Standing.FENCED, Standing.ENDED


class Bytes(NamedTuple):
    """A result of a given size."""

    size: int


def tracker_with_gaps() -> ResultTracker:
    """Window 8, first incomplete 5; 5, 7 and the range 9..11 are recorded, 6 and 8 are not; fingerprint = sequence."""
    tracker = ResultTracker(window=8)
    for sequence in (1, 2, 3, 4, 5, 7):
        tracker.record(sequence, sequence, 100 + sequence)
    prints = b"".join(sequence.to_bytes(8, "big") for sequence in (9, 10, 11))
    tracker.record_range(RangeRecord(9, 11, 109, prints))
    tracker.acknowledge(5)
    return tracker


def test_each_refusal_has_the_code_of_its_name_and_a_seal_is_certain() -> None:
    others = [refusal for refusal in Refusal if refusal not in (Refusal.SEALED, Refusal.BEHIND)]
    assert [refusal.code for refusal in others] == [Code(refusal.name) for refusal in others]
    assert [refusal.outcome for refusal in others] == [REGISTRY[refusal.code].outcome for refusal in others]
    assert (Refusal.SEALED.code, Refusal.SEALED.outcome) == (Code.STALE, Outcome.NOT_APPLIED)
    assert (Refusal.BEHIND.code, Refusal.BEHIND.outcome) == (Code.OVERLOADED, Outcome.NOT_APPLIED)


@pytest.mark.parametrize(
    ("epoch", "now_ms", "expected"),
    [(2, 1000, LIVE), (2, 1001, ENDED), (1, 0, FENCED), (1, 1001, FENCED), (3, 0, FENCED)],
)
def test_standing_is_fenced_by_any_other_epoch_and_ends_after_the_last_millisecond(
    epoch: int, now_ms: int, expected: Standing
) -> None:
    session = SessionTable().open("n", 1000, 8, 0)[0]
    session.epoch = type(session.epoch)(2)
    assert standing(session, epoch, now_ms) is expected
    assert isinstance(session, SessionRecord)


def run(tracker: ResultTracker, sequence: int, fi: int, commit: int = 1) -> str:
    verdict = decide(tracker, sequence, fi, sequence, LIVE)
    if verdict is EXECUTE:
        tracker.record(sequence, sequence, commit)
    if verdict is EXECUTE or isinstance(verdict, Replay):
        tracker.acknowledge(fi)
    return name_of(verdict)


def test_second_record_of_an_operation_raises_and_changes_nothing() -> None:
    """It would hide a second execution: the first record, overwritten, is the only trace of the first effect."""
    forbidden: list[Callable[[ResultTracker], object]] = [
        lambda tracker: tracker.record(5, 5, 200),
        lambda tracker: tracker.record(10, 10, 200),
        lambda tracker: tracker.record(4, 4, 200),
        lambda tracker: tracker.record(0, 0, 200),
        lambda tracker: tracker.record(12, 12, 0),
        lambda tracker: tracker.seal(7),
        lambda tracker: tracker.seal(9),
        lambda tracker: tracker.seal(4),
        lambda tracker: tracker.record_range(RangeRecord(11, 12, 200, bytes(16))),
        lambda tracker: tracker.record_range(RangeRecord(6, 8, 200, bytes(24))),
        lambda tracker: tracker.record_range(RangeRecord(8, 12, 200, bytes(40))),
        lambda tracker: tracker.record_range(RangeRecord(4, 4, 200, bytes(8))),
        lambda tracker: tracker.record_range(RangeRecord(12, 13, 200, bytes(8))),
        lambda tracker: tracker.record_range(RangeRecord(12, 11, 200, b"")),
        lambda tracker: tracker.record_range(RangeRecord(12, 12, 0, bytes(8))),
    ]
    for break_it in forbidden:
        tracker = tracker_with_gaps()
        before = tracker.dump()
        with pytest.raises(InvariantViolation):
            break_it(tracker)
        assert tracker.dump() == before


def test_operation_in_a_gap_may_be_recorded_alone_sealed_or_in_a_range() -> None:
    for record_it in (
        lambda tracker: tracker.record(6, 6, 200),
        lambda tracker: tracker.seal(8),
        lambda tracker: tracker.record_range(RangeRecord(6, 6, 200, bytes(8))),
        lambda tracker: tracker.record_range(RangeRecord(12, 13, 200, bytes(16))),
    ):
        tracker = tracker_with_gaps()
        record_it(tracker)
        assert tracker.dump() != tracker_with_gaps().dump()


@pytest.mark.parametrize(
    ("highest", "records", "ranges"),
    [
        (4, {2: 2}, []),
        (4, {5: 5}, []),
        (6, {}, [(5, 7)]),
        (9, {}, [(2, 4)]),
        (9, {}, [(3, 5), (5, 6)]),
        (9, {}, [(6, 7), (3, 4)]),
    ],
)
def test_saved_tracker_that_contradicts_itself_is_not_taken(
    highest: int, records: dict[int, int], ranges: list[tuple[int, int]]
) -> None:
    kept = {sequence: CompletionRecord(sequence, commit) for sequence, commit in records.items()}
    parts = [RangeRecord(first, last, first, bytes(8 * (last - first + 1))) for first, last in ranges]
    with pytest.raises(InvariantViolation):
        ResultTracker.restore(8, 3, highest, kept, parts)
    if parts:
        with pytest.raises(InvariantViolation):
            ResultTracker.restore(8, 3, highest, {}, [], parts)  # as runs


@pytest.mark.parametrize(
    ("first", "last", "commit", "prints"),
    [(5, 6, 9, 2), (4, 4, 9, 1), (6, 7, 9, 1), (6, 5, 9, 0), (6, 7, 0, 2)],
    ids=["over the highest", "below it", "too few fingerprints", "of nothing", "without a commit number"],
)
def test_run_that_is_not_surely_new_is_not_recorded(first: int, last: int, commit: int, prints: int) -> None:
    tracker = ResultTracker(window=8)
    tracker.record_run(RangeRecord(3, 5, 1, bytes(8 * 3)))
    before = tracker.dump()
    with pytest.raises(InvariantViolation):
        tracker.record_run(RangeRecord(first, last, commit, bytes(8 * prints)))
    assert tracker.dump() == before


def test_result_without_a_commit_number_is_refused_and_names_its_operation() -> None:
    tracker = ResultTracker(window=16)
    with pytest.raises(InvariantViolation, match=r"^operation 3 was executed under commit number 0$"):
        tracker.record(3, 1, 0, None)
    with pytest.raises(InvariantViolation, match=r"^operation 5 was executed under commit number -1$"):
        tracker.record_range(RangeRecord(5, 6, -1, bytes(16)))


def test_range_over_a_number_of_a_run_is_not_recorded() -> None:
    tracker = ResultTracker(window=16)
    tracker.record_run(RangeRecord(3, 5, 1, bytes(8 * 3)))
    for first, last in ((1, 3), (5, 6), (4, 4)):
        with pytest.raises(InvariantViolation):
            tracker.record_range(RangeRecord(first, last, 9, bytes(8 * (last - first + 1))))


def test_ack_of_what_was_never_seen_refuses_its_late_copy() -> None:
    """Case 11: cancelled, acknowledged, then a late copy arrives."""
    tracker = ResultTracker(window=8)
    run(tracker, 2, 2)
    assert run(tracker, 1, 1) == "STALE"
    assert tracker.find(1) is None


def test_absurd_ack_changes_nothing_even_if_it_gets_through() -> None:
    tracker = tracker_with_gaps()
    before = tracker.dump()
    for absurd in (20, ID_MAX, 2**64):
        tracker.acknowledge(absurd)
    assert tracker.dump() == before


def test_ack_through_a_range_keeps_the_rest_with_its_commits_and_fingerprints() -> None:
    tracker = tracker_with_gaps()
    tracker.acknowledge(10)
    assert tracker.ranges == [RangeRecord(10, 11, 110, (10).to_bytes(8, "big") + (11).to_bytes(8, "big"))]
    assert not tracker.records
    assert tracker.bytes == 16
    assert name_of(decide(tracker, 11, 10, 11, LIVE)) == "REPLAY"
    tracker.acknowledge(12)
    assert tracker.dump() == [8, 12, 11, [], []]
    assert tracker.bytes == 0


def test_bytes_of_results_are_given_back_by_acks() -> None:
    tracker = ResultTracker(window=8)
    for sequence in (1, 2, 3):
        tracker.record(sequence, sequence, sequence, Bytes(10))
    tracker.record(4, 4, 4)
    assert tracker.bytes == 30
    tracker.acknowledge(3)
    assert tracker.bytes == 10
    tracker.acknowledge(5)
    assert tracker.bytes == 0


def test_session_over_its_bytes_is_refused_before_execution_but_still_replays() -> None:
    tracker = ResultTracker(window=8)
    tracker.record(1, 1, 1, Bytes(RECORD_BYTES_MAX + 1))
    assert name_of(decide(tracker, 2, 1, 2, LIVE)) == "QUOTA"
    assert name_of(decide(tracker, 1, 1, 1, LIVE)) == "REPLAY"


def test_session_over_its_bytes_gets_out_by_acknowledging() -> None:
    """The next operation carries the ack of everything before it: were it refused, the session would be stuck."""
    tracker = ResultTracker(window=8)
    tracker.record(1, 1, 1, Bytes(RECORD_BYTES_MAX + 1))
    assert run(tracker, 2, 2) == "EXECUTE"
    assert tracker.bytes == 0


def test_ack_costs_what_it_drops_not_what_it_skips() -> None:
    tracker = ResultTracker(window=8)
    tracker.record_range(RangeRecord(1, 10_000, 1, bytes(80_000)))
    tracker.record(10_001, 1, 1)
    seen = 0

    class Counting(dict[int, object]):
        def pop(self, *key: object) -> object:  # type: ignore[override]
            nonlocal seen
            seen += 1
            return super().pop(*key)  # type: ignore[arg-type]

    tracker._records = Counting(tracker.records)  # type: ignore[assignment]
    tracker.acknowledge(10_002)
    assert seen <= 1
    assert tracker.dump() == [8, 10_002, 10_001, [], []]
