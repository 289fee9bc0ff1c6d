"""Sessions without Spark: against a recount by plain loops, batches doubled and in any order."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark import FlowBatch, Store, apply, open_store
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.sessions import Sessions, sessions
from oncegate.stores.errors import StoreCode

GAP, LATENESS = 25, 40
JOB = sessions("s", events_by({"user": str}, at="at", sums=["likes"]), gap_ms=GAP, lateness_ms=LATENESS)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store") as opened:
        yield opened


def at(*times: int, number: int = 1, user: str = "a") -> FlowBatch:
    written = ((f"e{number}-{time}", {"user": user, "at": time, "likes": 1}) for time in times)
    return FlowBatch.of(*written, number=number, first_commit=100 * number)


def shown(store: Store, job: Sessions = JOB) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in job.read(store).to_pylist()]


def recount(times: dict[str, list[tuple[int, int]]]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for user, events in sorted(times.items()):
        open_session: list[tuple[int, int]] = []
        for event in sorted(events):
            if open_session and event[0] - open_session[-1][0] > GAP:
                found.append(closed(user, open_session))
                open_session = []
            open_session.append(event)
        found.append(closed(user, open_session))
    return found


def closed(user: str, events: list[tuple[int, int]]) -> tuple[Any, ...]:
    return (user, events[0][0], events[-1][0], len(events), sum(likes for _, likes in events))


@pytest.mark.parametrize("seed", range(4))
def test_sessions_with_late_events_are_exact_when_batches_come_twice_and_in_any_order(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    given, times = [], defaultdict(list)
    for number in range(1, 9):
        written = []
        for one in range(20):
            late = chance.choice([0, 0, chance.randrange(400)])
            event = (60 * number + chance.randrange(60) - late, chance.randrange(-3, 9))
            user = chance.choice("abc")
            times[user].append(event)
            written.append((f"e{number}-{one}", {"user": user, "at": event[0], "likes": event[1]}))
        given.append(FlowBatch.of(*written, number=number, first_commit=1000 * number))
    twice = [*given, *given]
    chance.shuffle(twice)
    apply(JOB, store, JOB.tables, *twice)
    assert [row[:-1] for row in shown(store)] == recount(times)


def test_events_just_a_gap_apart_are_one_session_and_one_more_apart_are_two(store: Store) -> None:
    apply(JOB, store, JOB.tables, at(0, GAP, 2 * GAP + 1), at(GAP, 2 * GAP + 2, number=2, user="b"))
    assert shown(store) == [
        ("a", 0, GAP, 2, 2, False),
        ("a", 2 * GAP + 1, 2 * GAP + 1, 1, 1, False),
        ("b", GAP, GAP, 1, 1, False),
        ("b", 2 * GAP + 2, 2 * GAP + 2, 1, 1, False),
    ]


def test_a_late_event_joins_two_sessions_of_earlier_batches(store: Store) -> None:
    apply(JOB, store, JOB.tables, at(0, 40), at(300, number=2))
    assert [row[1:4] for row in shown(store)] == [(0, 0, 1), (40, 40, 1), (300, 300, 1)]
    apply(JOB, store, JOB.tables, at(20, number=3))
    assert [row[1:4] for row in shown(store)] == [(0, 40, 3), (300, 300, 1)]


def test_a_session_is_final_once_no_event_in_time_could_join_it(store: Store) -> None:
    apply(JOB, store, JOB.tables, at(10), at(10 + GAP + LATENESS, number=2))
    assert [row[-1] for row in shown(store)] == [False, False]
    apply(JOB, store, JOB.tables, at(11 + GAP + LATENESS, number=3))
    assert [row[-1] for row in shown(store)] == [True, False]


def test_a_long_interval_holds_shorter_ones_of_other_batches(store: Store) -> None:
    apply(JOB, store, JOB.tables, at(*range(0, 500, 20)), at(100, number=2), at(505, number=3))
    assert [row[1:4] for row in shown(store)] == [(0, 505, 27)]


def test_a_negative_gap_is_refused() -> None:
    with pytest.raises(SinkError) as refused:
        sessions("s", JOB.fields, gap_ms=-1)
    assert refused.value.code is StoreCode.BAD_OPTION
