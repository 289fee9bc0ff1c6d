"""Finds who got an answer within a day, and who did not: a pattern of events, on a DataFrame."""

import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from oncegate.spark import Column, ColumnType, table_sink
from oncegate.spark_sink.library.patterns import ROCKSDB, Rule, match_table, patterns
from oncegate.spark_sink.source import OncegateSource

DAY_MS = 86_400_000
TABLE = match_table("answers", [Column("chat", ColumnType.TEXT)])
RULES = [
    Rule("answered", "up", "down", DAY_MS),
    Rule("unanswered", "up", "down", DAY_MS, absent=True),
]


def answers(items: DataFrame) -> DataFrame:
    message = sql.from_json("value", "sender bigint, receiver bigint, sent_at bigint").alias("m")
    sent = items.select("commit", message).select("commit", "m.*")
    events = sent.select(
        "commit",
        sql.concat_ws("-", sql.least("sender", "receiver"), sql.greatest("sender", "receiver")).alias("chat"),
        sql.when(sent.sender < sent.receiver, "up").otherwise("down").alias("kind"),
        (sent.sent_at * 1000).alias("at_ms"),
    )
    return patterns(events, RULES, keys=["chat"], lateness_ms=3_600_000)


def main(endpoints: str, flow: str, store: str, checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    for setting, value in ROCKSDB.items():
        spark.conf.set(setting, value)
    spark.dataSource.register(OncegateSource)
    items = spark.readStream.format("oncegate").options(endpoints=endpoints, flow=flow, consumer="answers").load()
    place = {"endpoints": endpoints, "flow": flow, "store": store, "checkpoint": checkpoint}
    table_sink(answers(items), TABLE, job="answers", **place).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
