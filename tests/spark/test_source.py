"""The Spark source against a fake gateway: admission, starts, failover, identical rereads, typed ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.spark_sink.options import SourceOptions
from oncegate.spark_sink.source import BatchRange, FlowStreamReader, share
from oncegate.stores.errors import StoreCode
from tests.spark.fake_gateway import FakeFlow, FakeNode, serving
from tests.spark.recount import messages

pytestmark = pytest.mark.spark


def seal(flow: FakeFlow, batches: int, per_batch: int = 10) -> None:
    flow.seal_all(messages(3, batches * per_batch), per_batch)


def options(*nodes: FakeNode, **more: object) -> dict[str, str]:
    fixed = {"endpoints": ",".join(node.url for node in nodes), "flow": nodes[0].flow.name, "timeout_s": "5"}
    return fixed | {name: str(value) for name, value in more.items()}


def read(spark: SparkSession, *nodes: FakeNode, **more: object) -> DataFrame:
    return spark.read.format("oncegate").options(**options(*nodes, **more)).load()


def stream(spark: SparkSession, path: Path, *nodes: FakeNode, **more: object) -> list[dict[str, Any]]:
    """Run one AvailableNow query into files and return its progress reports."""
    source = spark.readStream.format("oncegate").options(**options(*nodes, **more)).load()
    writer = source.writeStream.format("parquet").option("path", str(path / "out"))
    query = writer.option("checkpointLocation", str(path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return [report for report in map(dict, query.recentProgress) if report["numInputRows"]]


def commits(spark: SparkSession, path: Path) -> list[int]:
    return [row["commit"] for row in spark.read.parquet(str(path / "out")).orderBy("commit").collect()]


def test_batch_read_yields_every_item_with_its_batch_and_trace_context(
    spark: SparkSession, flow: FakeFlow, node: FakeNode
) -> None:
    flow.seal([(5, "a", '{"x": 1}'), (6, "b", None), (7, "c", "3")], ["00-t", None, "00-t"])
    flow.seal([(9, "d", '"ü"')])
    found = read(spark, node).orderBy("commit").collect()
    assert [(row["commit"], row["key"], row["value"], row["batch"], row["traceparent"]) for row in found] == [
        (5, "a", '{"x": 1}', 1, "00-t"),
        (6, "b", None, 1, None),
        (7, "c", "3", 1, "00-t"),
        (9, "d", '"ü"', 2, None),
    ]
    assert found[0].asDict()["client_id"] == 7


def test_batch_read_of_a_range_is_repeatable(spark: SparkSession, flow: FakeFlow, node: FakeNode) -> None:
    seal(flow, 6)
    replay = read(spark, node, starting_batch=2, ending_batch=4)
    first = replay.collect()
    assert sorted(row["commit"] for row in first) == list(range(11, 41))
    assert replay.collect() == first


def test_empty_flow_reads_as_nothing(spark: SparkSession, node: FakeNode, tmp_path: Path) -> None:
    assert read(spark, node).count() == 0
    assert stream(spark, tmp_path, node) == []


def test_available_now_reads_all_in_limited_steps(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    seal(flow, 7)
    reports = stream(spark, tmp_path, node, batches_per_trigger=3)
    assert [report["numInputRows"] for report in reports] == [30, 30, 10]
    assert commits(spark, tmp_path) == list(range(1, 71))


def test_restart_goes_on_at_the_checkpoint(spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path) -> None:
    seal(flow, 2)
    stream(spark, tmp_path, node)
    flow.seal([(500, "late", "{}")])
    assert [report["numInputRows"] for report in stream(spark, tmp_path, node)] == [1]
    assert commits(spark, tmp_path) == [*range(1, 21), 500]


def test_a_named_consumer_starts_at_its_cursor_and_reaches_the_end_by_itself(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    seal(flow, 4)
    flow.move("c", 1, flow.attach("c", "before").fence)
    stream(spark, tmp_path, node, consumer="c", batches_per_trigger=1)
    assert commits(spark, tmp_path) == list(range(11, 41))
    assert flow.consumers["c"].cursor == 4


def test_endpoints_fail_over_in_driver_and_executors(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    seal(flow, 4)
    with serving(flow) as refusing, serving(flow) as damaged:
        refusing.refuse = True
        damaged.damage = lambda body: body[:-3]
        stream(spark, tmp_path, refusing, damaged, node)
    assert commits(spark, tmp_path) == list(range(1, 41))


def test_a_dropped_batch_ends_the_query_with_a_typed_error(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    seal(flow, 5)
    stream(spark, tmp_path, node)
    flow.seal_all(messages(3, 30, first=51), 10)
    flow.drop_before(7)
    with pytest.raises(PySparkException) as ended:
        stream(spark, tmp_path, node)
    assert code_in(str(ended.value)) is StoreCode.RETENTION_EXCEEDED
    assert re.search(r"batch 6 is wanted, the first retained one is 7", str(ended.value))
    assert commits(spark, tmp_path) == list(range(1, 51))
    with pytest.raises(PySparkException, match=r"\[RETENTION_EXCEEDED\]"):
        read(spark, node, starting_batch=6).collect()


def test_a_batch_dropped_after_planning_is_a_typed_error_too(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    seal(flow, 5)
    node.before_batch = lambda number: flow.drop_before(4)
    with pytest.raises(PySparkException) as ended:
        stream(spark, tmp_path, node)
    assert code_in(str(ended.value)) is StoreCode.RETENTION_EXCEEDED


def test_a_second_query_of_the_same_consumer_fences_the_first(flow: FakeFlow, node: FakeNode) -> None:
    seal(flow, 3)
    first, second = (FlowStreamReader(SourceOptions.parse(options(node, consumer="c"))) for _ in range(2))
    for reader in (first, second):
        reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    second.commit({"batch": 2})
    with pytest.raises(SinkError) as fenced:
        first.commit({"batch": 1})
    assert fenced.value.code is StoreCode.FENCED
    assert flow.consumers["c"].cursor == 2


def test_admission_follows_the_limit_and_never_goes_back(flow: FakeFlow, node: FakeNode) -> None:
    seal(flow, 9)
    reader = FlowStreamReader(SourceOptions.parse(options(node, batches_per_trigger=4)))

    def at(batch: int) -> dict[str, Any]:
        return {"batch": batch, "flow": flow.name, "cluster": flow.cluster_identity}

    assert reader.initialOffset() == at(0)
    assert reader.latestOffset(at(0), reader.getDefaultReadLimit()) == at(4)
    assert reader.latestOffset(at(0), ReadMaxFiles(2)) == at(2)
    assert reader.latestOffset(at(3), ReadAllAvailable()) == at(9)
    # A node that lags behind what was read already.
    assert reader.latestOffset(at(12), ReadMaxFiles(2)) == at(12)
    reader.prepareForTriggerAvailableNow()
    flow.seal([(1000, "late", "{}")])
    assert reader.latestOffset(at(8), ReadMaxFiles(5)) == at(9)
    assert reader.reportLatestOffset() == at(10)


@pytest.mark.parametrize(("start", "offset"), [("earliest", 2), ("latest", 9), ("5", 4)])
def test_named_starts(flow: FakeFlow, node: FakeNode, start: str, offset: int) -> None:
    seal(flow, 9)
    flow.drop_before(3)
    reader = FlowStreamReader(SourceOptions.parse(options(node, starting_batch=start)))
    assert reader.initialOffset() == {"batch": offset, "flow": flow.name, "cluster": flow.cluster_identity}


@pytest.mark.parametrize("batches", range(10))
def test_shares_are_runs_that_cover_all_batches_once(batches: int) -> None:
    shares = share(100, 100 + batches, 4)
    assert len(shares) == min(batches, 4)
    covered = [n for part in shares if isinstance(part, BatchRange) for n in range(part.first, part.last + 1)]
    assert covered == list(range(101, 101 + batches))


@pytest.mark.parametrize(
    "wrong",
    [
        {"endpoints": ""},
        {"endpoints": "nonsense"},
        {"flow": ""},
        {"starting_batch": "0"},
        {"starting_batch": "soon"},
        {"starting_batch": "cursor"},
        {"batches_per_trigger": "0"},
        {"partitions_max": "x"},
        {"fence": "1"},
    ],
)
def test_wrong_options_are_refused(node: FakeNode, wrong: dict[str, str]) -> None:
    with pytest.raises(SinkError) as refused:
        SourceOptions.parse(options(node) | wrong).flow.client()
    assert refused.value.code is StoreCode.BAD_OPTION
