"""Aggregates by key columns: a partial a batch and key, merged when it is read, compacted behind the job. Pure.

Owns: what all aggregates have in common, and counts and sums. Must not know Spark. Read next: `sketches`,
`oncegate.spark_sink.compaction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.compaction import AnyStore, Partials
from oncegate.spark_sink.derivation import Change, FlowBatch, Reject, Upsert
from oncegate.spark_sink.library.fields import COMMIT, Field, Kind, agreed, take
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.limits import sift
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

Summary: TypeAlias = Callable[[pa.Table, list[str]], pa.Table]
"""Items of one batch as columns of fields, and the names of the key: returns one row a key."""
Result: TypeAlias = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A derivation that keeps one value, or several, for each key. Deletions are no items of an aggregate.

    Attributes:
        by: fields of the key; the first one chooses the partition.
        of: fields that are aggregated.
        partials: what is stored.
        summary: makes a batch's partials.
        result: makes what a user reads of merged partials.
    """

    by: tuple[Field, ...]
    of: tuple[Field, ...]
    partials: Partials
    summary: Summary
    result: Result

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (self.partials.table,)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the batch's partials, and a rejection of each item that lacks a field or whose key no store takes."""
        taken = take(batch, (*self.by, *self.of))
        yield from taken.rejects
        items, refused = self._with_keys(taken.rows, batch.number)
        yield from refused
        if items.num_rows:
            rows = self.summary(pa.Table.from_batches([items]), self.partials.key)
            for name, number in (("batch", batch.number), (WRITE_TS, batch.last_commit)):
                rows = rows.append_column(name, pa.array(np.full(rows.num_rows, number)))
            schema = self.partials.table.schema
            for part in rows.select(schema.names).cast(schema).combine_chunks().to_batches():
                yield Upsert(self.partials.table, part)

    def _with_keys(self, items: pa.RecordBatch, batch: int) -> tuple[pa.RecordBatch, list[Reject]]:
        """Return the items whose keys a store takes, and rejections of the others.

        The store would refuse the row of the whole batch, and nobody would know which items were in it.
        """
        schema = self.partials.table.key_schema
        columns = {**{name: items.column(name) for name in self.partials.key}, WRITE_TS: items.column(COMMIT.name)}
        columns["batch"] = pa.array(np.full(items.num_rows, batch))
        keys = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
        sifted = sift(self.partials.table, keys, schema)
        if sifted.positions is None:
            return items, []
        commits = items.column(COMMIT.name)
        refused = [Reject(commits[one.index].as_py(), f"{self.partials.name}: {one.reason}") for one in sifted.rejected]
        return items.take(pa.array(sifted.positions)), refused

    def read(self, store: AnyStore) -> pa.Table:
        """Return one row for each key, in key order; every item that the job has seen counts once.

        Whatever compactions do meanwhile. Reads the whole table, and holds its partials until they are merged.
        """
        return self.result(self.partials.read(store))

    def maintain(self, store: ClaimedStore, finished: int) -> None:
        """Compact the partials of batches up to ``finished``: the job calls it, see `jobs.maintenance`."""
        self.partials.compact(store, finished)


def totals(name: str, by: Sequence[Field], sums: Sequence[Field] = (), *, count: str = "count") -> Aggregate:
    """Return the derivation that counts items, and sums fields of them, by key.

    Args:
        name: of the table.
        by: fields of the key, at least one; the first chooses the partition.
        sums: whole numbers to add up; sums are of 64 bits.
        count: name of the column that counts items.

    Raises:
        StoreError: BAD_TABLE, when a name is malformed or repeats, or a field is not whole.
    """
    agreed(*by, *sums)
    if any(field.kind is not Kind.WHOLE for field in sums):
        raise StoreError(StoreCode.BAD_TABLE, f"{name}: whole numbers are added; a sum of others depends on its order")
    columns = (Column(count, ColumnType.INT64), *(field.stored() for field in sums))
    values = [column.name for column in columns]
    partials = Partials(name, tuple(field.stored() for field in by), columns, partial(_sum, values))
    return Aggregate(tuple(by), tuple(sums), partials, partial(_count, values), _without_batches)


def _count(values: list[str], rows: pa.Table, key: list[str]) -> pa.Table:
    asked: list[Any] = [([], "count_all"), *((name, "sum") for name in values[1:])]
    # Keys come first, then aggregates in the order asked for.
    return rows.group_by(key, use_threads=False).aggregate(asked).rename_columns([*key, *values])


def _sum(values: list[str], rows: pa.Table, key: list[str]) -> pa.Table:
    asked = [(name, "sum") for name in values]
    return rows.group_by(key, use_threads=False).aggregate(asked).rename_columns([*key, *values])


def _without_batches(merged: pa.Table) -> pa.Table:
    return merged.drop_columns(["through", "batches"])
