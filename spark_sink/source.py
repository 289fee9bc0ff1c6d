"""`format("oncegate")`: a flow as a Spark source, for streams and batch reads; offsets are batch numbers.

Owns: which batches a micro-batch gets, and how tasks share them. Must not know stores. Read next: `flow_client`,
`sink`.

The offset `{"batch": n}` says that batches up to n are read. Batches never change, so a micro-batch that runs again
after a crash gets identical items; a batch that is gone is an error (RETENTION_EXCEEDED), never a gap. Spark calls
`commit` one micro-batch late, and never for the last one of an AvailableNow run: a job that wants its cursor exact
attaches by itself, hands the fence to source and sink, and lets the sink move it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_client import ConsumerLease, FlowState
from oncegate.spark_sink.options import SourceOptions
from oncegate.stores.errors import StoreCode

BATCH_FIELD: Final[pa.Field] = pa.field("batch", pa.int64(), nullable=False)

Offset = dict[str, int]


def item_schema() -> StructType:
    """Return the columns of the source: those of a batch, and `batch`, the number of the batch."""
    fields = [*PLAIN_SCHEMA, BATCH_FIELD]
    types = {pa.int64(): LongType(), pa.string(): StringType()}
    return StructType([StructField(field.name, types[field.type], field.nullable) for field in fields])


@dataclass
class BatchRange(InputPartition):
    """The share of one task: batches ``first`` .. ``last``."""

    first: int
    last: int


class OncegateSource(DataSource):
    """The source; options in `FlowOptions` and `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "oncegate"

    def schema(self) -> StructType:
        """Return the columns; see `item_schema`."""
        return item_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a range of batches."""
        return FlowReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a streaming reader."""
        return FlowStreamReader(SourceOptions.parse(self.options))


class FlowReader(DataSourceReader):
    """Reads a range of batches once: a replay, or a backfill."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares of the range.

        Raises:
            SinkError: RETENTION_EXCEEDED, when its first batch is gone; FLOW_UNREACHABLE, FLOW_REFUSED.
        """
        state = self._options.flow.client().state()
        before = first_offset(self._options, state)
        last = min(self._options.ending_batch or state.last_batch, state.last_batch)
        check_retained(before, last, state)
        return share(before, last, self._options.partitions_max)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the items of a share."""
        return read_share(self._options, partition)


class FlowStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a flow, at most `batches_per_trigger` batches at a time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: int | None = None
        self._attachment: ConsumerLease | None = None

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a query without a checkpoint begins."""
        self._attach()
        if self._options.start == "cursor" and self._attachment is not None:
            return {"batch": self._attachment.cursor}
        return {"batch": first_offset(self._options, self._state())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the admission limit, in batches."""
        return ReadMaxFiles(self._options.batches_per_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the last batch of the next micro-batch; ``start`` itself when nothing new is sealed.

        Raises:
            SinkError: RETENTION_EXCEEDED, when the next batch is gone.
        """
        self._attach()
        state = self._state()
        # A node that lags may answer with an older batch: never go back.
        last = max(state.last_batch if self._target is None else self._target, start["batch"])
        check_retained(max(start["batch"], self._options.delivered), last, state)
        match limit:
            case ReadMaxFiles(batches):
                return {"batch": min(last, start["batch"] + batches)}
            case ReadAllAvailable():
                return {"batch": last}
            case _:
                return {"batch": min(last, start["batch"] + self._options.batches_per_trigger)}

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the newest sealed batch, for Spark's own progress reports."""
        return {"batch": self._state().last_batch}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the newest batch of now as the end of the query."""
        self._target = self._state().last_batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the shares of a micro-batch; the same for the same offsets.

        A micro-batch that was cut off after its cursor moved comes again, when its batches may have been dropped:
        what has been `delivered` is left out.
        """
        before = min(max(start["batch"], self._options.delivered), end["batch"])
        return share(before, end["batch"], self._options.partitions_max)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the items of a share; runs in an executor."""
        return read_share(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Move the cursor, if this source attached the consumer by itself.

        Raises:
            SinkError: FENCED, when another query has attached the consumer since.
        """
        if self._attachment is not None and self._options.flow.consumer is not None:
            client = self._options.flow.client()
            client.move_cursor(self._options.flow.consumer, end["batch"], self._attachment.fence)

    def stop(self) -> None:
        """Nothing to release: connections belong to the process."""

    def _state(self) -> FlowState:
        return self._options.flow.client().state()

    def _attach(self) -> None:
        flow = self._options.flow
        if flow.consumer is not None and flow.fence is None and self._attachment is None:
            self._attachment = flow.client().attach(flow.consumer, secrets.token_hex(16))


def first_offset(options: SourceOptions, state: FlowState) -> int:
    """Return the number of the batch before the first one to read.

    Raises:
        SinkError: BAD_OPTION, when the start is the cursor of a consumer that the flow does not know.
    """
    match options.start:
        case "earliest":
            return max(state.first_batch, 1) - 1
        case "latest":
            return state.last_batch
        case "cursor":
            consumer = state.consumers.get(options.flow.consumer or "")
            if consumer is None:
                raise SinkError(StoreCode.BAD_OPTION, f"no consumer {options.flow.consumer} is attached")
            return consumer.cursor
        case number:
            return number - 1


def check_retained(before: int, last: int, state: FlowState) -> None:
    """Raise RETENTION_EXCEEDED when a batch of ``before`` + 1 .. ``last`` is no longer retained."""
    if before < last and before + 1 < state.first_batch:
        raise SinkError(
            StoreCode.RETENTION_EXCEEDED, f"batch {before + 1} is wanted, the first retained one is {state.first_batch}"
        )


def share(before: int, last: int, partitions_max: int) -> list[InputPartition]:
    """Cut batches ``before`` + 1 .. ``last`` into at most ``partitions_max`` runs of nearly equal length.

    Runs, not single batches: the more posts a task has, the more rows it writes to each partition at once.
    """
    batches = max(last - before, 0)
    parts = min(batches, partitions_max)
    cuts = [before + batches * part // parts for part in range(parts + 1)] if parts else []
    return [BatchRange(first + 1, end) for first, end in pairwise(cuts)]


def read_share(options: SourceOptions, partition: Any) -> Iterator[pa.RecordBatch]:
    """Yield the items of a `BatchRange`, one record batch for each batch."""
    # Spark plans a single partition with value None where there is nothing to read.
    if isinstance(partition, BatchRange):
        client = options.flow.client()
        for number in range(partition.first, partition.last + 1):
            items = client.batch(number)
            numbers = pa.array([number], pa.int64()).take(pa.array([0] * items.num_rows))
            yield items.append_column(BATCH_FIELD, numbers)
