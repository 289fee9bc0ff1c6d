"""The index of rows that end against a dictionary: what it finds, in which order, and what it keeps of what is gone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.machine import row_ends
from oncegate.gateway.machine.row_ends import Life, Place, RowEnds
from oncegate.rifl.errors import InvariantViolation

places = st.tuples(st.sampled_from("tu"), st.sampled_from("abcd"))
lives = st.builds(Life, st.integers(0, 900), st.integers(0, 2)).filter(lambda life: life.ends_ms or life.owner)
steps = st.one_of(
    st.tuples(st.just("change"), places, lives | st.none()),
    st.tuples(st.just("change"), places, lives),
    st.tuples(st.just("due"), st.integers(0, 1_100), st.integers(0, 5)),
    st.tuples(st.just("taken"), st.sampled_from("tu"), st.booleans()),
)


def files(*ends_ms: int, **more: bool) -> RowEnds:
    """An index with a row for each of these ends, named after its place among them."""
    ends = RowEnds(**more)
    for at, each in enumerate(ends_ms):
        ends.change(("t", f"{at:04d}"), None, Life(each, 0))
    return ends


def goes(ends: RowEnds, at: int, ends_ms: int) -> None:
    ends.change(("t", f"{at:04d}"), Life(ends_ms, 0), None)


def check_due(ends: RowEnds, rows: dict[Place, Life], now_ms: int, limit: int) -> None:
    """What is over for a bucket is found, those that ended first first, and again: it stays filed."""
    found = ends.due(now_ms, limit)
    over = {place: life.ends_ms // 100 for place, life in rows.items() if 0 < life.ends_ms < now_ms // 100 * 100}
    shown = [(table, key) for table, keys in found.items() for key in keys]
    assert len(shown) == len(set(shown)) == min(limit, len(over))
    assert sorted(over[place] for place in shown) == sorted(over.values())[:limit]
    for table, keys in found.items():
        buckets = [over[table, key] for key in keys]
        assert buckets == sorted(buckets)
    assert ends.due(now_ms, limit) == found


@settings(max_examples=60, deadline=None)
@given(plan=st.lists(steps, max_size=40), kept=st.integers(0, 3))
def test_index_holds_what_a_dictionary_holds_and_finds_what_is_over(plan: list[tuple[Any, ...]], kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_ends, "_EMPTY_KEPT", kept)
        ends, rows, changed = RowEnds(saved=True), dict[Place, Life](), dict[str, dict[str, Life | None]]()
        used = False
        for what, first, second in plan:
            if what == "change":
                ends.change(first, rows.get(first), second)
                changed.setdefault(first[0], {})[first[1]] = second
                if second is None:
                    rows.pop(first, None)
                else:
                    rows[first] = second
                    used = True
            elif what == "due":
                check_due(ends, rows, first, second)
            elif second:
                assert ends.take_changes() == changed
                changed = {}
            else:
                assert ends.take_changes_of(first) == changed.pop(first, {})
            assert (len(ends), ends.places()) == (len(rows), set(rows))
            assert ends.used is used
            assert set(ends.owners()) == {life.owner for life in rows.values() if life.owner}
            for owner in (0, 1, 2):
                bound = sorted(place for place, life in rows.items() if owner and life.owner == owner)
                assert (ends.bound(owner), ends.bound_places(owner)) == (len(bound), bound)
            buckets = ends._buckets
            assert ends._empty == sum(not bucket for bucket in buckets.values()) <= max(kept, len(buckets) // 2)
            assert sorted(ends._order) == sorted(buckets), "each bucket once"


@pytest.mark.parametrize("ends_ms", [1, 99, 100, 101, 5_000])
def test_row_is_found_within_100_ms_of_its_end_and_never_before(ends_ms: int) -> None:
    ends = files(ends_ms)
    found = next(now for now in range(ends_ms, ends_ms + 200) if ends.due(now, 1))
    assert ends_ms < found <= ends_ms + 100
    assert found % 100 == 0


def test_as_many_as_asked_for_are_due_of_one_bucket_too() -> None:
    ends = files(10, 20, 30)
    assert [ends.due(100, limit) for limit in (0, 1, 2, 9)] == [
        {},
        {"t": ["0000"]},
        {"t": ["0000", "0001"]},
        {"t": ["0000", "0001", "0002"]},
    ]


def test_rows_are_due_behind_buckets_from_which_all_rows_have_gone() -> None:
    ends = files(100, 200, 300, 400)
    for at in (0, 1):
        goes(ends, at, 100 * (at + 1))
    assert ends.due(9_000, 9) == {"t": ["0002", "0003"]}


@pytest.mark.parametrize(("filed", "stay"), [(4_097, 4_096), (9_000, 4_500)])
def test_empty_buckets_stay_up_to_4096_or_half_of_all(filed: int, stay: int) -> None:
    """They cost memory, and to free them takes a look at all: so it is done once they are many."""
    ends = files(*(100 * (filed - at) for at in range(filed)))  # the last one ends first
    for at in range(stay):
        goes(ends, at, 100 * (filed - at))
    assert len(ends._buckets) == filed
    goes(ends, stay, 100 * (filed - stay))
    assert len(ends._buckets) == filed - stay - 1
    left = filed - stay - 1
    assert ends.due(100 * filed + 100, 3) == (
        {"t": [f"{filed - 1 - at:04d}" for at in range(min(left, 3))]} if left else {}
    )


def test_changes_are_kept_for_a_save_alone() -> None:
    for saved in (True, False):
        ends = files(100, saved=saved)
        assert ends.take_changes() == ({"t": {"0000": Life(100, 0)}} if saved else {})
    assert files(100).take_changes() == {}, "nobody saves unless he says so"
    assert files(100, saved=True).take_changes_of("u") == {}


@pytest.mark.parametrize("life", [Life(100, 0), Life(0, 7), Life(300, 7)])
def test_row_that_is_not_filed_as_it_says_is_refused(life: Life) -> None:
    ends = files(200)
    with pytest.raises(InvariantViolation):
        ends.change(("t", "0000"), life, None)
    ends.put_back(("t", "bound"), life)
    with pytest.raises(InvariantViolation):
        ends.put_back(("t", "bound"), life)
