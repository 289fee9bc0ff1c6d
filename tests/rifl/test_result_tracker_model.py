"""A tracker against a dumb dictionary, sequence number to what was done: all it tells, and what it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncegate.rifl import result_tracker as tracker_module
from oncegate.rifl.completion import FINGERPRINT_BYTES, CompletionRecord, RangeRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import WINDOW_DEFAULT
from oncegate.rifl.result_tracker import RECORD_BYTES_MAX, ResultTracker
from tests.rifl.apply_rule import places

BYTES_MAX = 30
NUMBERS = range(-1, 30)

sizes = st.none() | st.integers(0, 12)
commits = st.sampled_from([0, *[50] * 9])
prints_missing = st.sampled_from([1, *[0] * 9])
lengths = st.sampled_from([0, *[1, 2, 3] * 3])


class Bytes(NamedTuple):
    """A result of a given size."""

    size: int


class Done(NamedTuple):
    """What the model knows of an operation; those of a range came together, and so did those of a run."""

    record: CompletionRecord
    bytes: int
    together: object
    kind: str


class TrackerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._bound = mock.patch.object(tracker_module, "RECORD_BYTES_MAX", BYTES_MAX)
        self._bound.start()
        self.tracker = ResultTracker()
        self.window = WINDOW_DEFAULT
        self.done: dict[int, Done] = {}
        self.first_incomplete = 1
        self.highest = 0
        self.sent = 0

    def teardown(self) -> None:
        self._bound.stop()

    @initialize(window=st.integers(1, 6))
    def begin(self, window: int) -> None:
        self.window = window
        self.tracker = ResultTracker(window=window)

    def may(self, first: int, last: int) -> bool:
        return first >= max(1, self.first_incomplete) and not any(s in self.done for s in range(first, last + 1))

    def _print(self) -> int:
        self.sent += 1
        return self.sent << 56 | self.sent

    @rule(offset=st.integers(-2, 9), size=sizes, commit=commits, traceparent=st.sampled_from(["", "trace"]))
    def record(self, offset: int, size: int | None, commit: int, traceparent: str) -> None:
        sequence, print_ = self.first_incomplete + offset, self._print()
        result = None if size is None else Bytes(size)
        if not self.may(sequence, sequence) or commit < 1:
            with pytest.raises(InvariantViolation):
                self.tracker.record(sequence, print_, commit, result, traceparent)
            return
        expected = CompletionRecord(print_, commit, result, traceparent)
        assert self.tracker.record(sequence, print_, commit, result, traceparent) == expected
        self.done[sequence] = Done(expected, size or 0, object(), "single")
        self.highest = max(self.highest, sequence)

    @rule(offset=st.integers(-2, 9))
    def seal(self, offset: int) -> None:
        sequence = self.first_incomplete + offset
        if not self.may(sequence, sequence):
            with pytest.raises(InvariantViolation):
                self.tracker.seal(sequence)
            return
        self.tracker.seal(sequence)
        self.done[sequence] = Done(CompletionRecord(0, 0), 0, object(), "single")
        self.highest = max(self.highest, sequence)

    @rule(
        offset=st.integers(-2, 9),
        length=lengths,
        commit=commits,
        missing=prints_missing,
        traceparent=st.sampled_from(["", "trace"]),
    )
    def record_range(self, offset: int, length: int, commit: int, missing: int, traceparent: str) -> None:
        first = self.first_incomplete + offset
        prints = [self._print() for _ in range(length)]
        part = _part(first, prints[missing:], commit, traceparent, length)
        if not self.may(first, first + length - 1) or commit < 1 or missing or not length:
            with pytest.raises(InvariantViolation):
                self.tracker.record_range(part)
            return
        self.tracker.record_range(part)
        self._add(first, prints, commit, traceparent, "range", FINGERPRINT_BYTES)

    @rule(
        ahead=st.sampled_from([-1, 0, *[1, 2, 3] * 3]),
        length=lengths,
        commit=commits,
        missing=prints_missing,
        traceparent=st.sampled_from(["", "trace"]),
    )
    def record_run(self, ahead: int, length: int, commit: int, missing: int, traceparent: str) -> None:
        first = self.highest + ahead
        prints = [self._print() for _ in range(length)]
        part = _part(first, prints[missing:], commit, traceparent, length)
        if first <= self.highest or first < self.first_incomplete or commit < 1 or missing or not length:
            with pytest.raises(InvariantViolation):
                self.tracker.record_run(part)
            return
        self.tracker.record_run(part)
        self._add(first, prints, commit, traceparent, "run", 0)

    def _add(self, first: int, prints: list[int], commit: int, traceparent: str, kind: str, size: int) -> None:
        together = object()
        for at, print_ in enumerate(prints):
            record = CompletionRecord(print_, commit + at, None, traceparent)
            self.done[first + at] = Done(record, size, together if kind == "range" else object(), kind)
        self.highest = max(self.highest, first + len(prints) - 1)

    @rule(offset=st.integers(-1, 12), through=st.booleans())
    def acknowledge(self, offset: int, through: bool) -> None:
        """Mostly of some of what is recorded; ``through``: of all of it, and of what may be."""
        first_incomplete = self.highest + offset if through else self.first_incomplete + offset
        self.tracker.acknowledge(first_incomplete)
        if self.first_incomplete < first_incomplete <= self.highest + self.window:
            self.first_incomplete = first_incomplete
            self.done = {s: done for s, done in self.done.items() if s >= first_incomplete}

    @rule()
    def restore(self) -> None:
        one = self.tracker
        self.tracker = ResultTracker.restore(
            one.window, one.first_incomplete, one.highest, dict(one.kept_singly), list(one.ranges), list(one.runs)
        )

    @invariant()
    def both_know_the_same(self) -> None:
        tells_exactly(self.tracker, self.window, self.first_incomplete, self.highest, self.done)

    @rule(after=st.integers(0, 12), limit=st.integers(0, 5))
    def list_open_requests(self, after: int, limit: int) -> None:
        expected: list[tuple[int, int, object]] = []
        parts = {part.first: part for part in parts_of(self.done, "range")}
        sequence = self.first_incomplete
        while sequence <= self.highest:
            first, what = sequence, self.done.get(sequence)
            if what is None:
                while sequence + 1 not in self.done and sequence < self.highest:
                    sequence += 1
                expected.append((first, sequence, None))
            elif what.kind == "range":
                sequence = parts[first].last
                expected.append((first, sequence, parts[first]))
            else:
                expected.append((first, first, what.record))
            sequence += 1
        expected = [each for each in expected if each[1] > after]
        assert self.tracker.open_requests(after, limit) == expected[:limit]

    @rule(low=st.integers(0, 12), length=st.integers(0, 16), unit=st.sampled_from([1, 2, 3]))
    def count_places(self, low: int, length: int, unit: int) -> None:
        base, sequence = self.first_incomplete + low, self.first_incomplete + low + length
        known = {s: (0, 0, done.together) for s, done in self.done.items()}
        if sequence not in self.done:  # a candidate never is
            assert self.tracker.places(sequence, base, unit) == places(known, base, sequence, unit)
        assert self.tracker.has_gap(base, sequence) == any(s not in self.done for s in range(base, sequence))
        assert self.tracker.held(base) == len({done.together for s, done in self.done.items() if s >= base})

    @rule(ack=st.integers(0, 14))
    def weigh(self, ack: int) -> None:
        left = sum(done.bytes for s, done in self.done.items() if s >= self.first_incomplete + ack)
        assert self.tracker.is_over_bytes(self.first_incomplete + ack) == (left > BYTES_MAX)


def parts_of(done: dict[int, Done], kind: str) -> list[RangeRecord]:
    """What is left of ranges, ascending."""
    found: dict[object, list[int]] = {}
    for sequence in sorted(s for s, one in done.items() if one.kind == kind):
        found.setdefault(done[sequence].together, []).append(sequence)
    return [
        _part(
            numbers[0],
            [done[s].record.fingerprint for s in numbers],
            done[numbers[0]].record.commit,
            done[numbers[0]].record.traceparent,
            len(numbers),
        )
        for numbers in found.values()
    ]


def tells_exactly(
    tracker: ResultTracker, window: int, first_incomplete: int, highest: int, done: dict[int, Done]
) -> None:
    """Assert that it knows what was done, no more and no less, and holds nothing for what is not there."""
    singly = {s: one.record for s, one in done.items() if one.kind != "range"}
    assert dict(tracker.records) == singly
    assert tracker.records_count == len(singly)
    assert dict(tracker.kept_singly) == {s: one.record for s, one in done.items() if one.kind == "single"}
    assert tracker.ranges == parts_of(done, "range")
    numbers = [number for run in tracker.runs for number in range(run.first, run.last + 1)]
    assert numbers == sorted(s for s, one in done.items() if one.kind == "run")
    assert tracker.bytes == sum(one.bytes for one in done.values())
    assert tracker.dump() == [window, first_incomplete, highest, sorted(singly.items()), list(tracker.ranges)]
    assert [tracker.find(s) for s in NUMBERS] == [done[s].record if s in done else None for s in NUMBERS]
    held = (tracker._records is not None, tracker._ranges is not None, tracker._runs is not None)
    assert held == tuple(any(one.kind == kind for one in done.values()) for kind in ("single", "range", "run"))


def _part(first: int, prints: list[int], commit: int, traceparent: str, length: int) -> RangeRecord:
    column = b"".join(print_.to_bytes(FINGERPRINT_BYTES, "big") for print_ in prints)
    return RangeRecord(first, first + length - 1, commit, column, traceparent)


part = st.tuples(st.integers(0, 9), st.integers(-1, 2)).map(lambda part: (part[0], part[0] + part[1]))
small_parts = st.lists(part, max_size=2) | st.lists(part, max_size=3).map(sorted)


@given(st.integers(0, 5), st.integers(0, 9), st.sets(st.integers(0, 9), max_size=3), small_parts, small_parts)
def test_saved_tracker_is_taken_exactly_if_what_it_holds_is_in_order_and_inside_its_bounds(
    first_incomplete: int, highest: int, records: set[int], ranges: list[tuple[int, int]], runs: list[tuple[int, int]]
) -> None:
    def fit(parts: list[tuple[int, int]]) -> bool:
        ends = [max(1, first_incomplete) - 1, *(last for _, last in parts)]
        return ends[-1] <= max(highest, ends[0]) and all(
            end < first <= last for end, (first, last) in zip(ends, parts, strict=False)
        )

    kept = {sequence: CompletionRecord(sequence, 1) for sequence in records}
    made = [
        [_part(first, [1] * (last - first + 1), 1, "", last - first + 1) for first, last in p] for p in (ranges, runs)
    ]
    if fit(ranges) and fit(runs) and all(first_incomplete <= sequence <= highest for sequence in records):
        tracker = ResultTracker.restore(4, first_incomplete, highest, kept, *made)
        assert (tracker.window, tracker.first_incomplete, tracker.highest) == (4, first_incomplete, highest)
        assert (tracker.kept_singly, tracker.ranges, tracker.runs) == (kept, *made)
        assert tracker.bytes == sum(len(part.fingerprints) for part in made[0])
    else:
        with pytest.raises(InvariantViolation):
            ResultTracker.restore(4, first_incomplete, highest, kept, *made)


WINDOW = 6


def small_trackers(numbers: int = 4) -> Iterator[tuple[ResultTracker, dict[int, Done]]]:
    """Each way in which so many numbers are absent, alone, or of a range or run, a new tracker each time."""
    for kinds in product("-aru", *["-arcu"] * (numbers - 1)):
        if all(before in {"c": "rc", "-": "-aruc"}.get(kind, "-aruc") for before, kind in pairwise(("-", *kinds))):
            yield small_tracker("".join(kinds))


def small_tracker(kinds: str) -> tuple[ResultTracker, dict[int, Done]]:
    """``a``: alone, an odd one with a result; ``r``: a range begins, ``u``: a run; ``c``: one goes on."""
    tracker, done = ResultTracker(window=WINDOW), dict[int, Done]()
    for first in (at for at, kind in enumerate(kinds, 1) if kind in "aru"):
        kind, last, together = kinds[first - 1], first, object()
        while kinds[last : last + 1] == "c":
            last += 1
        size, commit = (5 * (first % 2) if kind == "a" else 0), 10 * first
        prints = [100 + number for number in range(first, last + 1)]
        if kind == "a":
            tracker.record(first, prints[0], commit, Bytes(size) if size else None, "trace")
        elif kind == "r":
            tracker.record_range(_part(first, prints, commit, "trace", len(prints)))
            size = FINGERPRINT_BYTES
        else:
            tracker.record_run(_part(first, prints, commit, "trace", len(prints)))
        for at, print_ in enumerate(prints):
            result = Bytes(size) if kind == "a" and size else None
            record = CompletionRecord(print_, commit + at, result, "trace")
            name = {"a": "single", "r": "range", "u": "run"}[kind]
            done[first + at] = Done(record, size, together if kind == "r" else object(), name)
    return tracker, done


def test_counts_are_those_of_counting_one_by_one_for_every_small_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked is every part of the numbers and of what is around them."""
    monkeypatch.setattr(tracker_module, "RECORD_BYTES_MAX", 12)
    for tracker, done in small_trackers():
        known = {s: (0, 0, one.together) for s, one in done.items()}
        for base in range(7):
            left = {s: one for s, one in done.items() if s >= base}
            assert tracker.held(base) == len({one.together for one in left.values()})
            assert tracker.is_over_bytes(base) == (sum(one.bytes for one in left.values()) > 12), (done, base)
            for sequence in range(base, 7):
                assert tracker.has_gap(base, sequence) == any(s not in done for s in range(base, sequence))
                for unit in (1, 2, 3) if sequence not in done else ():
                    assert tracker.places(sequence, base, unit) == places(known, base, sequence, unit), (done, base)


def test_an_ack_drops_what_is_below_it_and_no_more_of_every_small_tracker() -> None:
    for (tracker, done), ack in ((made, ack) for ack in range(12) for made in small_trackers()):
        highest = max(done, default=0)
        tracker.acknowledge(ack)
        taken = 1 < ack <= highest + WINDOW
        left = {s: one for s, one in done.items() if s >= ack or not taken}
        tells_exactly(tracker, WINDOW, ack if taken else 1, highest, left)


def test_each_small_tracker_takes_what_is_new_and_nothing_twice() -> None:
    for ack, first, length in product((1, 3, 5), range(7), (1, 2, 3)):
        last = first + length - 1
        prints = [200 + at for at in range(length)]
        for kind in ("single", "sealed", "range", "run")[0 if length == 1 else 2 :]:
            for tracker, done in small_trackers(3):
                tracker.acknowledge(ack)
                left = {s: one for s, one in done.items() if s >= ack}
                highest = max(done, default=0)
                free = first >= ack and not any(s in left for s in range(first, last + 1))
                part = _part(first, prints, 7, "", length)

                def record(tracker: ResultTracker = tracker, kind: str = kind, part: RangeRecord = part) -> None:
                    match kind:
                        case "single":
                            tracker.record(part.first, prints[0], 7, Bytes(3))  # noqa: B023 - called at once
                        case "sealed":
                            tracker.seal(part.first)
                        case "range":
                            tracker.record_range(part)
                        case _:
                            tracker.record_run(part)

                if not free or (kind == "run" and first <= highest):
                    with pytest.raises(InvariantViolation):
                        record()
                    tells_exactly(tracker, WINDOW, ack, highest, left)
                    continue
                record()
                together = object()
                for at, print_ in enumerate(prints):
                    made = CompletionRecord(print_, 7 + at, Bytes(3) if kind == "single" else None)
                    if kind == "sealed":
                        made = CompletionRecord(0, 0)
                    size = {"single": 3, "range": FINGERPRINT_BYTES}.get(kind, 0)
                    name = kind if kind in ("range", "run") else "single"
                    left[first + at] = Done(made, size, together if kind == "range" else object(), name)
                tells_exactly(tracker, WINDOW, ack, max(highest, last), left)


def test_saved_tracker_that_none_was_is_refused_by_what_is_wrong() -> None:
    parts = [_part(3, [1], 1, "", 1), _part(3, [1], 1, "", 1)]
    for held, words in (((parts, []), "saved range 3..3 overlaps"), (([], parts), "saved run 3..3 overlaps")):
        with pytest.raises(InvariantViolation, match=words):
            ResultTracker.restore(4, 1, 9, {}, *held)


def test_tracker_begins_with_nothing_and_its_bound_is_what_the_table_says() -> None:
    assert ResultTracker().dump() == [WINDOW_DEFAULT, 1, 0, [], []]
    assert ResultTracker().bytes == 0
    assert RECORD_BYTES_MAX == 16 * 2**20


TrackerAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_tracker_agrees_with_model = TrackerAgainstModel.TestCase
