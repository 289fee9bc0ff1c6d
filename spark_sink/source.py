"""`format("oncegate")`: a flow as a Spark source, for streams and batch reads; offsets are batch numbers.

Owns: which batches a micro-batch gets, and how tasks share them. Must not know stores. Read next: `flow_client`,
`sink`.

The offset `{"batch": n, "flow": name, "cluster": identity}` says that batches up to n are read; older checkpoints have
the number alone. Batches never change, so a micro-batch that runs again after a crash gets identical items; a batch
that is gone is an error (RETENTION_EXCEEDED), never a gap.

A source that attached its consumer by itself moves the cursor. Spark calls `commit` one micro-batch late, and never for
the last one. But it asks for the `latestOffset` after ``start`` only when the micro-batch up to ``start`` is done and
noted in the checkpoint (`MicroBatchExecution.constructNextBatch`), also when nothing new comes: so the cursor moves
there, and reaches the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StringType, StructField, StructType

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_batches import BATCH_FIELD, COUNT_FIELD, numbered
from oncegate.spark_sink.flow_client import ConsumerLease, FlowState
from oncegate.spark_sink.options import SourceOptions
from oncegate.stores.errors import StoreCode

Offset = dict[str, Any]


def item_schema() -> StructType:
    """Return the columns of the source: those of a batch, its number `batch`, and `batch_items`, how many it has."""
    fields = [*PLAIN_SCHEMA, BATCH_FIELD, COUNT_FIELD]
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
        self._moved = 0
        self._is_new = False
        self._is_placed = False

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return where a query without a finished micro-batch begins."""
        self._attach()
        self._is_new = True
        state = self._state()
        if self._options.start == "cursor" and self._attachment is not None:
            return self._offset(self._attachment.cursor, state)
        return self._offset(first_offset(self._options, state), state)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the admission limit, in batches."""
        return ReadMaxFiles(self._options.batches_per_trigger)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Return the last batch of the next micro-batch; ``start`` itself when nothing new is sealed.

        Raises:
            SinkError: RETENTION_EXCEEDED, when the next batch is gone; CURSOR_MISMATCH, when ``start`` does not fit the
                consumer's cursor; FENCED, when another query has attached the consumer since.
        """
        self._attach()
        state = self._state()
        self._place(start, state, planned=False)
        before = start["batch"]
        self._move(before)
        # A node that lags may answer with an older batch: never go back.
        last = max(state.last_batch if self._target is None else self._target, before)
        if self._options.ending_batch is not None:
            last = max(min(last, self._options.ending_batch), before)
        check_retained(max(before, self._options.delivered or 0), last, state)
        match limit:
            case ReadMaxFiles(batches):
                last = min(last, before + batches)
            case ReadAllAvailable():
                pass
            case _:
                last = min(last, before + self._options.batches_per_trigger)
        return self._offset(last, state)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802 - Spark's name
        """Return the newest sealed batch, for Spark's own progress reports."""
        state = self._state()
        return self._offset(state.last_batch, state)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the newest batch of now as the end of the query."""
        self._target = self._state().last_batch

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the shares of a micro-batch; the same for the same offsets.

        A micro-batch that was cut off after its cursor moved comes again, when its batches may have been dropped:
        what has been `delivered` is left out.

        Raises:
            SinkError: CURSOR_MISMATCH, as `latestOffset`.
        """
        self._attach()
        if not self._is_placed:
            self._place(start, self._state(), planned=True)
        before = min(max(start["batch"], self._options.delivered or 0), end["batch"])
        return share(before, end["batch"], self._options.partitions_max)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the items of a share; runs in an executor."""
        return read_share(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Move the cursor, if this source attached the consumer by itself.

        Raises:
            SinkError: FENCED, when another query has attached the consumer since.
        """
        self._move(end["batch"])

    def stop(self) -> None:
        """Nothing to release: connections belong to the process."""

    def _offset(self, batch: int, state: FlowState) -> Offset:
        return {"batch": batch, "flow": self._options.flow.flow, "cluster": state.cluster_identity}

    def _state(self) -> FlowState:
        return self._options.flow.client().state()

    def _attach(self) -> None:
        flow = self._options.flow
        if flow.consumer is not None and flow.fence is None and self._attachment is None:
            self._attachment = flow.client().attach(flow.consumer, secrets.token_hex(16))
            self._moved = self._attachment.cursor

    def _move(self, batch: int) -> None:
        if self._attachment is not None and self._options.flow.consumer is not None and batch > self._moved:
            client = self._options.flow.client()
            self._moved = client.move_cursor(self._options.flow.consumer, batch, self._attachment.fence)

    def _place(self, start: Offset, state: FlowState, *, planned: bool) -> None:
        """Check once that the first offset of this run fits flow and cursor; ``planned``: its micro-batch was cut off.

        A sink of ours moves the cursor before Spark notes that a micro-batch is done, so the checkpoint never is ahead
        of it. This source moves it after: it may be behind by the micro-batch that was the last one of a crash.
        """
        if self._is_placed:
            return
        self._is_placed = True
        batch, flow = start["batch"], self._options.flow
        if start.get("flow", flow.flow) != flow.flow:
            raise _mismatch(f"the checkpoint is of flow {start['flow']}, not {flow.flow}: use another checkpoint")
        if state.cluster_identity and (start.get("cluster") or state.cluster_identity) != state.cluster_identity:
            raise _mismatch(
                f"the checkpoint is of cluster {start['cluster']}, not {state.cluster_identity}: "
                "use another checkpoint; if this cluster was restored or rebuilt, `oncegate store adopt` first"
            )
        cursor, slack = self._options.delivered, 0
        if self._attachment is not None:
            cursor, slack = self._attachment.cursor, self._options.batches_per_trigger
        if cursor is None:
            if batch > state.last_batch:
                raise _mismatch(f"the checkpoint stands at batch {batch}, which {flow.flow} of this cluster never had")
        elif self._is_new:
            # One that was planned moved the cursor over itself before it was cut off.
            if batch < cursor and not planned:
                raise _mismatch(
                    f"batch {batch + 1} is wanted, and {flow.consumer} has finished {cursor}: read a range again with "
                    "--replay, or move the cursor back: "
                    f"`oncegate consumer start {flow.flow} {flow.consumer} --from batch:{batch + 1}`"
                )
        elif batch > cursor + slack:
            raise _mismatch(
                f"the checkpoint stands at batch {batch}, the cursor of {flow.consumer} at {cursor}: if the cursor was "
                "moved back to read a range again, move it forward and use --replay; if the checkpoint is of another "
                "flow or cluster, use another one"
            )


def _mismatch(why: str) -> SinkError:
    return SinkError(StoreCode.CURSOR_MISMATCH, why)


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
            yield numbered(client.batch(number), number)
