"""Queries on DataFrames, all in one Spark session: the process that tests/spark/test_table_sink.py kills.

`python -m tests.spark.frames_driver STORE DIRECTORY CLICKS BUYS [REBUILD]`: endpoints of two flows. It ends when all
is delivered that is available. With the name of a rebuild it makes the file `delivered` then and waits for a line;
stateful queries begin anew with other checkpoints; then the first one begins once more with its old checkpoint.

One query starts after the other: Spark gives a Python process ten seconds to start, which several at once may not make.
One that fails by a passing fault is started again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from oncegate.spark_sink import session
from oncegate.spark_sink.errors import code_in
from oncegate.spark_sink.library.patterns import ROCKSDB, Rule, match_table, patterns
from oncegate.spark_sink.source import OncegateSource
from oncegate.spark_sink.table_sink import table_sink
from oncegate.stores import Clustering, Column, ColumnType, StoreTable
from oncegate.stores.errors import REGISTRY

BATCHES_PER_TRIGGER = 4
STATEFUL = ("patterns", "pairs", "totals")
LATENESS_MS, WINDOW_MS, JOIN_MS = 4_000, 10_000, 2_000


def table(name: str, columns: dict[str, ColumnType], partition: str, *clustering: str) -> StoreTable:
    declared = tuple(Column(name, kind) for name, kind in columns.items())
    return StoreTable(name, declared, (partition,), tuple(Clustering(column) for column in clustering))


NUMBER, TEXT = ColumnType.INT64, ColumnType.TEXT
NEWEST = table("newest", {"user": TEXT, "kind": TEXT, "at_ms": NUMBER}, "user")
TOTALS = table("totals", {"user": TEXT, "start_ms": NUMBER, "events": NUMBER}, "user", "start_ms")
PAIRS = table("pairs", {"user": TEXT, "click": NUMBER, "buy": NUMBER, "wait_ms": NUMBER}, "user", "click", "buy")
MATCHES = match_table("matches", [Column("user", TEXT)])
RULES = (
    Rule("view-cart", "view", "cart", 1_500),
    Rule("cart-no-view", "cart", "view", 900, absent=True),
    Rule("view-help", "view", "help", 20_000),
)


def events(spark: SparkSession, place: tuple[str, str], consumer: str) -> DataFrame:
    endpoint, flow = place
    items = (
        spark.readStream.format(OncegateSource.name())
        .options(endpoints=endpoint, flow=flow, consumer=consumer, batches_per_trigger=BATCHES_PER_TRIGGER)
        .load()
    )
    value = sql.from_json("value", "user string, kind string, at_ms bigint").alias("value")
    return items.select("commit", value).select("commit", "value.*")


def timed(frame: DataFrame) -> DataFrame:
    return frame.withColumn("at", sql.timestamp_millis("at_ms")).withWatermark("at", f"{LATENESS_MS} milliseconds")


def totals(clicks: DataFrame) -> DataFrame:
    counts = timed(clicks).groupBy("user", sql.window("at", f"{WINDOW_MS} milliseconds")).count()
    return counts.select("user", sql.unix_millis("window.start").alias("start_ms"), sql.col("count").alias("events"))


def pairs(clicks: DataFrame, buys: DataFrame) -> DataFrame:
    click, buy = timed(clicks).alias("click"), timed(buys).alias("buy")
    near = sql.expr(
        f"click.user = buy.user AND buy.at BETWEEN click.at AND click.at + INTERVAL {JOIN_MS // 1000} SECOND"
    )
    wait = (sql.col("buy.at_ms") - sql.col("click.at_ms")).alias("wait_ms")
    commits = (sql.col("click.commit").alias("click"), sql.col("buy.commit").alias("buy"))
    return click.join(buy, near).select(sql.col("click.user").alias("user"), *commits, wait)


class Jobs:
    """The queries of one run."""

    def __init__(self, spark: SparkSession, store: str, directory: str, clicks: str, buys: str, rebuild: str) -> None:
        self.spark, self.rebuild = spark, rebuild
        self.left, self.right = (clicks, "clicks"), (buys, "buys")
        self.store, self.directory = store, directory

    def frame(self, job: str, consumer: str) -> tuple[DataFrame, StoreTable, str]:
        clicks = events(self.spark, self.left, consumer)
        if job == "totals":
            return totals(clicks), TOTALS, "update"
        if job == "pairs":
            return pairs(clicks, events(self.spark, self.right, consumer)), PAIRS, "append"
        if job == "patterns":
            return patterns(clicks, RULES, keys=["user"], lateness_ms=LATENESS_MS), MATCHES, "append"
        return clicks.withColumnRenamed("commit", "write_ts"), NEWEST, "append"

    def start(self, job: str, suffix: str) -> StreamingQuery:
        frame, into, mode = self.frame(job, f"{job}{suffix}")
        place = {"endpoints": self.left[0], "flow": "clicks", "store": self.store}
        checkpoint = f"{self.directory}/{job}{suffix}"
        writer = table_sink(
            frame, into, job=job, output_mode=mode, rebuild=self.rebuild, checkpoint=checkpoint, **place
        )
        return writer.trigger(availableNow=True).start()

    def run(self, jobs: Sequence[str], suffix: str) -> None:
        queries: dict[str, StreamingQuery] = {}
        while True:
            try:
                for job in jobs:
                    if job not in queries:
                        queries[job] = self.start(job, suffix)
                        while queries[job].lastProgress is None and not queries[job].awaitTermination(1):
                            pass
                for query in queries.values():
                    query.awaitTermination()
                return
            except StreamingQueryException as error:
                code = code_in(str(error))
                if code is not None and not REGISTRY[code].retryable:
                    raise
                sys.stderr.write(f"again: {error}\n")
                queries = {job: query for job, query in queries.items() if query.exception() is None}


def main() -> int:
    spark = session.build("frames", cores=2)
    for setting, value in ROCKSDB.items():
        spark.conf.set(setting, value)
    spark.dataSource.register(OncegateSource)
    store, directory, clicks, buys, *rebuild = sys.argv[1:]
    Jobs(spark, store, directory, clicks, buys, "").run((*STATEFUL, "newest"), "")
    for name in rebuild:
        Path(directory, "delivered").touch()
        sys.stdin.readline()
        jobs = Jobs(spark, store, directory, clicks, buys, name)
        jobs.run(STATEFUL, f".{name}")
        jobs.run(STATEFUL[:1], "")
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
