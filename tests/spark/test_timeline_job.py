"""The fan-out job in one process: exact tables, dead letters, fences, a store that goes away, the planted bug."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.jobs import job as jobs
from oncegate.spark_sink.jobs import timeline
from oncegate.spark_sink.rows import TIMELINE
from oncegate.spark_sink.sink import StoreSink
from oncegate.stores import ClaimedStore, StoreTable, claimed_store
from oncegate.stores.errors import StoreError
from tests.spark.fake_gateway import FakeFlow, FakeNode
from tests.spark.planted import LATEST, ClockTimelineSink, ClockValueSink, LatestValueSink
from tests.spark.recount import expected, messages, stored, write_contacts

pytestmark = pytest.mark.spark

EDGES = [(sender, 100 + follower) for sender in range(4) for follower in range(5 + 7 * sender)] + [(1, 100), (9, 9)]


def job(tmp_path: Path, node: FakeNode, store_url: str, **more: Any) -> timeline.TimelineSettings:
    fixed = {
        "endpoints": node.url,
        "flow": node.flow.name,
        "consumer": "fan-out",
        "store": store_url,
        "contacts": write_contacts(tmp_path / "contacts.csv", EDGES),
        "checkpoint": str(tmp_path / "checkpoint"),
        "progress": str(tmp_path / "progress.jsonl"),
        "timeout_s": 10,
    }
    return timeline.TimelineSettings(**{**fixed, **more})


def run(spark: SparkSession, settings: timeline.TimelineSettings) -> int:
    return jobs.run(spark, settings, threading.Event())


def test_every_post_reaches_every_contact_once_and_nothing_else(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = messages(6, 500)
    flow.seal_all(items, 30)
    settings = job(tmp_path, node, store_url, batches_per_trigger=4, rows_per_write=100)
    assert run(spark, settings) == 0
    assert flow.consumers["fan-out"].cursor == flow.last_batch == 17
    lines = [json.loads(line) for line in Path(settings.progress).read_text().splitlines()]
    assert [line["last_batch"] for line in lines] == [4, 8, 12, 16, 17]
    assert [line["lag_batches"] for line in lines] == [13, 9, 5, 1, 0]
    assert sum(line["items"] for line in lines) == 500
    with claimed_store(store_url) as store:
        assert stored(store) == expected(items, EDGES)
        assert store.count(TIMELINE) == sum(line["rows"] for line in lines)
        assert store.count(DEAD_LETTERS) == 0
    # A replay from the start under a new checkpoint writes the same rows over themselves.
    again = job(tmp_path, node, store_url, checkpoint=str(tmp_path / "second"), consumer="replay")
    assert run(spark, again) == 0
    with claimed_store(store_url) as store:
        assert stored(store) == expected(items, EDGES)


def all_rows(store: ClaimedStore, table: StoreTable) -> list[dict[str, Any]]:
    return [row for batch in store.scan(table) for row in batch.to_pylist()]


def test_poison_goes_to_the_dead_letters_and_every_derived_row_has_the_trace_context_of_its_request(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    items = messages(4, 20)
    poison = [(5, "bad", '{"sender": 1'), (11, "worse", None), (20, "strange", '{"sender": [], "é": 1}')]
    for commit, key, value in poison:
        items[commit - 1] = (commit, key, value)
    traces = {commit: trace if commit in (1, 5, 20) else None for commit in range(1, 21)}
    for at in range(0, 20, 5):
        given = [traces[commit] for commit in range(at + 1, at + 6)]
        flow.seal(items[at : at + 5], given if any(given) else ())
    assert run(spark, job(tmp_path, node, store_url)) == 0
    with claimed_store(store_url) as store:
        assert stored(store) == expected([item for item in items if item[0] not in (5, 11, 20)], EDGES)
        assert {(row["commit"], row["traceparent"]) for row in all_rows(store, TIMELINE)} <= traces.items()
        letters = {row["commit"]: row for row in all_rows(store, DEAD_LETTERS)}
    assert {commit: (row["item_key"], row["raw"], row["traceparent"]) for commit, row in letters.items()} == {
        commit: (key, (value or "").encode(), traces[commit]) for commit, key, value in poison
    }
    assert (letters[11]["flow"], letters[11]["batch"], letters[11]["sequence"]) == (flow.name, 3, 11)


def test_a_second_instance_fences_the_first_one(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow.seal_all(messages(4, 40), 10)
    # The other instance attaches while this one is reading.
    node.before_batch = lambda number: flow.attach("fan-out", "another instance")
    assert run(spark, job(tmp_path, node, f"sqlite://{tmp_path}/store")) == 3
    assert "[FENCED]" in caplog.text
    assert flow.consumers["fan-out"].cursor == 0
    assert flow.moves == []


def test_a_dropped_batch_ends_the_job(spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path) -> None:
    flow.seal_all(messages(4, 40), 10)
    flow.drop_before(3)
    assert run(spark, job(tmp_path, node, f"sqlite://{tmp_path}/store")) == 4


def test_bad_contacts_end_the_job_before_it_begins(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    assert run(spark, job(tmp_path, node, f"sqlite://{tmp_path}/store", contacts=str(tmp_path / "none.csv"))) == 2
    assert "fan-out" not in flow.consumers


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold every shard of an SQLite store, as another process that does not let go."""
    with ExitStack() as stack:
        for file in sorted(directory.glob("*.sqlite")):
            holder = stack.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
            holder.execute("BEGIN IMMEDIATE")
        yield


def interrupted(
    spark: SparkSession,
    flow: FakeFlow,
    node: FakeNode,
    settings: timeline.TimelineSettings,
    caplog: pytest.LogCaptureFixture,
    away: Callable[[], Any],
) -> int:
    """Run the job; when it reads batch 6 the store goes away, until the query has failed and started again."""
    caplog.set_level(logging.WARNING, logger="spark_sink")
    reached, gone = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 6:
            reached.set()
            gone.wait(60)

    node.before_batch = hold
    failures: list[Exception] = []

    def disturb() -> None:
        try:
            if not reached.wait(120):
                raise AssertionError("batch 6 was never read")
            with away():
                gone.set()
                wait_for(lambda: "starts again" in caplog.text, 120, "the query starts again")
                assert flow.describe()["consumers"]["fan-out"]["lag_batches"] >= 3
                flow.seal_all(messages(6, 60, first=241), 30)
        except (AssertionError, OSError, StoreError) as error:
            failures.append(error)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        # Spark's session belongs to this thread.
        status = run(spark, settings)
    finally:
        gone.set()
        reached.set()
        thread.join()
    if failures:
        raise failures[0]
    return status


def test_a_locked_store_is_waited_for_and_nothing_is_lost(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow.seal_all(messages(6, 240), 30)
    url = f"sqlite://{tmp_path}/store?retry_s=0"
    settings = job(tmp_path, node, url, batches_per_trigger=3)
    assert interrupted(spark, flow, node, settings, caplog, lambda: locked(tmp_path / "store")) == 0
    assert "STORE_UNAVAILABLE" in caplog.text
    assert flow.consumers["fan-out"].cursor == 10
    with claimed_store(url) as store:
        assert stored(store) == expected(messages(6, 300), EDGES)


def replayed(spark: SparkSession, node: FakeNode, store_url: str, sink: type[StoreSink], table: StoreTable) -> Any:
    """Write batches 1 and 2, then batch 1 again, through a sink; return the row that both wrote."""
    with claimed_store(store_url, node.flow.cluster_identity) as store:
        store.create([table])
    for first, last in ((1, 1), (2, 2), (1, 1)):
        source = {
            "endpoints": node.url,
            "flow": node.flow.name,
            "starting_batch": str(first),
            "ending_batch": str(last),
        }
        items = spark.read.format("oncegate").options(**source).load()
        target = {"endpoints": node.url, "flow": node.flow.name, "store": store_url}
        items.write.format(sink.name()).options(**target).mode("append").save()
    with claimed_store(store_url) as store:
        return store.get(table, {"item_key": "k"})


def test_replay_of_an_old_batch_after_newer_writes_leaves_the_newer(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str
) -> None:
    flow.seal([(1, "k", "old")])
    flow.seal([(2, "k", "new")])
    assert replayed(spark, node, store_url, LatestValueSink, LATEST) == {"item_key": "k", "value": "new", "write_ts": 2}


def test_planted_bug_a_timestamp_from_the_clock_is_caught_by_a_replay(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, store_url: str
) -> None:
    flow.seal([(1, "k", "old")])
    flow.seal([(2, "k", "new")])
    assert replayed(spark, node, store_url, ClockValueSink, LATEST)["value"] == "old"


def test_planted_bug_a_timestamp_from_the_clock_is_caught_by_the_recount(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    items = messages(4, 40)
    flow.seal_all(items, 10)
    url = f"sqlite://{tmp_path}/store"
    assert run(spark, job(tmp_path, node, url, sink=ClockTimelineSink)) == 0
    with claimed_store(url) as store:
        found = stored(store)
    assert found != expected(items, EDGES)
    assert {row[:-1] for row in found} == {row[:-1] for row in expected(items, EDGES)}
