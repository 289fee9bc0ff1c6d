"""Resolving an id: the rows of its table in their order, for every number around a window, and none changes a fate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.rifl.completion import CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, look_up, resolve
from oncegate.rifl.result_tracker import ResultTracker

WINDOW = 4


def test_fates_have_the_names_that_clients_know() -> None:
    assert [fate.value for fate in Fate] == ["executed", "sealed", "never_seen", "acknowledged", "expired"]
    assert ResolveVerdict(Fate.SEALED).record is None


def tracked(records: set[int], ranges: bool, first_incomplete: int) -> ResultTracker:
    """Return a tracker with these records, fingerprint and commit number by sequence, perhaps with the range 9..11."""
    tracker = ResultTracker(window=WINDOW)
    for number in sorted(records):
        tracker.record(number, number, 100 + number)
    if ranges:
        prints = b"".join(number.to_bytes(8, "big") for number in (9, 10, 11))
        tracker.record_range(RangeRecord(9, 11, 109, prints))
    tracker.acknowledge(min(first_incomplete, tracker.highest + WINDOW))
    return tracker


states = st.builds(tracked, st.sets(st.integers(1, 7), max_size=6), st.booleans(), st.integers(1, 10))


@given(states, st.integers(1, 18), st.integers(1, 18))
def test_first_row_that_holds_decides(tracker: ResultTracker, sequence: int, first_incomplete: int) -> None:
    recorded = {**tracker.records, **{n: tracker.find(n) for part in tracker.ranges for n in (9, 10, 11)}}
    base = max(tracker.first_incomplete, first_incomplete)
    of_a_range = [n for part in tracker.ranges for n in range(part.first, part.last + 1) if base <= n < sequence]
    places = max(0, sequence - base) - max(0, len(of_a_range) - 1)
    before = repr(tracker)
    seen = look_up(tracker, sequence)
    assert repr(tracker) == before, "a look changes nothing"
    found: Any
    try:
        found = resolve(tracker, sequence, first_incomplete)
    except OncegateError as refused:
        found = refused.code
    if found is not Code.BAD_ACK and found is not Code.WINDOW_FULL and seen.fate is Fate.NEVER_SEEN:
        assert found == ResolveVerdict(Fate.SEALED)
        assert look_up(tracker, sequence) == ResolveVerdict(Fate.SEALED), "for good"
        assert resolve(tracker, sequence, 1) == ResolveVerdict(Fate.SEALED)
        assert places < WINDOW
        return
    assert repr(tracker) == before, "only a seal changes anything"
    if first_incomplete > sequence or first_incomplete > tracker.highest + WINDOW:
        assert found is Code.BAD_ACK
    elif sequence < tracker.first_incomplete:
        assert found == seen == ResolveVerdict(Fate.ACKNOWLEDGED)
    elif recorded.get(sequence) is not None:
        assert found == seen == ResolveVerdict(Fate.EXECUTED, CompletionRecord(sequence, 100 + sequence))
    else:
        assert found is Code.WINDOW_FULL
        assert places >= WINDOW


@pytest.mark.parametrize(
    ("highest", "sequence", "first_incomplete", "wanted"),
    [
        (0, 1, 1, Fate.SEALED),
        (0, 4, 4, Fate.SEALED),
        (0, 5, 5, Code.BAD_ACK),
        (2, 6, 6, Fate.SEALED),
        (2, 7, 7, Code.BAD_ACK),
        (2, 2, 3, Code.BAD_ACK),
        (2, 2, 2, Fate.EXECUTED),
    ],
)
def test_ack_is_possible_up_to_the_number_itself_and_a_window_above_the_highest(
    highest: int, sequence: int, first_incomplete: int, wanted: object
) -> None:
    tracker = tracked(set(range(1, highest + 1)), False, 1)
    if isinstance(wanted, Fate):
        assert resolve(tracker, sequence, first_incomplete).fate is wanted
    else:
        with pytest.raises(OncegateError) as refused:
            resolve(tracker, sequence, first_incomplete)
        assert refused.value.code is wanted


@pytest.mark.parametrize(("first_incomplete", "full"), [(1, True), (2, False)])
def test_seal_takes_a_place_unless_the_ack_that_comes_with_it_makes_one(first_incomplete: int, full: bool) -> None:
    tracker = tracked({1, 2, 3, 4}, False, 1)
    if full:
        with pytest.raises(OncegateError) as refused:
            resolve(tracker, 5, first_incomplete)
        assert refused.value.code is Code.WINDOW_FULL
    else:
        assert resolve(tracker, 5, first_incomplete).fate is Fate.SEALED
    tracker.acknowledge(5)
    assert look_up(tracker, 4) == ResolveVerdict(Fate.ACKNOWLEDGED)
    assert look_up(tracker, 9) == ResolveVerdict(Fate.NEVER_SEEN)


def test_range_takes_one_place_whatever_its_length() -> None:
    for sequence in (12, 13, 14):
        assert resolve(tracked(set(), True, 9), sequence, 9).fate is Fate.SEALED
    with pytest.raises(OncegateError) as refused:
        resolve(tracked(set(), True, 9), 15, 9)
    assert refused.value.code is Code.WINDOW_FULL
