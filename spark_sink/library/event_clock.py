"""The clock of a flow's events: how far their own times have come, batch by batch. Pure.

Owns: the table of clock rows, and which results are final. No clock of a machine is asked: a batch's row holds the
latest time among its events, so the clock is persisted, the same after any restart, and set anew by a replay of the
batches. Read next: `windows`, `sessions`.

The **watermark** after batch n is the latest time in batches up to n, minus the allowed lateness. An event of batch n
is late if its time is below the watermark after batch n - 1. Tasks write batches in any order, so the clock stands at
the last batch before the first gap; the row of a batch is written behind all its other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.library.events import TIME_MS_MAX, Int64s, upserts
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

NEVER_MS: Final = -TIME_MS_MAX - 1
"""The time of a batch without an event, and the watermark before the first event."""
_BUCKET_BITS: Final = 16


def clock_table(name: str) -> StoreTable:
    """Return the table of a job's clock rows; ``side`` tells apart the inputs of a join, and is empty elsewhere."""
    return StoreTable(
        name=name,
        columns=(
            Column("flow", ColumnType.TEXT),
            Column("side", ColumnType.TEXT),
            Column("bucket", ColumnType.INT64),
            Column("batch", ColumnType.INT64),
            Column("latest_ms", ColumnType.INT64),
        ),
        partition_key=("flow", "side", "bucket"),
        clustering=(Clustering("batch"),),
    )


def clock_row(batch: FlowBatch, table: StoreTable, at_ms: Int64s, side: str = "") -> Iterator[Change]:
    """Yield the batch's row of the clock; a derivation yields it last, also for a batch without an event."""
    latest = int(at_ms.max()) if len(at_ms) else NEVER_MS
    row = {"flow": [batch.flow], "side": [side], "bucket": [batch.number >> _BUCKET_BITS]}
    yield from upserts(batch, table, {**row, "batch": [batch.number], "latest_ms": [latest]})


@dataclass(frozen=True, slots=True)
class EventClock:
    """The watermarks after batches ``first_batch`` .. `last_batch`, ascending, int64."""

    first_batch: int
    watermarks: Int64s

    @classmethod
    def read(
        cls, rows: Iterable[pa.RecordBatch], lateness_ms: int, *, first_batch: int = 1, side: str = ""
    ) -> EventClock:
        """Return the clock from the rows of its table.

        Args:
            rows: as ``store.scan(clock_table)`` yields them.
            lateness_ms: how much later than the latest event of the flow an event may come.
            first_batch: the first one that the job ever read.
            side: of a join.
        """
        parts = [part.filter(pc.equal(part.column("side"), side)) for part in rows]
        numbers = np.concatenate([np.zeros(0, np.int64), *(np.asarray(part.column("batch")) for part in parts)])
        latest = np.concatenate([np.zeros(0, np.int64), *(np.asarray(part.column("latest_ms")) for part in parts)])
        order = np.argsort(numbers)
        order = order[numbers[order] >= first_batch]
        whole = int(np.argmin(np.append(numbers[order] == first_batch + np.arange(len(order)), False)))
        ahead = np.maximum.accumulate(latest[order[:whole]])
        return cls(first_batch, np.where(ahead == NEVER_MS, NEVER_MS, ahead - lateness_ms))

    @property
    def last_batch(self) -> int:
        """The last batch before a gap; ``first_batch`` - 1: none is there."""
        return self.first_batch + len(self.watermarks) - 1

    @property
    def watermark_ms(self) -> int:
        """The watermark now."""
        return int(self.watermarks[-1]) if len(self.watermarks) else NEVER_MS

    def before(self, batches: Int64s) -> Int64s:
        """Return the watermarks after the batches that come right before these; now's for those behind the end."""
        known = np.concatenate([[NEVER_MS], self.watermarks]).astype(np.int64)
        return known[np.clip(batches - self.first_batch, 0, len(known) - 1)]
