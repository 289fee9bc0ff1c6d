"""When a pattern is settled, without Spark: whatever order events come in, and wherever micro-batches are cut."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.spark_sink.library.patterns import Events, Match, Rule, ordered, settle

RULES = (
    Rule("a-b", "a", "b", 30),
    Rule("a-no-b", "a", "b", 30, absent=True),
    Rule("a-c", "a", "c", 200),
    Rule("b-no-c", "b", "c", 15, absent=True),
    Rule("a-a", "a", "a", 20),
)
Event = tuple[int, int, str]
NONE = Events(*(np.zeros(0, kind) for kind in (np.int64, np.int64, object, np.int64)))


def recount(events: list[Event]) -> set[tuple[Any, ...]]:
    found = set()
    line = sorted(events)
    for at, (time, commit, kind) in enumerate(line):
        for rule in RULES:
            if rule.first == kind:
                after = next((other for other in line[at + 1 :] if other[2] == rule.second), None)
                if after is not None and after[0] <= time + rule.within_ms:
                    if not rule.absent:
                        found.add((rule.name, commit, time, after[1], after[0]))
                elif rule.absent:
                    found.add((rule.name, commit, time, 0, time + rule.within_ms))
    return found


def arrivals(seed: int, count: int, late: int) -> list[Event]:
    chance = random.Random(seed)
    return [(5 * n + 500 - chance.randrange(late + 1), n, chance.choice("abcd")) for n in range(1, count)]


class Key:
    """Feeds events as Spark does: with the watermark of the micro-batch, or a timer alone."""

    def __init__(self) -> None:
        self.events, self.soonest, self.found = NONE, None, list[Match]()

    def feed(self, new: list[Event], watermark: int) -> None:
        if new:
            at, commit, kind = zip(*new, strict=True)
            self.events = ordered(RULES, self.events, np.array(at), np.array(commit), np.array(kind, object))
        elif self.soonest is None or self.soonest >= watermark:
            return
        found, self.events, self.soonest = settle(RULES, self.events, watermark)
        self.found += found


@given(st.integers(0, 10**6), st.lists(st.integers(1, 12), min_size=1, max_size=20))
@settings(deadline=None, max_examples=60)
def test_matches_follow_from_the_events_alone_wherever_micro_batches_are_cut(seed: int, sizes: list[int]) -> None:
    late = 40
    given_events = arrivals(seed, sum(sizes) + 1, late)
    key, latest, begin = Key(), 0, 0
    for size in sizes:
        watermark = latest - late - 5
        part = given_events[begin : begin + size]
        key.feed(part, watermark)
        latest, begin = max([latest, *(at for at, _, _ in part)]), begin + size
        key.feed([], latest - late - 5)
    key.feed([], 10**6)
    assert len(key.found) == len(set(key.found))
    assert set(key.found) == recount(given_events)
    assert len(key.events.at) == 0


def test_state_holds_only_what_may_still_be_needed() -> None:
    key = Key()
    key.feed(arrivals(1, 400, 40), 0)
    assert len(key.events.at) > 200
    key.feed([], 500 + 5 * 400 - 40)
    # The longest rule waits for 200 ms, and there is an event each 5 ms.
    assert len(key.events.at) <= 40 + 8


@pytest.mark.parametrize(("at", "second"), [(130, 2), (131, 0)])
def test_the_last_moment_of_the_time_is_within_it(at: int, second: int) -> None:
    key = Key()
    key.feed([(100, 1, "a"), (at, 2, "b")], 0)
    key.feed([], 10**6)
    assert {match.second_commit for match in key.found if match.rule in ("a-b", "a-no-b")} == {second}


def test_a_rule_that_is_settled_is_not_settled_again_when_another_keeps_its_event() -> None:
    key = Key()
    key.feed([(100, 1, "a"), (110, 2, "b")], 0)
    key.feed([], 120)
    assert [match[:2] for match in key.found] == [("a-b", 1)]
    for watermark in (135, 150, 299):
        key.feed([], watermark)
    assert [match.rule for match in key.found] == ["a-b", "b-no-c"]
    key.feed([(299, 3, "c")], 298)
    key.feed([], 10**6)
    assert [match for match in key.found if match.rule == "a-c"] == [("a-c", 1, 100, 3, 299)]
