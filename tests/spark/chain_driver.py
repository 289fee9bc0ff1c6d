"""Three jobs in one Spark session, each behind the one before: the process that the test of chains kills.

`python -m tests.spark.chain_driver ENDPOINTS STORE DIRECTORY follow|finish`: follow the flows until it is killed, or
run one job after the other up to what is sealed.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink import session
from oncegate.spark_sink.cascade import Increment, Put, Write, WriteDerivation
from oncegate.spark_sink.cascade_sink import start_cascade
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.jobs.job import start
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of
from oncegate.stores import Column, ColumnType, StoreTable

ENDS = StoreTable(
    name="ends",
    columns=(Column("key", ColumnType.TEXT), Column("words", ColumnType.INT64)),
    partition_key=("key",),
)


def split(batch: FlowBatch) -> Iterator[Write]:
    """Each post makes a row a word, counts itself, and is refused if it has no text."""
    for item in batch:
        for place, word in enumerate(item.json()["text"].split()):
            yield Put("words", f"{item.key}/{place}", {"word": word, "post": item.key})
        yield Increment("counts", "posts")


def length(batch: FlowBatch) -> Iterator[Write]:
    for item in batch:
        value = item.json()
        yield Put("lengths", item.key, {"letters": len(value["word"]), "post": value["post"]})
        yield Increment("counts", "letters", len(value["word"]))


def deliver(batch: FlowBatch) -> Iterator[Change]:
    for item in batch:
        yield item.upsert(ENDS, key=item.key, words=item.json()["letters"])


STAGES = ("split", "length", "deliver")


def begin(spark: SparkSession, stage: str, endpoints: str, store: str, directory: str, *, now: bool) -> StreamingQuery:
    if stage == "deliver":
        settings = JobSettings(
            tables=(ENDS,),
            sink=sink_of(deliver, "deliver"),
            endpoints=endpoints,
            flow=stage,
            consumer="job",
            store=store,
            checkpoint=f"{directory}/{stage}",
            available_now=now,
        )
        query = start(spark, settings)
        assert query is not None
        return query
    derivation: WriteDerivation = split if stage == "split" else length
    consumer = FlowConsumer.attach(endpoints, stage, "job")
    checkpoint = f"{directory}/{stage}"
    return start_cascade(
        spark,
        consumer,
        derivation,
        dead_letters="dead",
        checkpoint=checkpoint,
        available_now=now,
        batches_per_trigger=4,
    )


def await_sealed(endpoints: str, flow: str) -> None:
    url = f"{endpoints.split(',')[0]}/v1/flows/{flow}?consistency=linearizable"
    wait_for(lambda: (get_json(url) or {}).get("open_items") == 0, 30, f"{flow} has no open items")


def follow(spark: SparkSession, stages: Sequence[str], *places: str, now: bool) -> None:
    """Run jobs until their queries come to an end; whatever ends one before, it is started again, as jobs are."""
    queries: dict[str, StreamingQuery | None] = dict.fromkeys(stages)
    while queries:
        for stage, query in list(queries.items()):
            try:
                if query is None:
                    queries[stage] = begin(spark, stage, *places, now=now)
                elif query.awaitTermination(1):
                    del queries[stage]
            except Exception:
                logging.exception("%s starts again", stage)
                queries[stage] = None


def main() -> int:
    *places, mode = sys.argv[1:]
    spark = session.build("chain", cores=3)
    if mode == "follow":
        follow(spark, STAGES, *places, now=False)
        return 1
    for stage in STAGES:
        await_sealed(places[0], stage)
        follow(spark, [stage], *places, now=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
