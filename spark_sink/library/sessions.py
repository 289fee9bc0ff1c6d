"""Sessions: events of a key that lie no further apart than a gap, in event time. Pure, but for the scan of `read`.

Owns: the table of partial sessions, and how they become whole ones. Read next: `event_clock`, `events`.

A batch makes partial sessions of its own events: intervals with counts and sums. Intervals no further apart than the
gap are one session, whichever batches they are of. To join intervals is associative and commutative, so the outcome
depends on the events alone: a late event makes a session longer, or joins two, when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.event_clock import EventClock, clock_row, clock_table
from oncegate.spark_sink.library.events import TIME_MS_MAX, EventFields, events_of, upserts
from oncegate.spark_sink.library.grouping import grouped
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.store import Store
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Sessions:
    """A derivation of sessions; see `sessions`.

    Attributes:
        table: partial sessions, one a key, batch and interval.
        clock: its `EventClock`.
    """

    name: str
    fields: EventFields
    gap_ms: int
    lateness_ms: int

    @cached_property
    def table(self) -> StoreTable:
        """Return the table of partials; `day` is that of the start, and bounds a partition."""
        numbers = ("day", "start_ms", "batch", "end_ms", "events", *self.fields.sum_names)
        return StoreTable(
            name=self.name,
            columns=(*self.fields.columns(), *(Column(name, ColumnType.INT64) for name in numbers)),
            partition_key=(*self.fields.names, "day"),
            clustering=(Clustering("start_ms"), Clustering("batch")),
        )

    @cached_property
    def clock(self) -> StoreTable:
        """Return the table of the clock."""
        return clock_table(f"{self.name}_clock")

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """All that the derivation writes to."""
        return (self.table, self.clock)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the batch's partials, its row of the clock, and the items that are no events."""
        events = events_of(batch, self.fields)
        at, ones = events.at_ms, np.ones(len(events.at_ms), np.int64)
        rows = self._joined(pa.table({**events.keys, "start_ms": at, "end_ms": at, "events": ones, **events.sums}))
        columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        day = np.asarray(rows.column("start_ms")) // _DAY_MS
        numbered = {"day": day, "batch": np.full(rows.num_rows, batch.number)}
        yield from upserts(batch, self.table, {**columns, **numbered})
        yield from clock_row(batch, self.clock, at)
        yield from events.rejected

    def read(self, store: Store | ClaimedStore, *, first_batch: int = 1) -> pa.Table:
        """Return all sessions, as of now; later events revise them.

        Args:
            store: where the job writes.
            first_batch: the first one that the job ever read.

        Returns:
            Columns: the keys, `start_ms` and `end_ms`, the times of the first and the last event, `events`, the sums,
            and `final`: only an event that is later than the allowed lateness can still change it; by key and start.
        """
        clock = EventClock.read(store.scan(self.clock), self.lateness_ms, first_batch=first_batch)
        names = [*self.fields.names, "start_ms", "end_ms", "events", *self.fields.sum_names]
        found = pa.schema([self.table.schema.field(name) for name in names]).empty_table()
        for rows in store.scan(self.table):
            found = self._joined(pa.concat_tables([found, pa.Table.from_batches([rows.select(names)])]))
        closed = np.asarray(found.column("end_ms")) + self.gap_ms < clock.watermark_ms
        whole = found.append_column("final", pa.array(closed))
        return whole.sort_by([(name, "ascending") for name in (*self.fields.names, "start_ms")])

    def _joined(self, rows: pa.Table) -> pa.Table:
        """Join intervals of a key: each opens at its start and closes a gap behind its end; where none is open, a
        session begins. Keys need no reset, because all intervals of one are closed before the next begins.
        """
        count = rows.num_rows
        if not count:
            return rows
        order, key = grouped(rows, self.fields.names)
        ordered = rows.take(pa.array(order))
        start, end = (np.asarray(ordered.column(name)) for name in ("start_ms", "end_ms"))
        closing = np.repeat([0, 1], count)
        # At the same time what opens comes first: two intervals just a gap apart are one session.
        at = np.lexsort((closing, np.concatenate([start, end + self.gap_ms]), np.concatenate([key, key])))
        open_before = np.cumsum(1 - 2 * closing[at]) - (1 - 2 * closing[at])
        opens = at < count
        taken, begins = at[opens], np.flatnonzero(open_before[opens] == 0)
        columns = {name: ordered.column(name).take(pa.array(taken[begins])) for name in self.fields.names}
        columns["start_ms"] = pa.array(start[taken[begins]])
        columns["end_ms"] = pa.array(np.maximum.reduceat(end[taken], begins))
        for name in ("events", *self.fields.sum_names):
            columns[name] = pa.array(np.add.reduceat(np.asarray(ordered.column(name))[taken], begins))
        return pa.table(columns).select(rows.column_names).cast(rows.schema)


def sessions(name: str, fields: EventFields, *, gap_ms: int, lateness_ms: int = 0) -> Sessions:
    """Return the derivation that counts events, and adds up fields, by key and session.

    Args:
        name: of the table; the clock's is `<name>_clock`.
        fields: see `events_by`.
        gap_ms: two events at most so far apart are of one session.
        lateness_ms: how late an event may come before its session counts as final.

    Raises:
        StoreError: BAD_OPTION, BAD_TABLE.
    """
    if not 0 <= gap_ms <= TIME_MS_MAX or lateness_ms < 0:
        raise SinkError(StoreCode.BAD_OPTION, f"gap_ms is 0..{TIME_MS_MAX}, lateness_ms not negative")
    return Sessions(name, fields, gap_ms, lateness_ms)
