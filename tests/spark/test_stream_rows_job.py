"""The job behind a stream table, in one process: the store holds the newest row of every key, deleted ones too."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink.jobs import job, stream_rows
from oncegate.stores import open_store
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS
from tests.spark.fake_gateway import FakeFlow, FakeNode, Item

pytestmark = pytest.mark.spark

KEYS = 7


def writes(count: int, *, first: int = 1) -> list[Item]:
    """Return items over few keys, every fifth a deletion."""
    commits = range(first, first + count)
    return [(at, f"k{at % KEYS}", None if at % 5 == 0 else json.dumps({"at": at})) for at in commits]


def newest(items: list[Item]) -> dict[str, tuple[str, int]]:
    return {key: (value or "", commit) for commit, key, value in items}


def held(store_url: str, source: str) -> dict[str, tuple[str, int]]:
    with open_store(store_url) as store:
        rows = [row for batch in store.scan(STREAM_ROWS) for row in batch.to_pylist()]
    found = [row for row in rows if row["source"] == source]
    assert len({row["key"] for row in found}) == len(found)
    return {row["key"]: (row["value"], row["write_ts"]) for row in found}


def settings(tmp_path: Path, node: FakeNode, store_url: str, checkpoint: str = "one") -> job.JobSettings:
    command = ["--endpoints", node.url, "--table", "timeline", "--store", store_url, "--timeout-s", "10"]
    command += ["--batches-per-trigger", "3"]
    return stream_rows.parse([*command, "--checkpoint", str(tmp_path / checkpoint), "--rows-per-write", "3"])


def test_the_store_holds_the_newest_row_of_every_key_and_the_required_cursor_moves(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = writes(90)
    flow.seal_all(items[:60], 7)
    assert job.run(spark, settings(tmp_path, node, store_url), threading.Event()) == 0
    assert held(store_url, "timeline") == newest(items[:60])
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch
    flow.seal_all(items[60:], 7)
    assert job.run(spark, settings(tmp_path, node, store_url), threading.Event()) == 0
    assert held(store_url, "timeline") == newest(items)
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch


def test_a_replay_of_all_batches_over_newer_rows_changes_nothing(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = writes(40)
    flow.seal_all(items, 5)
    assert job.run(spark, settings(tmp_path, node, store_url), threading.Event()) == 0
    source = {"endpoints": node.url, "flow": "timeline", "starting_batch": "1", "ending_batch": "4"}
    target = {"endpoints": node.url, "flow": "timeline", "store": store_url}
    old = spark.read.format("oncegate").options(**source).load()
    old.write.format(stream_rows.StreamRowsSink.name()).options(**target).mode("append").save()
    assert held(store_url, "timeline") == newest(items)


def test_a_micro_batch_cut_off_after_its_cursor_moved_is_passed_over_when_its_batches_are_dropped(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    store_url, items = f"sqlite://{tmp_path}/store", writes(50)
    flow.seal_all(items[:30], 5)
    assert job.run(spark, settings(tmp_path, node, store_url), threading.Event()) == 0
    # Killed before Spark noted that the micro-batch was done, and away for longer than retention.
    newest_commit = max((tmp_path / "one" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest_commit.unlink()
    newest_commit.with_name(f".{newest_commit.name}.crc").unlink(missing_ok=True)
    flow.drop_before(flow.last_batch)
    flow.seal_all(items[30:], 5)
    assert job.run(spark, settings(tmp_path, node, store_url), threading.Event()) == 0
    assert held(store_url, "timeline") == newest(items)
    assert flow.consumers[ROWS_CONSUMER].cursor == flow.last_batch
