"""The streaming sink: derives rows from items inside the writing task, writes them, then moves the cursor.

Owns: the order write → cursor → progress line, and what a micro-batch reports. Must not know which rows are derived:
that is a `Derivation`. Read next: `applying`, `flow_batches`, `jobs.timeline`, `stores.store`.

Items cross Spark, rows never do: a post becomes sixty rows only where they are written, as Arrow columns. A task
that fails, or a micro-batch that runs again, writes the same rows with the same timestamps again, which changes
nothing. The cursor moves when all tasks of a micro-batch have written, on the driver, under the fence of this run.
"""

from __future__ import annotations

import json
import os
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.derivation import Derivation
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.flow_batches import whole_batches
from oncegate.spark_sink.options import FlowOptions, SinkOptions
from oncegate.spark_sink.tracing import Traced, task_spans
from oncegate.stores.claimed import place_of, process_store


@dataclass
class TaskDone(Done, spark.WriterCommitMessage):
    """What one task wrote, and how many spans its process has dropped since the task before."""

    spans_dropped: int = 0


class StoreSink(spark.DataSource):
    """A sink of items into a store; subclasses name it and say what is derived. Options in `SinkOptions`."""

    @abstractmethod
    def derivation(self) -> Derivation:
        """Return the derivation of rows from items; it is pickled and sent to the tasks."""

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        """Return the writer of a replay: rows are written, no cursor moves."""
        return StoreWriter(SinkOptions.parse(self.options).of_present_epoch(), self.derivation())

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a micro-batch."""
        return StoreStreamWriter(SinkOptions.parse(self.options).of_present_epoch(), self.derivation())


class _Writing:
    """What both writers do in a task."""

    def __init__(self, options: SinkOptions, derivation: Derivation) -> None:
        self._options = options
        self._derivation = derivation

    def write(self, iterator: Iterator[pa.RecordBatch]) -> spark.WriterCommitMessage:
        """See `write_items`."""
        return write_items(iterator, self._options, self._derivation)


class StoreWriter(_Writing, spark.DataSourceArrowWriter):
    """Writes a range of batches once; see `StoreSink.writer`."""


class StoreStreamWriter(_Writing, spark.DataSourceStreamArrowWriter):
    """Writes one micro-batch; see `StoreSink.streamWriter`."""

    def commit(self, messages: Sequence[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Move the cursor to the last batch of the micro-batch and append a progress line; may be called again.

        Raises:
            SinkError: FENCED, when another run has attached the consumer since: this query ends.
        """
        done = [message for message in messages if isinstance(message, TaskDone) and message.items]
        if not done:
            return
        flow, last = self._options.flow, max(task.last_batch for task in done)
        if flow.consumer is not None and flow.fence is not None:
            flow.client().move_cursor(flow.consumer, last, flow.fence)
        if self._options.progress is not None:
            _append(self._options.progress, {**_progress(done, batchId, last), **_lag(flow)})

    def abort(self, messages: Sequence[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Leave what was written: the same rows come again."""


def write_items(iterator: Iterator[pa.RecordBatch], options: SinkOptions, derivation: Derivation) -> TaskDone:
    """Derive and write the rows of one task's items, one call of ``derivation`` a flow batch; idempotent.

    When it returns, all rows are durable.

    Raises:
        StoreError: STORE_UNAVAILABLE, when the store did not answer until its deadline: Spark runs the task again;
            BATCH_INCOMPLETE, when the task was not given whole flow batches; STORE_MISMATCH, when the store is, or
            has become, another cluster's.
    """
    done = TaskDone()
    applier = Applier(derivation, options.job, options.stamp)
    spans = task_spans(_traced(options))
    try:
        with process_store(options.store, options.flow.cluster, options.epoch) as store:
            asked_s = time.perf_counter()
            for batch in whole_batches(iterator, options.flow.flow, options.rows_per_write):
                with spans.batch(batch, asked_s) as watch:
                    applier.apply(batch, store, done, watch)
                asked_s = time.perf_counter()
    finally:
        spans.settle()
    done.spans_dropped = spans.take_dropped()
    return done


def _traced(options: SinkOptions) -> Traced:
    task = TaskContext.get()
    return Traced(
        endpoint=options.otlp_endpoint,
        cluster=options.flow.cluster,
        job=options.job,
        store=place_of(options.store),
        replay=options.replay,
        attempt=1 if task is None else task.attemptNumber() + 1,
    )


def sink_of(derivation: Derivation, name: str) -> type[StoreSink]:
    """Return a sink that writes what ``derivation`` yields, under the name of a format; Spark pickles it by value."""

    class DerivationSink(StoreSink):
        """`format(name)`: options of `SinkOptions`."""

        @classmethod
        def name(cls) -> str:
            return name

        def derivation(self) -> Derivation:
            return derivation

    return DerivationSink


def _progress(done: Sequence[TaskDone], micro_batch: int, last: int) -> dict[str, Any]:
    rows: Counter[str] = Counter()
    for task in done:
        rows.update(task.rows)
    seconds = max(task.derive_s + task.write_s for task in done)
    return {
        "time_ms": time.time_ns() // 1_000_000,
        "micro_batch": micro_batch,
        "first_batch": min(task.first_batch for task in done),
        "last_batch": last,
        "items": sum(task.items for task in done),
        "rows": rows.total(),
        "rows_by_table": dict(rows),
        "tasks": len(done),
        "derive_s": round(sum(task.derive_s for task in done), 6),
        "write_s": round(sum(task.write_s for task in done), 6),
        "spans_dropped": sum(task.spans_dropped for task in done),
        "rows_per_s": round(rows.total() / seconds) if seconds else 0,
    }


def _lag(flow: FlowOptions) -> dict[str, int | None]:
    """The consumer's lag now; None if the gateway does not answer at once."""
    lag = None
    if flow.consumer is not None:
        # For information only: not worth a retry, and never worth a failure.
        with suppress(SinkError):
            lag = flow.client(timeout_s=0).state().consumers.get(flow.consumer)
    return {name: getattr(lag, name, None) for name in ("lag_batches", "lag_items", "lag_ms")}


def _append(path: str, line: dict[str, Any]) -> None:
    # One write of a whole line at the end of the file: readers that tail it never see half of one.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
    finally:
        os.close(descriptor)
