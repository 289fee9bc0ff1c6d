"""A join of two streams of events within a window, in the store: events wait there under their join key for a partner.

Owns: the tables of waiting events and of pairs, and the second pass that pairs and evicts. Pure, but for the store.
Read next: `event_clock`, `events`.

Each side is a derivation of its own, run by a job of its own over a flow of its own, or both over one; they write one
table, in which their rows are apart by side, flow and commit number. A pass reads what waits, writes all pairs, and
then deletes the events that can have no further partner. A pass that is cut off anywhere and begun again writes the
same pairs under the same timestamps, and an event is deleted only when its pairs are durable: so pairs end as if it had
run once.

Which events pair follows from the events alone, not from when a pass runs: an event that comes later than the allowed
lateness (`event_clock`) pairs with none, even where its partner happens to wait still.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.library.event_clock import EventClock, clock_row, clock_table
from oncegate.spark_sink.library.events import TIME_MS_MAX, EventFields, events_of
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.store import Store
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

SideName = Literal["left", "right"]
_SIDES: Final[tuple[SideName, SideName]] = ("left", "right")


@dataclass(frozen=True)
class StoreJoin:
    """A join; see `store_join`."""

    name: str
    fields: tuple[EventFields, EventFields]
    before_ms: int
    after_ms: int
    lateness_ms: int

    @property
    def left(self) -> JoinSide:
        """Return the derivation of the one side."""
        return JoinSide(self, "left")

    @property
    def right(self) -> JoinSide:
        """Return the derivation of the other side."""
        return JoinSide(self, "right")

    @cached_property
    def waiting(self) -> StoreTable:
        """Return the table of the events that wait for a partner."""
        texts, numbers = ("flow", "side", "value"), ("commit", "batch", "at_ms")
        return StoreTable(
            name=f"{self.name}_waiting",
            columns=(
                *self.fields[0].columns(),
                *(Column(name, ColumnType.TEXT) for name in texts),
                *(Column(name, ColumnType.INT64) for name in numbers),
            ),
            partition_key=self.fields[0].names,
            clustering=(Clustering("side"), Clustering("flow"), Clustering("commit")),
        )

    @cached_property
    def clock(self) -> StoreTable:
        """Return the table of both sides' clocks."""
        return clock_table(f"{self.name}_clock")

    @cached_property
    def pairs(self) -> StoreTable:
        """Return the table of pairs."""
        numbers, texts = ("left_commit", "right_commit", "left_ms", "right_ms"), ("left_value", "right_value")
        return StoreTable(
            name=self.name,
            columns=(
                *self.fields[0].columns(),
                *(Column(name, ColumnType.INT64) for name in numbers),
                *(Column(name, ColumnType.TEXT) for name in texts),
            ),
            partition_key=self.fields[0].names,
            clustering=(Clustering("left_commit"), Clustering("right_commit")),
        )

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """All that the two derivations and `assemble` write to."""
        return (self.waiting, self.clock, self.pairs)

    def assemble(self, store: Store | ClaimedStore, *, first_batches: tuple[int, int] = (1, 1)) -> Assembled:
        """Make one pass: write the pairs of what waits, then delete what can pair no more. Idempotent; one at a time.

        It reads all that waits, and no more: bounded by window, lateness and lag.

        Args:
            store: where both jobs write.
            first_batches: the first one that each side's job ever read.

        Raises:
            StoreError: STORE_UNAVAILABLE: begin again.
        """
        # The clocks first: by now all events of the batches that they have seen are there, or were evicted.
        rows = list(store.scan(self.clock))
        clocks = {
            side: EventClock.read(rows, self.lateness_ms, first_batch=first, side=side)
            for side, first in zip(_SIDES, first_batches, strict=True)
        }
        parts = [pa.Table.from_batches([part]) for part in store.scan(self.waiting)]
        events = pa.concat_tables([self.waiting.schema.empty_table(), *parts]).combine_chunks()
        # What an adopted store holds of another cluster's log has timestamp 0.
        events = events.filter(pa.array(np.asarray(events.column(WRITE_TS)) > 0))
        chosen, ended, late = {}, [], 0
        for (side, other), reach in zip((_SIDES, _SIDES[::-1]), (self.after_ms, self.before_ms), strict=True):
            of_side = events.filter(pa.array([name == side for name in events.column("side").to_pylist()], pa.bool_()))
            batch, at = (np.asarray(of_side.column(name)) for name in ("batch", "at_ms"))
            known = batch <= clocks[side].last_batch
            too_late = known & (at < clocks[side].before(batch))
            chosen[side] = of_side.filter(pa.array(known & ~too_late))
            ended.append(of_side.filter(pa.array(too_late | (known & (at + reach < clocks[other].watermark_ms)))))
            late += int(too_late.sum())
        pairs = self._pairs(chosen["left"], chosen["right"])
        for part in pairs.to_batches():
            store.write(self.pairs, part)
        gone = pa.concat_tables(ended).select(self.waiting.key_schema.names)
        for part in gone.to_batches():
            # At its own timestamp: a batch that is written again does not bring it back.
            store.delete(self.waiting, part)
        return Assembled(pairs.num_rows, gone.num_rows, late)

    def read(self, store: Store | ClaimedStore) -> pa.Table:
        """Return the pairs so far."""
        found = [pa.Table.from_batches([part]) for part in store.scan(self.pairs)]
        whole = pa.concat_tables([self.pairs.schema.empty_table(), *found])
        return whole.sort_by([(name, "ascending") for name in self.pairs.key])

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Pairs of the window, by an equality join: time is cut into spans as long as the window, which meets one or
        two of them.
        """
        keys, span = list(self.fields[0].names), self.before_ms + self.after_ms + 1
        left_at, right_at = (np.asarray(side.column("at_ms")) for side in (left, right))
        first, last = (left_at - self.before_ms) // span, (left_at + self.after_ms) // span
        twice = np.concatenate([np.arange(left.num_rows), np.flatnonzero(last != first)])
        spans = np.concatenate([first, last[last != first]])
        columns = ["commit", "at_ms", "value"]
        sides = (
            left.take(pa.array(twice)).select([*keys, *columns]).append_column("span", pa.array(spans)),
            right.select([*keys, *columns]).append_column("span", pa.array(right_at // span)),
        )
        named = {"commit": "commit", "at_ms": "ms", "value": "value"}
        one, other = (
            rows.rename_columns([f"{side}_{named[name]}" if name in named else name for name in rows.column_names])
            for side, rows in zip(_SIDES, sides, strict=True)
        )
        both = one.join(other, [*keys, "span"], join_type="inner", use_threads=False)
        apart = np.asarray(both.column("right_ms")) - np.asarray(both.column("left_ms"))
        both = both.filter(pa.array((-self.before_ms <= apart) & (apart <= self.after_ms)))
        commits = (np.asarray(both.column(f"{side}_commit")) for side in _SIDES)
        both = both.append_column(WRITE_TS, pa.array(np.maximum(*commits)))
        return both.select(self.pairs.schema.names).cast(self.pairs.schema).combine_chunks()


@dataclass(frozen=True)
class JoinSide:
    """The derivation of one side of a join: its events wait in the store."""

    join: StoreJoin
    side: SideName

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """All tables of the join."""
        return self.join.tables

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the events of the batch, its row of the clock, and the items that are no events."""
        events = events_of(batch, self.join.fields[_SIDES.index(self.side)])
        items, count = batch.items.take(pa.array(events.position)), len(events.at_ms)
        columns = {
            **events.keys,
            "flow": pa.array([batch.flow] * count, pa.string()),
            "side": pa.array([self.side] * count, pa.string()),
            "value": items.column("value"),
            "commit": items.column("commit"),
            "batch": pa.array(np.full(count, batch.number)),
            "at_ms": pa.array(events.at_ms),
            WRITE_TS: items.column("commit"),
        }
        schema = self.join.waiting.schema
        rows = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        for begin in range(0, count, batch.rows_max):
            yield Upsert(self.join.waiting, rows.slice(begin, batch.rows_max))
        yield from clock_row(batch, self.join.clock, events.at_ms, self.side)
        yield from events.rejected


@dataclass(frozen=True, slots=True)
class Assembled:
    """What a pass did: pairs written (also again), events deleted, those among them that came too late to pair."""

    pairs: int
    evicted: int
    late: int


def store_join(
    name: str, left: EventFields, right: EventFields, *, after_ms: int, before_ms: int = 0, lateness_ms: int
) -> StoreJoin:
    """Return the join of two streams: pairs of one key whose right event is at most so far from the left one.

    Args:
        name: of the table of pairs; `<name>_waiting` and `<name>_clock` are made too.
        left: keys and time of the one side; see `events_by`.
        right: of the other side; the same keys.
        after_ms: how much later than the left event the right one may be.
        before_ms: how much earlier.
        lateness_ms: how much later than the latest event of its side an event may come.

    Raises:
        StoreError: BAD_OPTION, BAD_TABLE.
    """
    if left.columns() != right.columns():
        raise SinkError(StoreCode.BAD_OPTION, f"{name}: both sides have the same keys")
    if not all(0 <= one <= TIME_MS_MAX // 4 for one in (after_ms, before_ms, lateness_ms)):
        raise SinkError(StoreCode.BAD_OPTION, f"{name}: after_ms, before_ms and lateness_ms are not negative")
    return StoreJoin(name, (left, right), before_ms, after_ms, lateness_ms)
