"""Jobs and sinks write only into a store of the cluster whose flow they read. No JVM: each is refused before Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.flow_batches import numbered
from oncegate.spark_sink.jobs import job, stream_rows
from oncegate.spark_sink.options import SinkOptions
from oncegate.spark_sink.sink import write_items
from oncegate.stores import claimed_store, open_store
from oncegate.stores.claims import adopt, wipe
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.stream_rows import STREAM_ROWS
from oncegate.stores.tables import StoreTable
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode

REBUILT = "d" * 32
NO_SPARK = cast(SparkSession, None)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/store"


def settings(node: FakeNode, url: str, tmp_path: Path, **more: Any) -> stream_rows.StreamRowsSettings:
    fixed = {"endpoints": node.url, "flow": node.flow.name, "store": url, "checkpoint": str(tmp_path / "checkpoint")}
    return stream_rows.StreamRowsSettings(**{**fixed, "timeout_s": 1, **more})


def start(settings: stream_rows.StreamRowsSettings) -> str:
    """Run a job that is refused before it needs Spark; return why."""
    assert job.run(NO_SPARK, settings, threading.Event()) == 5
    with pytest.raises(StoreError) as refused:
        job.start(NO_SPARK, settings)
    assert refused.value.code is StoreCode.STORE_MISMATCH
    return refused.value.detail


def test_job_of_a_rebuilt_cluster_is_refused_by_the_kept_store(
    flow: FakeFlow, node: FakeNode, url: str, tmp_path: Path
) -> None:
    with claimed_store(url, CLUSTER) as store:
        store.create([STREAM_ROWS])
    flow.cluster_identity = REBUILT
    why = start(settings(node, url, tmp_path))
    assert CLUSTER in why
    assert "oncegate store adopt" in why
    assert flow.consumers == {}, "it has attached nothing"


def test_job_is_refused_by_an_empty_store_when_its_cursor_was_reached_in_another(
    flow: FakeFlow, node: FakeNode, url: str, tmp_path: Path
) -> None:
    """A store that was lost, or whose name is misspelt: the rows before the cursor would be missing for ever."""
    flow.seal([(1, "k", "1")])
    flow.move("rows", 1, flow.attach("rows", "n").fence)
    assert "batches up to 1" in start(settings(node, url, tmp_path))
    assert "batches up to 1" in start(settings(node, url, tmp_path, starting_batch="earliest"))
    assert not (tmp_path / "store").exists()
    with pytest.raises(AttributeError):  # told to leave them out it goes on, as far as to Spark
        job.start(NO_SPARK, settings(node, url, tmp_path, starting_batch="2"))
    with claimed_store(url) as store:
        assert store.claim().cluster == CLUSTER
    with pytest.raises(AttributeError):  # and from then on
        job.start(NO_SPARK, settings(node, url, tmp_path))


def test_job_begins_behind_a_cursor_that_somebody_set_before_any_job_attached(
    flow: FakeFlow, node: FakeNode, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.move("rows", 1, 0)
    described = flow.describe()
    described["consumers"]["rows"]["attached"] = False
    monkeypatch.setattr(flow, "describe", lambda: described)
    with pytest.raises(AttributeError):
        job.start(NO_SPARK, settings(node, url, tmp_path))


def test_job_that_is_started_again_after_a_wipe_does_not_go_on_behind_the_rows_that_are_gone(
    flow: FakeFlow, node: FakeNode, url: str, tmp_path: Path
) -> None:
    with pytest.raises(AttributeError):
        job.start(NO_SPARK, settings(node, url, tmp_path))
    flow.seal([(1, "k", "1")])
    flow.move("rows", 1, flow.attach("rows", "n").fence)
    with pytest.raises(AttributeError):
        job.start(NO_SPARK, settings(node, url, tmp_path))
    with open_store(url) as store:
        wipe(store, "here", CLUSTER)
    assert "batches up to 1" in start(settings(node, url, tmp_path))
    with pytest.raises(AttributeError):
        job.start(NO_SPARK, settings(node, url, tmp_path, starting_batch="latest"))


def rows(batch: FlowBatch) -> Iterator[Change]:
    """The rows of `STREAM_ROWS`, one an item."""
    for item in batch:
        yield item.upsert(STREAM_ROWS, source="t", key=item.key, value="1")


def items(commit: int) -> pa.RecordBatch:
    return numbered(FlowBatch.of((f"k{commit}", 1), first_commit=commit).items, commit)


def options(node: FakeNode, url: str, **more: str) -> SinkOptions:
    return SinkOptions.parse({"endpoints": node.url, "flow": node.flow.name, "store": url, "timeout_s": "1", **more})


def keys(url: str, table: StoreTable = STREAM_ROWS) -> set[str]:
    with open_store(url) as store:
        return {row["key"] for rows in store.scan(table) for row in rows.to_pylist()}


def test_tasks_of_a_job_stop_when_the_store_changes_hands_however_often_they_are_tried_again(
    node: FakeNode, url: str
) -> None:
    with claimed_store(url, CLUSTER) as store:
        store.create([STREAM_ROWS])
    told = options(node, url).of_present_epoch()
    assert (told.flow.cluster, told.epoch) == (CLUSTER, 1)
    assert told.of_present_epoch() is told
    write_items(iter([items(1)]), told, rows)

    def meanwhile(change: Any, cluster: str) -> Any:
        yield items(2)
        with open_store(url) as raw:
            change(raw, "here", cluster)
        yield items(3)

    for change, cluster in ((adopt, REBUILT), (wipe, CLUSTER)):
        told = options(node, url).of_present_epoch()
        for writes in (meanwhile(change, cluster), iter([items(4)]), iter([items(5)])):
            with pytest.raises(StoreError, match="STORE_MISMATCH"):
                write_items(writes, told, rows)
        assert not {"k3", "k4", "k5"} & keys(url)
        if cluster != CLUSTER:
            with pytest.raises(StoreError, match="STORE_MISMATCH"):
                options(node, url).of_present_epoch()
            with open_store(url) as raw:
                adopt(raw, "here", CLUSTER)
    assert keys(url) == set()
    write_items(iter([items(6)]), options(node, url).of_present_epoch(), rows)
    assert keys(url) == {"k6"}


def test_clock_in_place_of_a_commit_number_is_refused(node: FakeNode, url: str) -> None:
    with claimed_store(url, CLUSTER) as store:
        store.create([STREAM_ROWS])
    with pytest.raises(StoreError, match="BAD_ROWS"):
        write_items(iter([items(1_700_000_000_000_000)]), options(node, url).of_present_epoch(), rows)


def test_gateway_without_an_identity_yet_is_waited_for(flow: FakeFlow, node: FakeNode) -> None:
    flow.cluster_identity = ""
    with pytest.raises(StoreError, match="no identity yet"):
        options(node, "sqlite:///nowhere").flow.client(timeout_s=0).state()
    threading.Timer(0.2, lambda: setattr(flow, "cluster_identity", REBUILT)).start()
    assert options(node, "sqlite:///nowhere").flow.client(timeout_s=20).state().cluster_identity == REBUILT
