"""The streaming sink of a cascade: what a flow's batches derive to goes back into the gateway, batch by batch, once.

Owns: how Spark runs a `Cascade`. The batches of a micro-batch are written by one task, in order, and each moves the
cursor itself, so that Spark's checkpoint never is ahead of the cursor. What a cut-off micro-batch has finished is left
out by the source when the consumer attaches again (`FlowConsumer.options`). Read next: `cascade`, `source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import datasource as spark
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from oncegate.spark_sink.cascade import Cascade, WriteDerivation
from oncegate.spark_sink.checkpoints import clear_drafts
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_batches import whole_batches
from oncegate.spark_sink.flow_client import FlowClient
from oncegate.spark_sink.options import BATCHES_PER_TRIGGER_DEFAULT, ROWS_PER_WRITE_DEFAULT, FlowOptions
from oncegate.spark_sink.session import register
from oncegate.spark_sink.sink import TaskDone
from oncegate.spark_sink.source import OncegateSource
from oncegate.stores.errors import StoreCode
from oncegate.stores.retry import Retry


class CascadeWriter(spark.DataSourceStreamArrowWriter):
    """Writes one micro-batch; the cursor moves with each batch, so there is nothing left to commit."""

    def __init__(self, flow: FlowOptions, dead_letters: str, derivation: WriteDerivation) -> None:
        self._flow = flow
        self._dead_letters = dead_letters
        self._derivation = derivation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> spark.WriterCommitMessage:
        """Write the batches of one task in order; raises as `Cascade.apply`."""
        flow, done = self._flow, TaskDone()
        if flow.consumer is None or flow.fence is None:
            raise SinkError(StoreCode.BAD_OPTION, "a cascade needs a consumer and the fence of its attachment")
        client = FlowClient(flow.endpoints, flow.flow, retry=Retry(flow.timeout_s))
        cascade = Cascade(self._derivation, client, flow.consumer, flow.fence, self._dead_letters)
        for batch in whole_batches(iterator, flow.flow, ROWS_PER_WRITE_DEFAULT):
            cascade.apply(batch, done)
        return done

    def commit(self, messages: Sequence[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""

    def abort(self, messages: Sequence[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what was written: the same parts come again, and change nothing."""


def cascade_sink_of(derivation: WriteDerivation, name: str) -> type[spark.DataSource]:
    """Return a sink that writes what ``derivation`` yields, under the name of a format; Spark pickles it by value.

    Options: those of `FlowOptions`, and ``dead_letters``, a table of the gateway that is a target of the flow.
    """

    class CascadeSink(spark.DataSource):
        """`format(name)`."""

        @classmethod
        def name(cls) -> str:
            return name

        def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: N802
            dead_letters = self.options.get("dead_letters")
            if not dead_letters:
                raise SinkError(StoreCode.BAD_OPTION, "option dead_letters is missing")
            return CascadeWriter(FlowOptions.parse(self.options), dead_letters, derivation)

    return CascadeSink


def start_cascade(
    spark_session: SparkSession,
    consumer: FlowConsumer,
    derivation: WriteDerivation,
    *,
    dead_letters: str,
    checkpoint: str,
    available_now: bool = True,
    interval_ms: int = 200,
    batches_per_trigger: int = BATCHES_PER_TRIGGER_DEFAULT,
) -> StreamingQuery:
    """Start the query that reads where the consumer's cursor stands and writes back to the gateway.

    Args:
        spark_session: one session may run several jobs.
        consumer: attached by this process for this query.
        derivation: as `Cascade` has it.
        dead_letters: table of the gateway for items that the derivation rejects.
        checkpoint: directory of the query's own state.
        available_now: end when all that is sealed now is written; else follow the flow, every ``interval_ms``.
        interval_ms: pause between two micro-batches.
        batches_per_trigger: of a micro-batch, at most.

    Raises:
        SinkError: BAD_OPTION.
    """
    sink = cascade_sink_of(derivation, f"cascade {consumer.flow.flow} {consumer.flow.consumer}")
    register(spark_session, OncegateSource, sink)
    clear_drafts(checkpoint)
    items = (
        spark_session.readStream.format(OncegateSource.name())
        .options(**consumer.options(), starting_batch=str(consumer.cursor + 1))
        .options(batches_per_trigger=batches_per_trigger, partitions_max=1)
        .load()
    )
    writer = (
        items.writeStream.format(sink.name())
        .options(**consumer.options(), dead_letters=dead_letters)
        .option("checkpointLocation", checkpoint)
    )
    if available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{interval_ms} milliseconds").start()
