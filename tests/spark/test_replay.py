"""Replays: rows of the range end as the new version makes them, nothing else changes, and a name is one replay."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs import replay as replays
from oncegate.spark_sink.replay import REPLAYS, recorded
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Clustering, Column, ColumnType, StoreTable, claimed_store
from oncegate.stores.errors import StoreCode, StoreError
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode
from tests.spark.recount import messages

COUNTS = StoreTable(
    name="counts",
    columns=(Column("sender", ColumnType.INT64), Column("batch", ColumnType.INT64), Column("posts", ColumnType.INT64)),
    partition_key=("sender",),
    clustering=(Clustering("batch"),),
)
SEEN = StoreTable(
    name="seen",
    columns=(Column("sender", ColumnType.INT64), Column("commit", ColumnType.INT64), Column("how", ColumnType.TEXT)),
    partition_key=("sender",),
    clustering=(Clustering("commit"),),
)
LATEST = StoreTable(
    name="latest",
    columns=(Column("sender", ColumnType.INT64), Column("newest", ColumnType.INT64)),
    partition_key=("sender",),
)


def first_version(batch: FlowBatch) -> Iterator[Change]:
    """Counts every post, and cannot read those of sender 2."""
    counts: Counter[int] = Counter()
    for item in batch:
        sender = item.json()["sender"]
        if sender == 2:
            yield item.reject("a sender of version 2")
            continue
        counts[sender] += 1
        yield item.upsert(SEEN, sender=sender, commit=item.commit, how="z, the larger value")
    for sender, posts in counts.items():
        yield batch.upsert(COUNTS, sender=sender, batch=batch.number, posts=posts)


def second_version(batch: FlowBatch) -> Iterator[Change]:
    """Leaves sender 0 out, reads sender 2, and counts with smaller numbers: values that lose at equal timestamps."""
    for item in batch:
        sender = item.json()["sender"]
        if sender != 0:
            yield item.upsert(SEEN, sender=sender, commit=item.commit, how="a")
            yield batch.upsert(COUNTS, sender=sender, batch=batch.number, posts=1)


def settings(tmp_path: Path, node: FakeNode, derivation: Derivation, **more: Any) -> job.JobSettings:
    fixed: dict[str, Any] = {
        "tables": (COUNTS, SEEN),
        "sink": sink_of(derivation, derivation.__name__.replace("_", "-")),
        "endpoints": node.url,
        "flow": node.flow.name,
        "consumer": "counting",
        "store": f"sqlite://{tmp_path}/store",
        "checkpoint": str(tmp_path / "checkpoint"),
        "timeout_s": 5,
    }
    return job.JobSettings(**{**fixed, **more})


def applied(live: job.JobSettings, derivation: Derivation, first: int, last: int, *, stamp: int = 0) -> None:
    """What tasks of Spark would do with these batches."""
    flow = FlowConsumer.attach(live.endpoints, live.flow, "reader").flow
    with claimed_store(live.store, CLUSTER) as store:
        store.create((*live.tables, DEAD_LETTERS))
        for number in range(first, last + 1):
            batch = FlowBatch(live.flow, number, flow.client().batch(number))
            Applier(derivation, live.consumer, stamp).apply(batch, store, Done())


def replayed(wanted: job.JobSettings, derivation: Derivation, *, stop_after: int = 10**9) -> None:
    """A replay as the job runs it, without Spark; ``stop_after``: batches until it is cut off."""
    with claimed_store(wanted.store, CLUSTER) as store:
        replay, consumer = replays.begin(wanted, store)
    if consumer is None:
        return replays.end(wanted)
    last = min(replay.last_batch, consumer.cursor + stop_after)
    applied(wanted, derivation, consumer.cursor + 1, last, stamp=replay.stamp)
    consumer.finish(last)
    return replays.end(wanted) if last == replay.last_batch else None


def held(live: job.JobSettings, table: StoreTable) -> set[tuple[Any, ...]]:
    """Rows without their timestamps."""
    with claimed_store(live.store, CLUSTER) as store:
        return {tuple(row.values())[:-1] for rows in store.scan(table) for row in rows.to_pylist()}


def fresh(tmp_path: Path, live: job.JobSettings, *parts: tuple[Derivation, int, int]) -> job.JobSettings:
    """A store that holds what these versions make of these ranges, and nothing else."""
    other = replace(live, store=f"sqlite://{tmp_path}/fresh")
    for derivation, first, last in parts:
        applied(other, derivation, first, last)
    return other


def code_of(action: Any, *arguments: Any) -> StoreCode:
    with pytest.raises(StoreError) as refused:
        action(*arguments)
    return refused.value.code


def test_a_recomputed_range_ends_as_the_new_version_makes_it_and_the_rest_stays(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    """Also where its values are smaller, where it makes fewer rows, and where the old one made dead letters."""
    flow.seal_all(messages(3, 90), 10)
    live = settings(tmp_path, node, first_version)
    applied(live, first_version, 1, 9)
    replayed(replace(live, replay="v2", from_batch=3, to_batch=7), second_version)
    expected = fresh(tmp_path, live, (first_version, 1, 2), (second_version, 3, 7), (first_version, 8, 9))
    for table in (COUNTS, SEEN, DEAD_LETTERS):
        assert held(live, table) == held(expected, table)
    # And once more, by a third version: the newer replay wins again.
    replayed(replace(live, replay="v3", from_batch=3, to_batch=4), first_version)
    expected = fresh(tmp_path / "3", live, (first_version, 1, 4), (second_version, 5, 7), (first_version, 8, 9))
    for table in (COUNTS, SEEN, DEAD_LETTERS):
        assert held(live, table) == held(expected, table)


def test_live_batches_that_come_while_and_after_a_replay_runs_are_as_ever(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, first_version)
    applied(live, first_version, 1, 6)
    wanted = replace(live, replay="v2", from_batch=1, to_batch=6)
    replayed(wanted, second_version, stop_after=3)
    flow.seal_all(messages(3, 30, first=61), 10)
    applied(live, second_version, 6, 9)  # live traffic with the new version, one batch of the range again
    replayed(wanted, second_version)
    expected = fresh(tmp_path, live, (second_version, 1, 9))
    assert held(live, COUNTS) == held(expected, COUNTS)
    assert held(live, SEEN) == held(expected, SEEN)
    assert held(live, DEAD_LETTERS) == set()


def test_a_replay_that_was_cut_off_goes_on_under_its_name_and_is_done_once(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, first_version)
    applied(live, first_version, 1, 6)
    wanted = replace(live, replay="v2", from_batch=2, to_batch=5)
    replayed(wanted, second_version, stop_after=2)
    assert flow.consumers["counting.replay.v2"].cursor == 3
    assert code_of(replays.end, wanted) is StoreCode.CURSOR_MISMATCH
    requests = len(node.requests)
    replayed(wanted, second_version)
    again = [path for _, path in node.requests[requests:] if "/batches/" in path]
    assert [path.rpartition("/")[2] for path in again] == ["4", "5"]
    assert "counting.replay.v2" not in flow.consumers
    requests = len(node.requests)
    replayed(wanted, second_version)
    assert not any("/batches/" in path for _, path in node.requests[requests:])
    assert "counting" not in flow.consumers


def test_a_name_stands_for_one_range(flow: FakeFlow, node: FakeNode, tmp_path: Path) -> None:
    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, first_version)
    wanted = replace(live, replay="v2", from_batch=2, to_batch=5)
    replayed(wanted, second_version, stop_after=1)
    with claimed_store(live.store, CLUSTER) as store:
        for other in ({"to_batch": 6}, {"from_batch": 1}, {"keep_timestamps": True}):
            assert code_of(replays.begin, replace(wanted, **other), store) is StoreCode.CURSOR_MISMATCH
    # Another store knows nothing of it, but the consumer has read some of it already.
    with claimed_store(f"sqlite://{tmp_path}/other", CLUSTER) as store:
        assert code_of(replays.begin, wanted, store) is StoreCode.CURSOR_MISMATCH


def test_what_is_no_range_of_the_flow_is_refused_before_anything_is_attached(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal_all(messages(3, 60), 10)
    flow.drop_before(2)
    live = settings(tmp_path, node, first_version, replay="x")
    with claimed_store(live.store, CLUSTER) as store:
        for first, last, code in (
            (1, 4, StoreCode.RETENTION_EXCEEDED),
            (3, 7, StoreCode.BAD_OPTION),
            (4, 3, StoreCode.BAD_OPTION),
            (0, 0, StoreCode.BAD_OPTION),
        ):
            assert code_of(replays.begin, replace(live, from_batch=first, to_batch=last), store) is code
        assert code_of(replays.begin, replace(live, replay="No name", from_batch=2, to_batch=3), store)
    assert not flow.consumers


def test_rows_that_later_items_overwrite_are_restored_but_never_revised(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    def latest(batch: FlowBatch) -> Iterator[Change]:
        for item in batch:
            yield item.upsert(LATEST, sender=item.json()["sender"], newest=item.commit)

    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, latest, tables=(LATEST,), replay="r", from_batch=2, to_batch=3)
    with claimed_store(live.store, CLUSTER) as store:
        assert code_of(replays.begin, live, store) is StoreCode.BAD_TABLE
    applied(live, latest, 4, 6)
    before = held(live, LATEST)
    replayed(replace(live, keep_timestamps=True), latest)
    assert held(live, LATEST) == before == {(0, 60), (1, 58), (2, 59)}


def test_a_dry_run_says_what_would_be_read_and_written_and_writes_no_row(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, first_version, replay="v2", from_batch=2, to_batch=4)
    applied(live, first_version, 1, 6)
    before = [held(live, table) for table in (COUNTS, SEEN, DEAD_LETTERS)]
    consumers = set(flow.consumers)
    assert replays.preview(live) == [
        "replay v2 as consumer counting.replay.v2",
        f"reads batches 2..4 of {flow.name}: 30 items",
        "rows are revised, write timestamp 41",
        "writes 6 rows of counts",
        "writes 10 rows of job_dead_letters",
        "writes 20 rows of seen",
    ]
    assert [held(live, table) for table in (COUNTS, SEEN, DEAD_LETTERS)] == before
    assert held(live, REPLAYS) == set()
    assert set(flow.consumers) == consumers


@pytest.mark.spark
def test_a_replay_runs_through_spark_beside_the_checkpoint_of_its_job(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    flow.seal_all(messages(3, 60), 10)
    live = settings(tmp_path, node, first_version)
    assert job.run(spark, live, threading.Event()) == 0
    again = settings(tmp_path, node, second_version, replay="v2", from_batch=2, to_batch=5)
    assert job.run(spark, again, threading.Event()) == 0
    assert job.run(spark, again, threading.Event()) == 0
    flow.seal_all(messages(3, 10, first=61), 10)
    assert job.run(spark, live, threading.Event()) == 0
    assert flow.consumers["counting"].cursor == 7
    expected = fresh(tmp_path, live, (first_version, 1, 1), (second_version, 2, 5), (first_version, 6, 7))
    for table in (COUNTS, SEEN, DEAD_LETTERS):
        assert held(live, table) == held(expected, table)
    with claimed_store(live.store, CLUSTER) as store:
        replay = recorded(store, "counting", "v2")
    assert replay is not None
    assert (replay.done, replay.stamp) == (1, 51)
    # An operator moves the cursor back instead: the job says so, and how it is done.
    flow.consumers["counting"].cursor = 3
    assert job.run(spark, live, threading.Event()) == 5
