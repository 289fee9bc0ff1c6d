"""The client half against a dumb model: every number in one of five sets, first incomplete by search; and after a
restart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import RANGE_LENGTH_MAX, WINDOW_MAX
from oncegate.rifl.request_tracker import RequestTracker

WINDOW = 6


def test_range_counts_as_one_place_and_its_length_is_bounded() -> None:
    tracker = RequestTracker(window=2)
    assert tracker.take_range(RANGE_LENGTH_MAX) == 1
    assert tracker.room_for_range
    assert tracker.room_for_singles == 0, "the server may not have seen the range yet"
    tracker.complete([1])
    assert tracker.room_for_singles == 2
    with pytest.raises(OncegateError) as refused:
        tracker.take_range(RANGE_LENGTH_MAX + 1)
    assert refused.value.code is Code.BAD_REQUEST


def test_released_numbers_are_given_out_again_so_that_refusals_cannot_outrun_the_server() -> None:
    tracker = RequestTracker(window=4)
    for _ in range(100):
        numbers = list(tracker.take_singles(4))
        assert numbers == [1, 2, 3, 4]
        tracker.release(numbers)
    assert tracker.first_incomplete == 1


def test_spent_number_is_kept_until_the_window_needs_its_place_and_an_abandoned_one_until_it_is_spent() -> None:
    tracker = RequestTracker(window=3)
    tracker.take_singles(3)
    tracker.abandon([1])
    tracker.complete([2])
    assert tracker.first_incomplete == 1
    tracker.make_room(3, told_full=True)
    assert tracker.first_incomplete == 1
    assert not tracker.room_for_range
    tracker.spend([1])
    assert tracker.first_incomplete == 1
    tracker.make_room()
    assert tracker.first_incomplete == 3
    assert tracker.room_for_singles == 2


def test_one_number_is_given_up_each_time_the_server_says_full() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(4)
    tracker.spend([1, 2])
    tracker.make_room()
    assert tracker.first_incomplete == 1, "there is room"
    for expected in (2, 3, 3):
        tracker.make_room(told_full=True)
        assert tracker.first_incomplete == expected


@pytest.mark.parametrize("length", [1, 2, 10])
def test_room_is_made_up_to_one_window_above_the_last_number_of_a_recorded_range(length: int) -> None:
    """The server bounds first incomplete by ``length + window``: one number less would block the session for ever."""
    tracker = RequestTracker(window=2)
    tracker.complete([tracker.take_range(length)])
    tracker.spend(tracker.take_singles(2))
    tracker.make_room()
    assert tracker.first_incomplete == length + 2
    tracker.make_room(told_full=True)
    assert tracker.first_incomplete == length + 2, "the server would refuse this as BAD_ACK"


@pytest.mark.parametrize(("length", "first_incomplete"), [(3, 8), (4, 5)])
def test_spent_range_is_acknowledged_only_if_its_whole_length_is_within_the_bound(
    length: int, first_incomplete: int
) -> None:
    tracker = RequestTracker(window=4)
    tracker.complete(tracker.take_singles(4))
    tracker.spend([tracker.take_range(length)])
    tracker.make_room(told_full=True)
    assert tracker.first_incomplete == first_incomplete


def test_completing_a_number_twice_is_refused() -> None:
    tracker = RequestTracker(window=3)
    tracker.take_singles(2)
    tracker.complete([2])
    with pytest.raises(ValueError):
        tracker.complete([2])


def test_cost_of_many_completions_is_linear() -> None:
    tracker = RequestTracker(window=4096)
    for _ in range(100):
        numbers = list(tracker.take_singles(4096))
        tracker.complete(numbers[1:])
        tracker.complete(numbers[:1])
    assert tracker.first_incomplete == 409_601
    assert tracker.incomplete == 0


def test_resumed_tracker_acknowledges_nothing_that_is_missing_and_reuses_no_number() -> None:
    tracker = RequestTracker.resumed(window=8, highest=10, held=[7, 12])
    assert tracker.first_incomplete == 7
    assert tracker.incomplete == 2
    assert tracker.room_for_singles == 2  # 7 to 12 take six places, as the server counts them
    assert list(tracker.take_singles(2)) == [13, 14]
    tracker.complete([7])
    assert tracker.first_incomplete == 12
    tracker.complete([12, 13, 14])
    assert tracker.first_incomplete == 15


def test_resumed_tracker_without_open_numbers_begins_behind_the_highest() -> None:
    tracker = RequestTracker.resumed(window=8, highest=10, held=[])
    assert tracker.first_incomplete == 11
    assert list(tracker.take_singles(8)) == list(range(11, 19))


def test_settled_doubt_is_acknowledged_and_an_open_number_is_not() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(3)
    tracker.abandon([1])
    assert not tracker.settle(2)
    assert not tracker.settle(9)
    assert tracker.settle(1)
    assert not tracker.settle(1)
    assert tracker.first_incomplete == 2


def test_settled_number_is_known_to_the_server_and_lets_room_be_made_above_it() -> None:
    tracker = RequestTracker(window=2)
    tracker.spend(tracker.take_singles(2))
    tracker.settle(1)
    tracker.spend(tracker.take_singles(1))
    tracker.make_room()
    assert (tracker.first_incomplete, tracker.room_for_singles) == (3, 1)


def test_resumed_tracker_acknowledges_no_more_than_the_server_accepts() -> None:
    tracker = RequestTracker.resumed(window=16, highest=41, held=[61])
    assert tracker.first_incomplete == 41 + 16
    assert list(tracker.take_singles(2)) == [57, 62]
    tracker.complete([57])
    assert tracker.first_incomplete == 61 <= 57 + 16
    tracker.complete([61])
    assert tracker.first_incomplete == 62


def test_recorded_number_that_nobody_received_is_acknowledged_only_for_room() -> None:
    tracker = RequestTracker(window=4)
    for _ in range(3):
        tracker.take_singles(4)
        tracker.spend(range(tracker.first_incomplete, tracker.first_incomplete + 4), recorded=True)
        first = tracker.first_incomplete
        assert tracker.room_for_singles == 0
        tracker.make_room(2)
        assert (tracker.room_for_singles, tracker.first_incomplete) == (2, first + 2)
        tracker.make_room(4)
        assert tracker.room_for_singles == 4


def test_range_that_nobody_received_counts_to_its_last_number() -> None:
    tracker = RequestTracker(window=2)
    first = tracker.take_range(10)
    tracker.spend([first], recorded=True)
    tracker.take_range(10)
    tracker.spend([first + 10])
    tracker.make_room(2)
    assert tracker.first_incomplete == first + 10, "20 is more than a window above what is recorded"
    assert not tracker.room_for_singles


def test_abandoned_place_is_waited_for_again_and_no_other() -> None:
    tracker = RequestTracker(window=4)
    tracker.take_singles(2)
    tracker.abandon([1])
    assert [tracker.reopen(number) for number in (1, 1, 2, 3)] == [True, False, False, False]
    tracker.make_room(4)
    assert tracker.first_incomplete == 1, "an open place is not acknowledged"
    tracker.complete([1, 2])
    assert tracker.first_incomplete == 3


def test_number_that_may_yet_be_given_out_is_not_that_of_an_operation() -> None:
    tracker = RequestTracker(window=4)
    tracker.take_singles(3)
    tracker.release([2])
    assert [tracker.has_given(number) for number in (0, 1, 2, 3, 4)] == [False, True, False, True, False]


def test_number_may_be_asked_about_while_its_fate_can_still_become_known() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(5)
    tracker.abandon([1])
    tracker.spend([2])
    tracker.release([3])
    tracker.complete([4])
    assert [tracker.may_be_asked(number) for number in range(7)] == [False, True, False, False, False, True, False]
    assert [tracker.is_abandoned(number) for number in range(7)] == [False, True] + [False] * 5


def test_range_that_is_given_back_is_spent_unless_it_is_the_newest_place() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_range(3)
    tracker.take_range(2)
    tracker.release([1])
    assert (tracker.first_incomplete, tracker.incomplete, tracker.may_be_asked(1)) == (1, 2, False)
    tracker.make_room(told_full=True)
    assert (tracker.first_incomplete, tracker.incomplete) == (4, 1)
    tracker.release([4])
    assert tracker.incomplete == 0
    assert tracker.take_singles(1) == range(4, 5)


def test_each_number_of_a_range_may_be_asked_about_as_long_as_the_range() -> None:
    tracker = RequestTracker(window=8)
    singles = tracker.take_singles(2)
    first = tracker.take_range(3)
    tracker.take_singles(1)
    rows = [False] * 3 + [True] * 3 + [True, False]
    tracker.complete(singles)
    assert [tracker.may_be_asked(number) for number in range(8)] == rows
    tracker.abandon([first])
    assert [tracker.may_be_asked(number) for number in range(8)] == rows
    tracker.spend([first])
    assert [tracker.may_be_asked(number) for number in range(8)] == [False] * 6 + [True, False]


def test_last_number_of_a_place_is_that_of_its_range() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(1)
    tracker.take_range(5)
    assert (tracker.last_of(1), tracker.last_of(2)) == (1, 6)


def test_place_that_is_not_open_is_neither_abandoned_nor_spent() -> None:
    tracker = RequestTracker(window=8)
    tracker.complete(tracker.take_singles(1))
    for leave in (tracker.abandon, tracker.spend):
        with pytest.raises(ValueError):
            leave([1])


def test_spent_number_whose_caller_is_told_is_acknowledged_at_once() -> None:
    tracker = RequestTracker(window=8)
    tracker.take_singles(2)
    tracker.spend([1])
    assert tracker.settle(1)
    assert not tracker.settle(1)
    assert tracker.first_incomplete == 2


def test_spent_numbers_raise_what_the_server_is_known_to_have_only_if_it_has_recorded_them() -> None:
    for recorded, first_incomplete in ((False, 2), (True, 3)):
        tracker = RequestTracker(window=2)
        tracker.spend(tracker.take_singles(2), recorded=recorded)
        tracker.make_room(2)
        assert tracker.first_incomplete == first_incomplete


def test_window_has_one_place_at_least_and_no_more_than_its_bound() -> None:
    tracker = RequestTracker(window=1)
    assert list(tracker.take_singles(1)) == [1]
    assert not tracker.room_for_singles
    assert RequestTracker(window=WINDOW_MAX).room_for_singles == WINDOW_MAX
    for window in (0, WINDOW_MAX + 1):
        with pytest.raises(OncegateError) as refused:
            RequestTracker(window=window)
        assert refused.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize(
    "tell",
    [
        pytest.param(lambda tracker, firsts: tracker.complete(firsts), id="complete"),
        pytest.param(lambda tracker, firsts: tracker.spend(firsts, recorded=True), id="spend"),
        pytest.param(lambda tracker, firsts: (tracker.spend(firsts), *map(tracker.settle, firsts)), id="settle"),
    ],
)
def test_room_ends_one_window_above_the_last_number_that_the_server_is_known_to_have(
    tell: Callable[[RequestTracker, list[int]], object], length: int
) -> None:
    tracker = RequestTracker(window=3)
    tell(tracker, [tracker.take_range(length)] if length else [])
    for _ in range(5):
        tracker.spend(tracker.take_singles(tracker.room_for_singles))
        tracker.make_room()
    assert tracker.first_incomplete == length + 3


class TrackerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = RequestTracker(window=WINDOW)
        self.places: dict[int, int] = {}  # first -> length, of all that may still matter
        self.state: dict[int, str] = {}  # first -> open, complete, abandoned, spent, free
        self.acknowledged = 0
        self.recorded = 0
        self.left_behind = 0  # places that an earlier process has left

    @initialize(
        resumed=st.booleans(),
        highest=st.integers(0, 2 * WINDOW),
        low=st.integers(1, 4 * WINDOW),
        above=st.sets(st.integers(0, WINDOW - 1)),
    )
    def begin(self, resumed: bool, highest: int, low: int, above: set[int]) -> None:
        """Begin anew, or go on for an earlier process that leaves numbers within one window without results."""
        if not resumed:
            return
        held = sorted(low + offset for offset in above)
        self.tracker = RequestTracker.resumed(window=WINDOW, highest=highest, held=held)
        self.recorded = highest
        last = max([highest, *held])
        first = min(held, default=last + 1)
        stands_for_all_below = min(first, highest + WINDOW) if held else first
        for number in range(stands_for_all_below, last + 1):
            self.places[number], self.state[number] = 1, "open" if number in held else "complete"
        if stands_for_all_below < first:
            self.state[stands_for_all_below] = "free"
        self.acknowledged = stands_for_all_below - 1
        self.left_behind = len(self.places)

    def first_incomplete(self) -> int:
        """Smallest number at or above what was acknowledged that is not complete."""
        waiting = [first for first in self.places if self.state[first] != "complete"]
        return min(waiting, default=self.top())

    def top(self) -> int:
        return max([first + length for first, length in self.places.items()], default=self.acknowledged + 1)

    def settle(self) -> None:
        low = self.first_incomplete()
        for first in [first for first in self.places if first < low]:
            self.acknowledged = max(self.acknowledged, first + self.places[first] - 1)
            del self.places[first], self.state[first]

    def opened(self) -> list[int]:
        return sorted(first for first, state in self.state.items() if state == "open")

    def room_for_singles(self) -> int:
        """Count as the server does, which may not have seen a range yet: each of its numbers takes a place."""
        numbers = sum(1 if self.state[first] == "complete" else length for first, length in self.places.items())
        free = sum(1 for state in self.state.values() if state == "free")
        return max(0, WINDOW - numbers) + free

    @rule(count=st.integers(1, WINDOW + 1))
    def take_singles(self, count: int) -> None:
        if count > self.tracker.room_for_singles:
            with pytest.raises(OncegateError) as refused:
                self.tracker.take_singles(count)
            assert refused.value.code is Code.WINDOW_FULL
            return
        top = self.top()
        numbers = list(self.tracker.take_singles(count))
        assert numbers == sorted(set(numbers))
        assert len(numbers) == count
        for number in numbers:
            assert self.state.get(number, "free") == "free"
            assert number in self.state or number >= top
            self.places[number], self.state[number] = 1, "open"

    @rule(length=st.integers(1, 20))
    def take_range(self, length: int) -> None:
        if not self.tracker.room_for_range:
            with pytest.raises(OncegateError):
                self.tracker.take_range(length)
            return
        top = self.top()
        first = self.tracker.take_range(length)
        assert first == top
        self.places[first], self.state[first] = length, "open"

    @precondition(lambda self: self.opened())
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        firsts = data.draw(st.lists(st.sampled_from(self.opened()), unique=True))
        self.tracker.complete(firsts)
        for first in firsts:
            self.state[first] = "complete"
            self.recorded = max(self.recorded, first + self.places[first] - 1)
        self.settle()

    @precondition(lambda self: self.opened())
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        first = data.draw(st.sampled_from(self.opened()))
        self.tracker.abandon([first])
        self.state[first] = "abandoned"

    @precondition(lambda self: any(state in ("open", "abandoned") for state in self.state.values()))
    @rule(data=st.data(), recorded=st.booleans())
    def spend(self, data: st.DataObject, recorded: bool) -> None:
        may = sorted(first for first, state in self.state.items() if state in ("open", "abandoned"))
        first = data.draw(st.sampled_from(may))
        self.tracker.spend([first], recorded=recorded)
        self.state[first] = "spent"
        if recorded:
            self.recorded = max(self.recorded, first + self.places[first] - 1)

    @precondition(lambda self: self.opened())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        firsts = data.draw(st.lists(st.sampled_from(self.opened()), unique=True))
        self.tracker.release(firsts)
        for first in sorted(firsts, reverse=True):
            if first == max(self.places):
                del self.places[first], self.state[first]
                self.acknowledged = max(self.acknowledged, first - 1) if not self.places else self.acknowledged
            else:
                self.state[first] = "free" if self.places[first] == 1 else "spent"

    @rule(data=st.data())
    def settle_doubt(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, self.top()) | st.sampled_from([1, *self.places]))
        doubted = self.state.get(first) in ("abandoned", "spent")
        assert self.tracker.settle(first) == doubted
        if doubted:
            self.state[first] = "complete"
            self.recorded = max(self.recorded, first + self.places[first] - 1)
            self.settle()

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(1, self.top()) | st.sampled_from([1, *self.places]))
        abandoned = self.state.get(first) == "abandoned"
        assert self.tracker.reopen(first) == abandoned
        if abandoned:
            self.state[first] = "open"

    @rule(singles=st.none() | st.integers(0, WINDOW + 1), told_full=st.booleans())
    def make_room(self, singles: int | None, told_full: bool) -> None:
        """The oldest place goes while there is no room, or once if told so: if spent or free, and never a BAD_ACK."""
        if singles is None:
            self.tracker.make_room(told_full=told_full)
        else:
            self.tracker.make_room(singles, told_full=told_full)
        wanted = 1 if singles is None else singles
        while self.places and (told_full or len(self.places) >= WINDOW or self.room_for_singles() < wanted):
            first = min(self.places)
            if self.state[first] not in ("spent", "free") or first + self.places[first] > self.recorded + WINDOW:
                break
            self.state[first] = "complete"
            self.settle()
            told_full = False

    @invariant()
    def first_incomplete_agrees(self) -> None:
        assert self.tracker.first_incomplete == self.first_incomplete()

    @invariant()
    def places_never_exceed_the_window(self) -> None:
        assert len(self.places) <= max(WINDOW, self.left_behind)
        assert self.tracker.room_for_range == (len(self.places) < WINDOW)

    @invariant()
    def a_fresh_single_is_always_inside_the_servers_window(self) -> None:
        assert self.tracker.room_for_singles == self.room_for_singles()

    @invariant()
    def each_number_is_told_to_be_what_it_is(self) -> None:
        assert self.tracker.incomplete == sum(state != "complete" for state in self.state.values())
        for first, state in self.state.items():
            assert self.tracker.has_given(first) == (state != "free")
            assert self.tracker.is_abandoned(first) == (state == "abandoned")
            assert self.tracker.may_be_asked(first) == (state in ("open", "abandoned"))
            assert state == "complete" or self.tracker.last_of(first) == first + self.places[first] - 1
        assert not self.tracker.has_given(self.top())


TrackerAgainstModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_tracker_agrees_with_model = TrackerAgainstModel.TestCase
