"""A join in the store, without Spark: passes at any time, batches in any order, a pass cut off at each of its steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark import DEAD_LETTERS, FlowBatch, Store, apply, open_store
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.events import events_by
from oncegate.spark_sink.library.store_join import store_join
from oncegate.stores import StoreTable, claimed_store
from oncegate.stores.claims import adopt
from oncegate.stores.errors import StoreCode

AFTER, BEFORE, LATENESS = 50, 10, 40
EVENTS = events_by({"order": str}, at="at")
JOIN = store_join("j", EVENTS, EVENTS, after_ms=AFTER, before_ms=BEFORE, lateness_ms=LATENESS)
Event = tuple[int, str, int]
"""Commit number, order, time."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite://{tmp_path}/store") as opened:
        opened.create([*JOIN.tables, DEAD_LETTERS])
        yield opened


def made(seed: int, late: int) -> dict[str, list[FlowBatch]]:
    """Six batches of each flow, in one log."""
    chance = random.Random(f"{seed} {late}")
    commits = itertools.count(1)
    flows: dict[str, list[FlowBatch]] = {"orders": [], "payments": []}
    for number, (flow, given) in itertools.product(range(1, 7), flows.items()):
        written = []
        for _ in range(12):
            at = 60 * number + chance.randrange(60) - chance.choice([0, 0, chance.randrange(late)])
            written.append((f"k{next(commits)}", {"order": chance.choice("abc"), "at": at}))
        first = int(written[0][0][1:])
        given.append(FlowBatch.of(*written, flow=flow, number=number, first_commit=first))
    return flows


def in_time(batches: list[FlowBatch]) -> list[Event]:
    found: list[Event] = []
    latest = -(10**9)
    for batch in batches:
        events = [(item.commit, item.json()["order"], item.json()["at"]) for item in batch]
        found += [event for event in events if event[2] >= latest - LATENESS]
        latest = max(latest, *(at for _, _, at in events))
    return found


def recount(flows: dict[str, list[FlowBatch]]) -> set[tuple[Any, ...]]:
    return {
        (order, left, right, at, later)
        for left, order, at in in_time(flows["orders"])
        for right, other, later in in_time(flows["payments"])
        if order == other and -BEFORE <= later - at <= AFTER
    }


def paired(store: Store) -> set[tuple[Any, ...]]:
    rows = JOIN.read(store).to_pylist()
    found = {tuple(row[name] for name in ("order", *names)) for row in rows for names in [JOIN.pairs.schema.names[1:5]]}
    assert len(found) == len(rows)
    return found


def write(store: Store, batch: FlowBatch) -> None:
    apply(JOIN.left if batch.flow == "orders" else JOIN.right, store, JOIN.tables, batch)


@pytest.mark.parametrize("late", [30, 200])
@pytest.mark.parametrize("seed", range(3))
def test_pairs_follow_from_the_events_alone_whenever_passes_run_and_batches_come(
    store: Store, seed: int, late: int
) -> None:
    flows = made(seed, late)
    chance = random.Random(seed)
    twice = [batch for given in flows.values() for batch in given for _ in range(2)]
    # Tasks of a micro-batch are done in any order, and again after a crash: never far from their place.
    twice.sort(key=lambda batch: batch.number + chance.randrange(3))
    evicted = 0
    for batch in twice:
        write(store, batch)
        if chance.random() < 0.4:
            evicted += JOIN.assemble(store).evicted
    JOIN.assemble(store)
    assert evicted > 20
    assert paired(store) == recount(flows)


def test_values_of_both_events_are_in_the_pair(store: Store) -> None:
    write(store, FlowBatch.of(("o", {"order": "a", "at": 5, "for": "ann"}), flow="orders"))
    write(store, FlowBatch.of(("p", {"order": "a", "at": 9, "paid": 3}), flow="payments", first_commit=7))
    assert JOIN.assemble(store).pairs == 1
    (row,) = JOIN.read(store).to_pylist()
    assert (row["left_value"], row["right_value"]) == (
        '{"order": "a", "at": 5, "for": "ann"}',
        '{"order": "a", "at": 9, "paid": 3}',
    )
    assert (row["left_commit"], row["right_commit"], row["write_ts"]) == (1, 7, 7)


def test_what_can_pair_no_more_is_evicted_and_nothing_sooner(store: Store) -> None:
    write(store, FlowBatch.of(("o", {"order": "a", "at": 100}), flow="orders"))
    for number, at, left in ((1, 100 + AFTER + LATENESS, 1), (2, 101 + AFTER + LATENESS, 0)):
        written = ("p", {"order": "b", "at": at})
        write(store, FlowBatch.of(written, flow="payments", number=number, first_commit=10 * number))
        JOIN.assemble(store)
        waiting = [row for part in store.scan(JOIN.waiting) for row in part.to_pylist()]
        assert [row["side"] for row in waiting].count("left") == left
    # The batch is written again after a crash of the job: what was evicted stays so.
    write(store, FlowBatch.of(("o", {"order": "a", "at": 100}), flow="orders"))
    assert store.count(JOIN.waiting) == 2


class Cut(Exception):
    """The process dies."""


class Dying:
    """A store that takes so many batches of rows, and half of the next one."""

    def __init__(self, store: Store, calls: int) -> None:
        self._store, self._calls = store, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self._store.write(table, self._half(rows))
        self._died()

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        self._store.delete(table, self._half(keys))
        self._died()

    def _half(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._calls -= 1
        return rows.slice(0, rows.num_rows // 2) if self._calls < 0 else rows

    def _died(self) -> None:
        if self._calls < 0:
            raise Cut


@pytest.mark.parametrize("calls", range(3))
def test_a_pass_that_is_cut_off_at_any_step_and_begun_again_is_exact(store: Store, calls: int) -> None:
    flows = made(7, 30)
    for first, second in zip(*flows.values(), strict=True):
        write(store, first)
        write(store, second)
        try:
            JOIN.assemble(Dying(store, calls))  # type: ignore[arg-type]
        except Cut:
            write(store, second)
    JOIN.assemble(store)
    assert paired(store) == recount(flows)


def test_both_sides_may_be_of_one_flow_told_apart_by_a_field(store: Store) -> None:
    sides = [events_by({"order": str}, at="at", where=("kind", kind)) for kind in ("order", "payment")]
    join = store_join("one", *sides, after_ms=AFTER, lateness_ms=0)
    value = {"order": "a", "kind": "order", "at": 3}
    batch = FlowBatch.of(("o", value), ("p", {**value, "kind": "payment"}), ("x", {"kind": "else"}), ("y", [1]))
    for side in (join.left, join.right):
        apply(side, store, join.tables, batch)
    join.assemble(store)
    assert [(row["left_commit"], row["right_commit"]) for row in join.read(store).to_pylist()] == [(1, 2)]
    # What is of another kind is not refused; what is no event at all is.
    assert [row["commit"] for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()] == [4]


def test_events_of_another_clusters_log_pair_with_none_and_stay(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/adopted"
    with claimed_store(url, "one") as store:
        store.create([*JOIN.tables, DEAD_LETTERS])
        Applier(JOIN.left, "left").apply(FlowBatch.of(("o", {"order": "a", "at": 5}), flow="orders"), store, Done())
        adopt(store._store, "here", "two")
    with claimed_store(url, "two") as store:
        paid = FlowBatch.of(("p", {"order": "a", "at": 9}), flow="payments", first_commit=7)
        Applier(JOIN.right, "right").apply(paid, store, Done())
        # A clock of this log that has passed the batch.
        Applier(JOIN.left, "left").apply(FlowBatch.of(("n", {"order": "b", "at": 9}), flow="orders"), store, Done())
        assert JOIN.assemble(store).pairs == 0
        assert store.count(JOIN.waiting) == 3


def test_sides_with_different_keys_are_refused() -> None:
    with pytest.raises(SinkError) as refused:
        store_join("j", EVENTS, events_by({"order": int}, at="at"), after_ms=1, lateness_ms=0)
    assert refused.value.code is StoreCode.BAD_OPTION
