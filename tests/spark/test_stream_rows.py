"""Items of a stream table become rows of the store, alone and by the job: the newest of a key, deletions kept."""

from __future__ import annotations

import json
import random
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.jobs import job, stream_rows
from oncegate.stores import claimed_store
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS, rows_of
from tests.spark.fake_gateway import FakeFlow, FakeNode, Item

KEYS = 7
found_items = st.dictionaries(
    st.integers(1, 2**62), st.tuples(st.sampled_from(["a", "b", "ü "]), st.none() | st.sampled_from(["1", '""', "{}"]))
).map(lambda by_commit: [(commit, *by_commit[commit]) for commit in sorted(by_commit)])


def batch(items: list[Item]) -> pa.RecordBatch:
    commits, keys, values = zip(*items, strict=True) if items else ((), (), ())
    columns = [
        pa.array(commits, pa.int64()),
        pa.array(keys, pa.string()),
        pa.array(values, pa.string()),
        *(pa.array([7] * len(items), pa.int64()) for _ in range(3)),
        pa.nulls(len(items), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PLAIN_SCHEMA)


def newest(items: list[Item]) -> dict[str, tuple[int, str]]:
    return {key: (commit, value or "") for commit, key, value in items}


def rows_by_key(*pieces: pa.RecordBatch) -> dict[str, tuple[int, str]]:
    """What a store holds after these: the largest timestamp wins."""
    held: dict[str, tuple[int, str]] = {}
    for row in (row for piece in pieces for row in piece.to_pylist()):
        held[row["key"]] = max(held.get(row["key"], (0, "")), (row["write_ts"], row["value"]))
    return held


def test_a_row_has_source_key_json_text_and_the_commit_as_its_timestamp() -> None:
    [piece] = rows_of(batch([(11, "k", '{"a":1}'), (12, "gone", None)]), "events", 10)
    assert piece.schema == STREAM_ROWS.schema
    assert piece.to_pylist() == [
        {"source": "events", "key": "k", "value": '{"a":1}', "write_ts": 11},
        {"source": "events", "key": "gone", "value": "", "write_ts": 12},
    ]


@given(found_items, st.randoms(use_true_random=False), st.integers(1, 4))
@settings(deadline=None)
def test_only_the_newest_of_a_key_is_written_whatever_the_order(
    items: list[Item], shuffle: random.Random, rows_max: int
) -> None:
    pieces = list(rows_of(batch(shuffle.sample(items, len(items))), "events", rows_max))
    assert all(piece.num_rows <= rows_max for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == len(newest(items))
    assert rows_by_key(*pieces) == newest(items)


@given(found_items, st.lists(st.integers(0, 20), max_size=4), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_batches_cut_anywhere_replayed_and_reordered_leave_the_same_rows(
    items: list[Item], cuts: list[int], shuffle: random.Random
) -> None:
    ends = sorted({0, len(items), *(min(cut, len(items)) for cut in cuts)})
    batches = [batch(items[begin:end]) for begin, end in pairwise(ends)]
    arriving = [*batches, *shuffle.choices(batches, k=3)] if batches else []
    shuffle.shuffle(arriving)
    assert rows_by_key(*(piece for one in arriving for piece in rows_of(one, "events", 100))) == newest(items)


def writes(count: int, *, first: int = 1) -> list[Item]:
    """Return items over few keys, every fifth a deletion."""
    commits = range(first, first + count)
    return [(at, f"k{at % KEYS}", None if at % 5 == 0 else json.dumps({"at": at})) for at in commits]


def held(store_url: str, source: str) -> dict[str, tuple[int, str]]:
    with claimed_store(store_url) as store:
        rows = [row for batch in store.scan(STREAM_ROWS) for row in batch.to_pylist()]
    found = [row for row in rows if row["source"] == source]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: (row["write_ts"], row["value"]) for row in found}


def run(spark: SparkSession, tmp_path: Path, node: FakeNode, store_url: str) -> int:
    """Run the job until it has delivered all there is."""
    command = ["--endpoints", node.url, "--table", node.flow.name, "--store", store_url, "--timeout-s", "10"]
    command += ["--batches-per-trigger", "3", "--checkpoint", str(tmp_path / "one"), "--rows-per-write", "3"]
    return job.run(spark, stream_rows.parse(command), threading.Event())


@pytest.mark.spark
def test_the_store_holds_the_newest_row_of_every_key_and_the_required_cursor_moves(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = writes(90)
    flow.seal_all(items[:60], 7)
    assert run(spark, tmp_path, node, store_url) == 0
    assert held(store_url, flow.name) == newest(items[:60])
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch
    flow.seal_all(items[60:], 7)
    assert run(spark, tmp_path, node, store_url) == 0
    assert held(store_url, flow.name) == newest(items)
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch


@pytest.mark.spark
def test_a_replay_of_all_batches_over_newer_rows_changes_nothing(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = writes(40)
    flow.seal_all(items, 5)
    assert run(spark, tmp_path, node, store_url) == 0
    source = {"endpoints": node.url, "flow": flow.name, "starting_batch": "1", "ending_batch": "4"}
    target = {"endpoints": node.url, "flow": flow.name, "store": store_url}
    old = spark.read.format("oncegate").options(**source).load()
    old.write.format(stream_rows.StreamRowsSink.name()).options(**target).mode("append").save()
    assert held(store_url, flow.name) == newest(items)


@pytest.mark.spark
def test_a_micro_batch_cut_off_after_its_cursor_moved_is_passed_over_when_its_batches_are_dropped(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    store_url, items = f"sqlite://{tmp_path}/store", writes(50)
    flow.seal_all(items[:30], 5)
    assert run(spark, tmp_path, node, store_url) == 0
    # Killed before Spark noted that the micro-batch was done, and away for longer than retention.
    newest_commit = max((tmp_path / "one" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest_commit.unlink()
    newest_commit.with_name(f".{newest_commit.name}.crc").unlink(missing_ok=True)
    flow.drop_before(flow.last_batch)
    flow.seal_all(items[30:], 5)
    assert run(spark, tmp_path, node, store_url) == 0
    assert held(store_url, flow.name) == newest(items)
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch
