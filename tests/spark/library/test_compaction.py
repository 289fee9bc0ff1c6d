"""Compaction loses and doubles nothing: killed at any step, beside readers, writers, another run, and replays."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.compaction import COMPACTIONS, check_not_compacted
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.library.aggregates import totals
from oncegate.spark_sink.library.fields import text, whole
from oncegate.spark_sink.library.history import history
from oncegate.spark_sink.library.together import together
from oncegate.spark_sink.reconcile import reconcile
from oncegate.spark_sink.replay import REPLAYS, Replay, next_stamp, record
from oncegate.stores import ClaimedStore, claimed_store
from oncegate.stores.claims import adopt
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.library.stepped import Step, Stepped, die, opening, steps

SALES = totals("sales", [text("shop")], [whole("price")])
BATCHES = 8


def sold(number: int) -> FlowBatch:
    rng = random.Random(number)
    items = [(f"s{at}", {"shop": rng.choice("abcdefg"), "price": rng.randrange(100)}) for at in range(9)]
    return FlowBatch.of(*items, number=number, first_commit=10 * number)


ALL = [sold(number) for number in range(1, BATCHES + 1)]


def recount(batches: list[FlowBatch]) -> dict[str, tuple[int, int]]:
    count, price = Counter[str](), Counter[str]()
    for batch in batches:
        for item in batch:
            count[item.json()["shop"]] += 1
            price[item.json()["shop"]] += item.json()["price"]
    return {shop: (count[shop], price[shop]) for shop in count}


def read(store: Any) -> dict[str, tuple[int, int]]:
    return {row["shop"]: (row["count"], row["price"]) for row in SALES.read(store).to_pylist()}


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], ClaimedStore]]:
    with opening(tmp_path, SALES.tables) as new:
        yield new


def applied(store: ClaimedStore, *batches: FlowBatch, stamp: int = 0) -> None:
    for batch in batches:
        Applier(SALES, "sales", stamp).apply(batch, store, Done())


def test_a_compaction_killed_at_any_step_loses_and_doubles_nothing(opened: Callable[[], ClaimedStore]) -> None:
    def killed(at: int) -> Stepped:
        store = opened()
        applied(store, *ALL[:6])
        SALES.partials.compact(store, 2)
        dying = Stepped(store, at, die)
        try:
            SALES.partials.compact(dying, 5)  # type: ignore[arg-type]
        except Step:
            assert read(store) == recount(ALL[:6])
        applied(store, *ALL[3:7])
        assert read(store) == recount(ALL[:7])
        assert SALES.partials.compact(store, 7) >= 0
        assert read(store) == recount(ALL[:7])
        assert store.count(SALES.partials.table) == 0
        applied(store, *ALL)
        assert read(store) == recount(ALL)
        return dying

    assert steps(killed) > 10


def test_a_reader_counts_each_batch_once_while_a_compaction_runs(opened: Callable[[], ClaimedStore]) -> None:
    def beside(at: int) -> Stepped:
        store = opened()
        applied(store, *ALL)
        SALES.partials.compact(store, 3)
        reader = Stepped(store, at, lambda: SALES.partials.compact(store, 8))
        assert read(reader) == recount(ALL)
        return reader

    assert steps(beside) > 3


def test_a_compaction_is_seen_by_readers_at_each_step_as_if_it_were_not_there(
    opened: Callable[[], ClaimedStore],
) -> None:
    def beside(at: int) -> Stepped:
        store = opened()
        applied(store, *ALL)

        def look() -> None:
            assert read(store) == recount(ALL)

        compacting = Stepped(store, at, look)
        SALES.partials.compact(compacting, 6)  # type: ignore[arg-type]
        return compacting

    assert steps(beside) > 10


@pytest.mark.parametrize("other", [3, 5, 7])
def test_compactions_that_overlap_count_each_batch_once(opened: Callable[[], ClaimedStore], other: int) -> None:
    def beside(at: int) -> Stepped:
        store = opened()
        applied(store, *ALL)
        one = Stepped(store, at, lambda: SALES.partials.compact(store, other))
        SALES.partials.compact(one, 5)  # type: ignore[arg-type]
        assert read(store) == recount(ALL)
        SALES.partials.compact(store, 8)
        assert read(store) == recount(ALL)
        return one

    assert steps(beside) > 10


def test_what_a_row_counts_is_said_by_its_batches(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    applied(store, *ALL)
    SALES.partials.compact(store, 3)
    for row in SALES.partials.read(store).to_pylist():
        counted = [batch for batch in ALL if batch.number <= row["through"] or batch.number in row["batches"]]
        assert (row["count"], row["price"]) == recount(counted)[row["shop"]]
        assert row["through"] <= 3 < min([9, *row["batches"]])


def test_reconcile_judges_what_is_not_compacted_whenever_a_compaction_was_killed(
    opened: Callable[[], ClaimedStore],
) -> None:
    def judged(store: ClaimedStore) -> Counter[str]:
        number_of = {batch.number: batch for batch in ALL}
        return reconcile(number_of.__getitem__, 1, 8, Applier(SALES, "sales"), store, tables=SALES.tables).counts

    def killed(at: int) -> Stepped:
        store = opened()
        store.create([DEAD_LETTERS])
        applied(store, *ALL)
        dying = Stepped(store, at, die)
        with suppress(Step):
            SALES.partials.compact(dying, 5)  # type: ignore[arg-type]
        assert not judged(store)
        return dying

    assert steps(killed) > 10
    store = opened()
    store.create([DEAD_LETTERS])
    applied(store, *ALL[:7])
    SALES.partials.compact(store, 5)
    assert set(judged(store)) == {"missing"}


def replay_of(store: ClaimedStore, first: int, last: int) -> Replay:
    store.create([REPLAYS])
    return Replay("sales", "fix", "flow", first, last, 10 * first, 10 * last + 8, next_stamp(store, 10 * last + 8))


def test_a_replay_of_compacted_batches_is_refused(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    applied(store, *ALL)
    SALES.partials.compact(store, 4)
    for going_on in (False, True):
        check_not_compacted(store, SALES.tables, 5, going_on=going_on)
        with pytest.raises(StoreError, match="compacted up to batch 4") as refused:
            check_not_compacted(store, SALES.tables, 4, going_on=going_on)
        assert refused.value.code is StoreCode.BAD_TABLE


def test_a_compaction_leaves_the_batches_of_a_replay_that_is_not_done(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    applied(store, *ALL)
    replay = replay_of(store, 4, 6)
    record(store, replay)
    SALES.partials.compact(store, 8)
    left = [row["batch"] for batch in store.scan(SALES.partials.table) for row in batch.to_pylist()]
    assert set(left) == {4, 5, 6, 7, 8}
    record(store, replace(replay, done=1))
    SALES.partials.compact(store, 8)
    assert store.count(SALES.partials.table) == 0
    assert read(store) == recount(ALL)


def test_replays_that_revise_nothing_here_hold_no_compaction_back(tmp_path: Path) -> None:
    """One keeps timestamps, so it restores what a compaction has merged or will; one is of another cluster's log."""
    url = f"sqlite://{tmp_path}/store?shards=1"
    with claimed_store(url, "one") as store:
        store.create(SALES.tables)
        record(store, replay_of(store, 1, 2))
        adopt(store._store, "here", "two")
    with claimed_store(url, "two") as store:
        applied(store, *ALL)
        record(store, replace(replay_of(store, 3, 4), name="kept", stamp=0))
        assert SALES.partials.compact(store, 8) > 0
        assert store.count(SALES.partials.table) == 0
        assert read(store) == recount(ALL)


def test_of_a_replay_and_a_compaction_that_begin_at_once_one_gives_way(opened: Callable[[], ClaimedStore]) -> None:
    """At whatever step of a compaction a replay begins: its rows count, or it is refused and writes none."""
    outcomes = set()

    def beside(at: int) -> Stepped:
        store = opened()
        applied(store, *ALL)
        replay = replay_of(store, 2, 3)
        revised = [FlowBatch.of(("x", {"shop": "a", "price": 900}), number=at, first_commit=10 * at) for at in (2, 3)]
        went_on = []

        def begin() -> None:
            record(store, replay)
            try:
                check_not_compacted(store, SALES.tables, 2, going_on=False)
            except StoreError:
                record(store, replace(replay, done=1))
                outcomes.add("refused")
            else:
                went_on.append(True)

        compacting = Stepped(store, at, begin)
        SALES.partials.compact(compacting, 5)  # type: ignore[arg-type]
        expected = recount(ALL)
        if went_on:  # the rows of the range that it writes are those of shop a
            outcomes.add("went on")
            check_not_compacted(store, SALES.tables, 2, going_on=True)
            applied(store, *revised, stamp=replay.stamp)
            expected["a"] = recount([*ALL[:1], *revised, *ALL[3:]])["a"]
        assert read(store) == expected
        return compacting

    steps(beside)
    assert outcomes == {"refused", "went on"}


def test_compacted_rows_of_another_clusters_log_contain_none_of_this_ones_batches(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store?shards=1"
    with claimed_store(url, "one") as store:
        store.create(SALES.tables)
        applied(store, *ALL[:4])
        SALES.partials.compact(store, 3)
        adopt(store._store, "here", "two")
    with claimed_store(url, "two") as store:
        applied(store, *ALL[4:6])
        assert read(store) == recount(ALL[:6])
        applied(store, replace(ALL[6], number=1), replace(ALL[7], number=2))
        assert read(store) == recount(ALL)
        SALES.partials.compact(store, 2)
        assert read(store) == recount(ALL)
        SALES.partials.compact(store, 6)
        assert read(store) == recount(ALL)
        row = store.get(COMPACTIONS, {"partials": "sales"})
        assert row is not None
        assert row["begun"] == 6


def test_nothing_is_compacted_before_a_batch_is_finished(opened: Callable[[], ClaimedStore]) -> None:
    store = opened()
    assert SALES.partials.compact(store, 0) == 0
    assert read(store) == {}
    assert not {"job_compactions", "sales_compacted"} & set(store.tables())


def test_each_of_several_jobs_together_is_maintained(opened: Callable[[], ClaimedStore]) -> None:
    visits = totals("visits", [text("shop")])
    job = together(history("seen", [text("shop")]), SALES, visits)
    store = opened()
    store.create(job.tables)
    for batch in ALL:
        Applier(job, "all").apply(batch, store, Done())
    job.maintain(store, 6)
    for table in (SALES.partials.table, visits.partials.table):
        assert {row["batch"] for rows in store.scan(table) for row in rows.to_pylist()} == {7, 8}
