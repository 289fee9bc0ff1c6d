"""Rows as SQLite holds them: cells as values of its own five types.

Owns: the mapping, version 1. A key column holds the sortable form of its cells (`oncegate.stores.cells`), so that
SQLite's order of keys is Cassandra's. Any other column holds the cell form, but `FLOAT64` is a REAL and `BOOL` 0 or 1.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from oncegate.stores import cells
from oncegate.stores.column_types import AnyType, ColumnType
from oncegate.stores.tables import StoreTable

_AS_THEY_ARE = (ColumnType.FLOAT64, ColumnType.BOOL)


def parameters(table: StoreTable, rows: pa.RecordBatch) -> Iterable[tuple[Any, ...]]:
    """Yield what a statement is given for each row in cell form: its columns, in their order."""
    kinds = {column.name: column.type for column in table.columns}
    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        kind = kinds.get(name)
        if kind is not None and name in table.key:
            column = cells.sortable(column, kind)
        elif kind in _AS_THEY_ARE:
            column = cells.values_of(column, kind)
        columns.append(_python(column))
    return zip(*columns, strict=True)


def key_values(table: StoreTable, key: Mapping[str, Any]) -> list[Any]:
    """Return what a query is given for some key columns."""
    kinds = {column.name: column.type for column in table.columns}
    return [_key_value(kinds[name], value) for name, value in key.items()]


def rows_of(table: StoreTable, found: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Return rows of the table's schema from at least one row of a query of all its columns and `write_ts`."""
    columns = list(zip(*found, strict=True))
    key = set(table.key)
    arrays = [
        _values(values, column.type, in_key=column.name in key)
        for values, column in zip(columns, table.columns, strict=False)
    ]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(columns[-1], pa.int64())], schema=table.schema)


def row_of(table: StoreTable, found: Sequence[Any]) -> dict[str, Any]:
    """Return a row of such a query as Python sees it."""
    names = table.schema.names
    if all(cells.is_plain(column.type) for column in table.columns):
        return dict(zip(names, found, strict=True))
    (row,) = rows_of(table, [found]).to_pylist(maps_as_pydicts="strict")
    return dict(row)


def with_key(table: StoreTable, key: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the columns that choose the partition of one row, in cell form."""
    kinds = {column.name: column.type for column in table.columns}
    columns = [cells.cells_of(cells.array_of([key[name]], kinds[name]), kinds[name])[0] for name in table.partition_key]
    return pa.RecordBatch.from_arrays(columns, names=list(table.partition_key))


def _key_value(kind: AnyType, value: Any) -> Any:
    if cells.is_plain(kind):
        return value
    return cells.sortable(cells.cells_of(cells.array_of([value], kind), kind)[0], kind)[0].as_py()


def _values(values: Sequence[Any], kind: AnyType, *, in_key: bool) -> pa.Array:
    if kind in _AS_THEY_ARE and not in_key:
        # Booleans come as 0 and 1.
        return pa.array(values, pa.int64() if kind is ColumnType.BOOL else pa.float64()).cast(kind.arrow)
    if in_key:
        stored = pa.int64() if isinstance(values[0], int) else None
        return cells.values_of(cells.unsorted(pa.array(values, stored or _bytes_of(kind)), kind), kind)
    return cells.values_of(pa.array(values, cells.cell_type(kind)), kind)


def _bytes_of(kind: AnyType) -> pa.DataType:
    return pa.string() if kind is ColumnType.TEXT else pa.binary()


def _python(column: pa.Array) -> list[Any]:
    if pa.types.is_int64(column.type) and not column.null_count:
        return np.asarray(column).tolist()  # type: ignore[no-any-return]
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        return column.to_pylist()  # type: ignore[no-any-return]
    # Texts repeat within a batch: make each Python object once.
    coded = column.dictionary_encode(null_encoding="encode")
    distinct = coded.dictionary.to_pylist()
    return [distinct[at] for at in np.asarray(coded.indices).tolist()]
