"""Counts and sums over windows of event time, tumbling and sliding. Pure, but for the scans of `read` and `final`.

Owns: the table of panes, and how windows are made of them. Read next: `event_clock`, `events`.

Time is cut into **panes**: a tumbling window is one, a sliding window of size k panes is k of them and moves on by one.
A row is a partial: what one batch adds to one pane of one key. So an event that comes late, in whatever batch, is in
the sum when it is read, and a batch that comes again changes nothing: late events are exact by construction.

A window that moves on by a pane gains the newest one and loses the eldest: two additions a pane, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.event_clock import EventClock, clock_row, clock_table
from oncegate.spark_sink.library.events import EventFields, events_of, upserts
from oncegate.spark_sink.library.grouping import added, grouped, repeated
from oncegate.spark_sink.partials import summed
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.store import Store, Value
from oncegate.stores.tables import Clustering, Column, ColumnType, StoreTable

_PANES_MAX: Final = 10_000


@dataclass(frozen=True)
class Windows:
    """A derivation of window counts and sums; see `tumbling` and `sliding`.

    Attributes:
        table: partials, one a key, pane and batch.
        clock: its `EventClock`.
    """

    name: str
    fields: EventFields
    pane_ms: int
    panes: int
    lateness_ms: int

    @cached_property
    def table(self) -> StoreTable:
        """Return the table of partials."""
        numbers = ("pane_ms", "batch", "events", *self.fields.sum_names)
        return StoreTable(
            name=self.name,
            columns=(*self.fields.columns(), *(Column(name, ColumnType.INT64) for name in numbers)),
            partition_key=(*self.fields.names, "pane_ms"),
            clustering=(Clustering("batch"),),
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
        pane = events.at_ms // self.pane_ms * self.pane_ms
        each = pa.table({**events.keys, "pane_ms": pane, "events": np.ones(len(pane), np.int64), **events.sums})
        rows = added(each, [*self.fields.names, "pane_ms"])
        columns = {name: rows.column(name).combine_chunks() for name in rows.column_names}
        yield from upserts(batch, self.table, {**columns, "batch": np.full(rows.num_rows, batch.number)})
        yield from clock_row(batch, self.clock, events.at_ms)
        yield from events.rejected

    def read(self, store: Store | ClaimedStore) -> pa.Table:
        """Return all windows that hold an event, as of now; later events revise them.

        Returns:
            Columns: the keys, `start_ms`, `end_ms` (exclusive), `events`, the sums; by key and start.
        """
        return self._shown(self._windows(summed(self.table, store.scan(self.table))))

    def of(self, store: Store | ClaimedStore, key: Mapping[str, Value], start_ms: int, stop_ms: int) -> pa.Table:
        """Return the windows of one key that start at ``start_ms`` or later, before ``stop_ms``; else as `read`.

        It reads a partition for each pane of that time, and not the whole table.

        Raises:
            StoreError: BAD_OPTION, for more than 10,000 panes; STORE_UNAVAILABLE.
        """
        panes = range(-(-start_ms // self.pane_ms), -(-stop_ms // self.pane_ms) + self.panes - 1)
        if len(panes) > _PANES_MAX:
            raise SinkError(StoreCode.BAD_OPTION, f"{len(panes)} panes of {self.name} are too many to read singly")
        rows = (part for pane in panes for part in self._pane(store, {**key, "pane_ms": pane * self.pane_ms}))
        found = self._windows(summed(self.table, rows))
        start = np.asarray(found.column("start_ms"))
        return self._shown(found.filter(pa.array((start_ms <= start) & (start < stop_ms))))

    def _pane(self, store: Store | ClaimedStore, prefix: Mapping[str, Value]) -> Iterator[pa.RecordBatch]:
        rows = store.range(self.table, prefix)
        while rows.num_rows:
            yield from rows.to_batches()
            rows = store.range(self.table, prefix, after=rows.slice(rows.num_rows - 1).to_pylist()[0])

    def final(self, store: Store | ClaimedStore, *, first_batch: int = 1) -> pa.Table:
        """Return the windows that the clock has closed, as they were then: a row, once there, never changes.

        Args:
            store: where the job writes.
            first_batch: the first one that the job ever read.

        Returns:
            As `read`, and `late`: how many events came when their window was closed already. `read` counts them too.
        """
        # The clock first: by now all rows of the batches that it has seen are there.
        clock = EventClock.read(store.scan(self.clock), self.lateness_ms, first_batch=first_batch)
        late: list[pa.Table] = []

        def seen() -> Iterator[pa.RecordBatch]:
            for rows in store.scan(self.table):
                late.append(self._late(rows, clock))
                yield rows

        windows = self._windows(summed(self.table, seen()))
        none = pa.array(np.zeros(windows.num_rows, np.int64))
        parts = [windows.append_column("late", none), *(rows.select([*windows.column_names, "late"]) for rows in late)]
        found = added(pa.concat_tables(parts), [*self.fields.names, "start_ms"])
        closed = np.asarray(found.column("start_ms")) + self.pane_ms * self.panes <= clock.watermark_ms
        return self._shown(found.filter(pa.array(closed & (np.asarray(found.column("events")) > 0))))

    def _windows(self, panes: pa.Table) -> pa.Table:
        """Sums of panes as sums of windows: each pane is added at its own step, and taken out ``panes`` later."""
        if self.panes == 1:
            names = ["start_ms" if name == "pane_ms" else name for name in panes.column_names]
            return pa.table(dict(zip(names, panes.columns, strict=True)))
        order, key = grouped(panes, self.fields.names)
        ordered = panes.take(pa.array(order))
        pane = np.asarray(ordered.column("pane_ms")) // self.pane_ms
        step, key2 = np.concatenate([pane, pane + self.panes]), np.concatenate([key, key])
        at = np.lexsort((step, key2))
        step, key2, first = step[at], key2[at], (at % len(pane) if len(pane) else at)
        # From a step to the next one of the same key the sums stay; behind a key's last step they are zero.
        steps = np.diff(step, append=0)
        steps[np.diff(key2, append=-1) != 0] = 0
        sums = {}
        for name in self._numbers:
            value = np.asarray(ordered.column(name))
            sums[name] = np.cumsum(np.concatenate([value, -value])[at])
        lasting = np.flatnonzero((steps > 0) & (sums["events"] > 0))
        at, within = repeated(steps[lasting])
        of = lasting[at]
        start = (step[of] + within - self.panes + 1) * self.pane_ms
        keys = {name: ordered.column(name).take(pa.array(first[of])) for name in self.fields.names}
        return pa.table({**keys, "start_ms": start, **{name: sums[name][of] for name in self._numbers}})

    def _late(self, rows: pa.RecordBatch, clock: EventClock) -> pa.Table:
        """What partials added to windows that were closed before their batch, negative, `late` as a number."""
        pane = np.asarray(rows.column("pane_ms"))
        behind = clock.before(np.asarray(rows.column("batch"))) - pane
        # The windows of a pane end one, two, … ``panes`` panes after its start.
        of, within = repeated(np.clip(behind // self.pane_ms, 0, self.panes))
        start = pane[of] + (within - self.panes + 1) * self.pane_ms
        keys = {name: rows.column(name).take(pa.array(of)) for name in self.fields.names}
        sums = {name: -np.asarray(rows.column(name))[of] for name in self._numbers}
        return pa.table({**keys, "start_ms": start, **sums, "late": -sums["events"]})

    def _shown(self, windows: pa.Table) -> pa.Table:
        end = np.asarray(windows.column("start_ms")) + self.pane_ms * self.panes
        at = windows.column_names.index("start_ms") + 1
        shown = windows.add_column(at, "end_ms", pa.array(end))
        return shown.sort_by([(name, "ascending") for name in (*self.fields.names, "start_ms")])

    @property
    def _numbers(self) -> tuple[str, ...]:
        return ("events", *self.fields.sum_names)


def tumbling(name: str, fields: EventFields, *, size_ms: int, lateness_ms: int = 0) -> Windows:
    """Return the derivation that counts events, and adds up fields, by key and window [n * size, (n + 1) * size).

    Args:
        name: of the table; the clock's is `<name>_clock`.
        fields: see `events_by`.
        size_ms: of a window.
        lateness_ms: how long `Windows.final` waits for events that come late.

    Raises:
        StoreError: BAD_OPTION, BAD_TABLE.
    """
    return sliding(name, fields, size_ms=size_ms, slide_ms=size_ms, lateness_ms=lateness_ms)


def sliding(name: str, fields: EventFields, *, size_ms: int, slide_ms: int, lateness_ms: int = 0) -> Windows:
    """Return the derivation for windows [n * slide, n * slide + size); see `tumbling`.

    Args:
        name: of the table; the clock's is `<name>_clock`.
        fields: see `events_by`.
        size_ms: of a window; a multiple of ``slide_ms``, at most 10,000 times it.
        slide_ms: from the start of a window to that of the next.
        lateness_ms: how long `Windows.final` waits for events that come late.

    Raises:
        StoreError: BAD_OPTION, BAD_TABLE.
    """
    if slide_ms < 1 or size_ms % slide_ms or not 1 <= size_ms // slide_ms <= _PANES_MAX or lateness_ms < 0:
        raise SinkError(StoreCode.BAD_OPTION, f"size_ms is 1..{_PANES_MAX} times slide_ms, lateness_ms not negative")
    return Windows(name, fields, slide_ms, size_ms // slide_ms, lateness_ms)
