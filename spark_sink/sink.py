"""The streaming sink: derives rows from items inside the writing task, writes them, then moves the cursor.

Owns: the order write → cursor → progress line, and what a micro-batch reports. Must not know which rows are derived:
that is a `Derivation`. Read next: `jobs.timeline`, `stores.store`.

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
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.options import FlowOptions, SinkOptions
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.store import drop_process_store, process_store
from oncegate.stores.tables import StoreTable


class Derivation(Protocol):
    """Derives rows from items. Deterministic: keys and write timestamps follow from the items alone."""

    def rows(self, items: pa.RecordBatch, rows_max: int) -> Iterator[tuple[StoreTable, pa.RecordBatch]]:
        """Yield rows for tables of the store, at most ``rows_max`` at once where items allow."""
        ...


@dataclass
class TaskDone(spark.WriterCommitMessage):
    """What one task wrote: how much of which table, and which batches it saw (0 = none)."""

    items: int = 0
    first_batch: int = 0
    last_batch: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    derive_s: float = 0.0
    write_s: float = 0.0


class StoreSink(spark.DataSource):
    """A sink of items into a store; subclasses name it and say what is derived. Options in `SinkOptions`."""

    @abstractmethod
    def derivation(self) -> Derivation:
        """Return the derivation of rows from items; it is pickled and sent to the tasks."""

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        """Return the writer of a replay: rows are written, no cursor moves."""
        return StoreWriter(SinkOptions.parse(self.options), self.derivation())

    def streamWriter(self, schema: StructType, overwrite: bool) -> spark.DataSourceStreamWriter:  # noqa: N802
        """Return the writer of a micro-batch."""
        return StoreStreamWriter(SinkOptions.parse(self.options), self.derivation())


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
    """Derive and write the rows of one task's items; when it returns they are durable; idempotent.

    Raises:
        StoreError: STORE_UNAVAILABLE, when the store did not answer until its deadline: Spark runs the task again.
    """
    done = TaskDone()
    store = process_store(options.store)
    mark = time.perf_counter()
    try:
        for items in iterator:
            batches = items.column("batch")
            if len(batches):
                done.first_batch = min(done.first_batch or 2**63, batches[0].as_py())
                done.last_batch = max(done.last_batch, batches[-1].as_py())
            done.items += items.num_rows
            for table, rows in derivation.rows(items, options.rows_per_write):
                mark = _spend(done, "derive_s", mark)
                store.write(table, rows)
                done.rows[table.name] += rows.num_rows
                mark = _spend(done, "write_s", mark)
    except StoreError as error:
        if error.code == StoreCode.STORE_UNAVAILABLE:
            drop_process_store(options.store)
        raise
    return done


def _spend(done: TaskDone, counter: str, since: float) -> float:
    now = time.perf_counter()
    setattr(done, counter, getattr(done, counter) + now - since)
    return now


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
