"""Sinks of the tests: one that overwrites rows, and the planted bug, a write timestamp taken from the clock.

The clock counts milliseconds: one in microseconds is refused, for it is no commit number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Upsert
from oncegate.spark_sink.jobs.timeline import TimelineSink
from oncegate.spark_sink.sink import StoreSink
from oncegate.stores import WRITE_TS, Column, ColumnType, StoreTable

LATEST = StoreTable(
    name="latest",
    columns=(Column("item_key", ColumnType.TEXT), Column("value", ColumnType.TEXT)),
    partition_key=("item_key",),
)
"""The newest value of each key: rows that are overwritten, unlike those of a timeline."""


class LatestValue:
    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        columns = [batch.items.column(name) for name in ("key", "value", "commit")]
        yield Upsert(LATEST, pa.RecordBatch.from_arrays(columns, schema=LATEST.schema))


@dataclass
class ClockTimestamps:
    """The planted bug, around any derivation."""

    correct: Derivation

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        for change in self.correct(batch):
            assert isinstance(change, Upsert)
            rows = change.rows
            now = pa.array(np.full(rows.num_rows, time.time_ns() // 1_000_000))
            columns = [now if name == WRITE_TS else rows.column(name) for name in rows.schema.names]
            yield Upsert(change.table, pa.RecordBatch.from_arrays(columns, schema=rows.schema))


class LatestValueSink(StoreSink):
    @classmethod
    def name(cls) -> str:
        return "latest-value"

    def derivation(self) -> Derivation:
        return LatestValue()


class ClockValueSink(StoreSink):
    @classmethod
    def name(cls) -> str:
        return "clock-value"

    def derivation(self) -> Derivation:
        return ClockTimestamps(LatestValue())


class ClockTimelineSink(TimelineSink):
    @classmethod
    def name(cls) -> str:
        return "clock-timeline"

    def derivation(self) -> Derivation:
        return ClockTimestamps(super().derivation())
