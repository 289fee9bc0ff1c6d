"""Through Spark: a derivation sees each flow batch once and whole, or the query ends, whatever Spark is told to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.errors import code_in
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Clustering, Column, ColumnType, StoreTable, claimed_store
from oncegate.stores.errors import StoreCode
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode
from tests.spark.recount import messages

pytestmark = pytest.mark.spark

COUNTS = StoreTable(
    name="counts",
    columns=(Column("sender", ColumnType.INT64), Column("batch", ColumnType.INT64), Column("posts", ColumnType.INT64)),
    partition_key=("sender",),
    clustering=(Clustering("batch"),),
)


def count(batch: FlowBatch) -> Iterator[Change]:
    for sender, posts in Counter(item.json()["sender"] for item in batch).items():
        yield batch.upsert(COUNTS, sender=sender, batch=batch.number, posts=posts)


@pytest.fixture
def write(
    spark: SparkSession, flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> Iterator[Callable[[Callable[[DataFrame], DataFrame]], dict[int, int]]]:
    """Write the whole flow through a transformation, rows cut by seven; return the number of posts of each sender."""
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "7")
    url = f"sqlite://{tmp_path}/store"
    with claimed_store(url, CLUSTER) as store:
        store.create([COUNTS])
    sink = sink_of(count, "counts")
    spark.dataSource.register(sink)

    def written(transformed: Callable[[DataFrame], DataFrame]) -> dict[int, int]:
        options = {"endpoints": node.url, "flow": flow.name}
        items = spark.read.format("oncegate").options(**options, partitions_max=2).load()
        transformed(items).write.format(sink.name()).options(**options, store=url).mode("append").save()
        found: Counter[int] = Counter()
        with claimed_store(url, CLUSTER) as store:
            for rows in store.scan(COUNTS):
                for row in rows.to_pylist():
                    found[row["sender"]] += row["posts"]
        return dict(found)

    yield written
    spark.conf.set(setting, before)


def test_a_count_a_batch_is_exact_when_spark_cuts_rows_by_seven(
    flow: FakeFlow, write: Callable[..., dict[int, int]]
) -> None:
    flow.seal_all(messages(3, 300), 50)
    assert write(lambda items: items) == {0: 100, 1: 100, 2: 100}
    assert write(lambda items: items.coalesce(1)) == {0: 100, 1: 100, 2: 100}
    # Each half has whole batches: the same rows are written twice.
    assert write(lambda items: items.union(items)) == {0: 100, 1: 100, 2: 100}


@pytest.mark.parametrize(
    "transformed",
    [
        lambda items: items.repartition(4),
        lambda items: items.filter("key > 'm0000010'"),
        lambda items: items.select("key", "value", "batch"),
    ],
    ids=["repartitioned", "filtered", "projected"],
)
def test_a_batch_that_spark_took_apart_is_refused_and_not_counted(
    flow: FakeFlow, write: Callable[..., dict[int, int]], transformed: Callable[[DataFrame], DataFrame]
) -> None:
    flow.seal_all(messages(3, 60), 30)
    with pytest.raises(PySparkException) as refused:
        write(transformed)
    assert code_in(str(refused.value)) is StoreCode.BATCH_INCOMPLETE
