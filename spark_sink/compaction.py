"""Partials of many batches become one row for each key, while jobs write and readers read.

Owns: what partials and a compacted row count together, the record of how far a table is compacted, and the order of
steps that loses and doubles nothing. Must not know Spark, or what a value means. Read next: `library.aggregates`.

A compacted row holds a key's merged value and `through`, the last batch that it contains. It is written in one step,
and from then on the key's partials up to `through` count no more, whether they are there or not. Three orders matter:
1. A compaction takes batches that the consumer has finished: no partial of them is still to come.
2. It writes the compacted rows before it deletes partials. Killed in between, the next run deletes them.
3. A reader reads the partials first. What it does not find any more was in a compacted row before it was deleted, and
   that row, or a later one, is what it reads next. The other order would lose the partials that go in between.

So runs may be killed anywhere, repeated, and even overlap: of two compacted rows of a key the one that contains more
wins, by its timestamp. A batch that comes again writes partials under the timestamp at which they were deleted, and a
deletion wins: they stay away.

A replay that revises a compacted batch would be ignored for the keys that were in it, and counted for new ones: it is
refused. Both sides note what they are about to do and look for the other's note afterwards, so at least one sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.replay import REPLAYS
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.store import Store
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

BATCH: Final = "batch"
THROUGH: Final = "through"
BATCHES: Final = "batches"
_OF: Final = "of?"

COMPACTIONS: Final = StoreTable(
    name="job_compactions",
    columns=(
        Column("partials", ColumnType.TEXT),
        Column("planned", ColumnType.INT64),
        Column("begun", ColumnType.INT64),
    ),
    partition_key=("partials",),
)
"""One row a table of partials: batches up to `begun` are compacted, or are being; up to `planned`, unless a replay was
there first. Its write timestamp counts its changes.
"""

AnyStore: TypeAlias = Store | ClaimedStore
Merge: TypeAlias = Callable[[pa.Table, list[str]], pa.Table]
"""Rows in the order of key and batch, and the names of the key: returns one row a key, same columns, same order."""


@dataclass(frozen=True, slots=True)
class Partials:
    """A table of partials, with `batch` in its key, and the table of what is compacted.

    Args:
        name: of the table; the other one is `<name>_compacted`.
        by: columns of the key beside `batch`; the first one chooses the partition.
        values: the other columns.
        merge: makes one value of several.

    Raises:
        StoreError: BAD_TABLE, when a declaration is malformed.
    """

    name: str
    by: tuple[Column, ...]
    values: tuple[Column, ...]
    merge: Merge
    table: StoreTable = field(init=False)
    compacted: StoreTable = field(init=False)

    def __post_init__(self) -> None:
        if BATCHES in (*self.key, *(column.name for column in self.values)):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: {BATCHES} says what a row counts")
        first, *others = (column.name for column in self.by) if self.by else ("",)
        order = tuple(Clustering(name) for name in others)
        for attribute, name, number, clustering in (
            ("table", self.name, BATCH, (*order, Clustering(BATCH))),
            ("compacted", f"{self.name}_compacted", THROUGH, order),
        ):
            columns = (*self.by, Column(number, ColumnType.INT64), *self.values)
            object.__setattr__(self, attribute, StoreTable(name, columns, (first,), clustering))

    @property
    def key(self) -> list[str]:
        """Names of the key's columns, without `batch`."""
        return [column.name for column in self.by]

    def read(self, store: AnyStore) -> pa.Table:
        """Return one row for each key, in key order: its columns, `through`, `batches`, the merged values.

        A row counts all batches up to ``through`` (0: none as one) and those in the list ``batches``, each once,
        whatever compactions do meanwhile. All partials are held in memory until they are merged.
        """
        rows, counts = self._rows(store)
        return self._merged(rows.filter(pa.array(counts)))

    def compact(self, store: AnyStore, through: int) -> int:
        """Merge the partials of batches up to ``through`` into compacted rows, and delete them; idempotent.

        Args:
            store: where the job writes.
            through: a batch that the job's consumer has finished, with all before it. A partial of these batches that
                is written later counts no more.

        Returns:
            The number of partials that were deleted. Batches of a replay that is not done are left as they are.

        Raises:
            StoreError: STORE_UNAVAILABLE, STORE_MISMATCH.
        """
        if through < 1 or (through := self._begun(store, through)) < 1:
            return 0
        rows, counts = self._rows(store)
        batch, foreign = np.asarray(rows[BATCH]), np.asarray(rows[WRITE_TS]) == 0
        # No more of the foreign ones will come: the first compacted row of this log contains all. They stay, uncounted:
        # a deletion of this log could meet a partial of its own that has the same number.
        merged = self._merged(rows.filter(pa.array(counts & (foreign | (batch <= through)))))
        old = ~foreign & (batch > 0) & (batch <= through)
        # Where a compacted row is all that a key has, nothing is new.
        merged = merged.filter(pc.greater(pc.list_value_length(merged[BATCHES]), 0)).drop_columns([BATCHES])
        for name in (THROUGH, WRITE_TS):
            merged = _with(merged, name, np.full(merged.num_rows, through))
        for piece in _as(self.compacted.schema, merged):
            store.write(self.compacted, piece)
        for piece in _as(self.table.key_schema, rows.filter(pa.array(old))):
            store.delete(self.table, piece)
        return int(old.sum())

    def _begun(self, store: AnyStore, through: int) -> int:
        """Record that batches are compacted now, as far as no replay is at work on them, and return how far."""
        store.create((self.compacted, COMPACTIONS))
        known = _record(store, self.name)
        through = min([through, *(first - 1 for first in _first_replayed(store))])
        if through <= known.begun:
            return min(through, known.begun)
        note = partial(_note, store, self.name)
        note(known.changes + 1, through, known.begun)
        if any(first <= through for first in _first_replayed(store)):
            note(known.changes + 2, known.begun, known.begun)
            return 0
        note(known.changes + 2, through, through)
        return through

    def _rows(self, store: AnyStore) -> tuple[pa.Table, Any]:
        """Partials and compacted rows (batch 0) in the order of key and batch, and which of them count: a mask."""
        partials = pa.Table.from_batches(store.scan(self.table), self.table.schema)
        there = self.compacted.name in store.tables()
        compacted = pa.Table.from_batches(store.scan(self.compacted) if there else (), self.compacted.schema)
        partials = _with(_with(partials, THROUGH, np.zeros(partials.num_rows)), _OF, np.full(partials.num_rows, -1))
        compacted = _with(_with(compacted, BATCH, np.zeros(compacted.num_rows)), _OF, compacted[WRITE_TS])
        rows = pa.concat_tables([partials, compacted.select(partials.column_names).cast(partials.schema)])
        rows = rows.sort_by([(name, "ascending") for name in (*self.key, BATCH)])
        asked = [([], "count_all"), (THROUGH, "max"), (_OF, "max")]
        spans = rows.group_by(self.key, use_threads=False).aggregate(asked)
        lengths, limit, of = (np.asarray(spans[name]) for name in ("count_all", f"{THROUGH}_max", f"{_OF}_max"))
        limit, of = np.repeat(limit, lengths), np.repeat(of, lengths)
        # Timestamp 0: a row of another cluster's log in an adopted store, whose batches have numbers of their own.
        batch, foreign = np.asarray(rows[BATCH]), np.asarray(rows[WRITE_TS]) == 0
        inside = np.where(of > 0, foreign | (batch <= limit), (of == 0) & foreign & (batch <= limit))
        return rows, (batch == 0) | ~inside

    def _merged(self, rows: pa.Table) -> pa.Table:
        own = np.asarray(rows[BATCH]) > 0
        marked = _with(rows, _OF, own)
        spans = marked.group_by(self.key, use_threads=False).aggregate([(THROUGH, "max"), (_OF, "sum")])
        ends = pa.array(np.append(0, np.cumsum(np.asarray(spans[f"{_OF}_sum"]))), pa.int32())
        batches = pa.ListArray.from_arrays(ends, pa.array(np.asarray(rows[BATCH])[own]))
        values = self.merge(rows.select([*self.key, *(column.name for column in self.values)]), self.key)
        found = [*(values[name] for name in self.key), spans[f"{THROUGH}_max"], batches]
        names = [*self.key, THROUGH, BATCHES]
        merged = pa.table(found, names=names)
        for column in self.values:
            merged = merged.append_column(
                column.name, values[column.name].cast(self.table.schema.field(column.name).type)
            )
        return merged


def compacted_through(store: AnyStore, table: StoreTable) -> int:
    """Return the last batch whose partials in this table are compacted, or being; 0: none."""
    return _record(store, table.name).begun if COMPACTIONS.name in store.tables() else 0


def check_not_compacted(store: AnyStore, tables: Iterable[StoreTable], first: int, *, going_on: bool) -> None:
    """Raise BAD_TABLE when batch ``first`` is compacted in one of the tables, so that no replay can revise it.

    Args:
        store: where the tables are.
        tables: all that the job writes.
        first: batch that the replay begins with.
        going_on: the replay was recorded before: what is planned only, and not begun, has seen it, or will.
    """
    if COMPACTIONS.name not in store.tables():
        return
    for table in tables:
        known = _record(store, table.name)
        compacted = known.begun if going_on else max(known.planned, known.begun)
        if first <= compacted:
            raise SinkError(
                StoreCode.BAD_TABLE,
                f"partials of {table.name} are compacted up to batch {compacted}: replay from the batch behind it, or "
                "give the new version a table and a consumer of its own and let it read from the earliest batch",
            )


@dataclass(frozen=True, slots=True)
class _Record:
    planned: int = 0
    begun: int = 0
    changes: int = 0


def _record(store: AnyStore, name: str) -> _Record:
    row = store.get(COMPACTIONS, {"partials": name})
    # Timestamp 0: a record of another cluster's batches in an adopted store.
    return _Record(int(row["planned"]), int(row["begun"]), int(row[WRITE_TS])) if row and row[WRITE_TS] else _Record()


def _note(store: AnyStore, name: str, change: int, planned: int, begun: int) -> None:
    row = {"partials": name, "planned": planned, "begun": begun, WRITE_TS: change}
    store.write(COMPACTIONS, pa.RecordBatch.from_pylist([row], schema=COMPACTIONS.schema))


def _first_replayed(store: AnyStore) -> list[int]:
    """The first batches of all replays that revise rows and are not done, of whatever job."""
    if REPLAYS.name not in store.tables():
        return []
    rows = [row for batch in store.scan(REPLAYS) for row in batch.to_pylist()]
    return [row["first_batch"] for row in rows if row["stamp"] and not row["done"] and row[WRITE_TS]]


def _with(rows: pa.Table, name: str, values: Any) -> pa.Table:
    """The rows with this int64 column, in place of one of that name if there is one."""
    column = pa.array(np.asarray(values), pa.int64()) if not isinstance(values, pa.ChunkedArray) else values
    at = rows.schema.get_field_index(name)
    made = pa.field(name, pa.int64(), nullable=False)
    return rows.append_column(made, column) if at < 0 else rows.set_column(at, made, column)


def _as(schema: pa.Schema, rows: pa.Table) -> Iterable[pa.RecordBatch]:
    found: list[pa.RecordBatch] = rows.select(schema.names).cast(schema).to_batches()
    return found
