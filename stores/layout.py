"""Order and placement of rows, vectorised: sort by primary key, shard by partition, find partition borders.

Owns: the order in which rows reach a store, and the hash that places a partition in a shard, version 1: it decides
where rows of existing stores lie, so it never changes. Rows are in cell form (`cells`). Pure; must not know a database.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.stores import cells
from oncegate.stores.tables import WRITE_TS, StoreTable

Int64s = npt.NDArray[np.int64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = np.uint64(0xBF58476D1CE4E5B9)


def sort_by_key(table: StoreTable, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in primary key order, clustering directions respected; equal keys keep their order.

    Both stores want this: SQLite inserts into neighbouring pages, Cassandra gets rows of one partition together.
    """
    order = key_order(table, rows)
    return rows if order is None else rows.take(pa.array(order))


def key_order(table: StoreTable, rows: pa.RecordBatch) -> Int64s | None:
    """Return the positions of the rows in the order of `sort_by_key`; None: they are in order."""
    descending = {column.name for column in table.clustering if column.descending}
    # ~x reverses the order of signed integers and, unlike -x, cannot overflow.
    codes = [~code if name in descending else code for name, code in zip(table.key, _codes(table, rows), strict=True)]
    if _is_sorted(codes):
        return None
    return np.lexsort(codes[::-1])


def repeated(table: StoreTable, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Return for each row whether another one has its key and its write timestamp."""
    codes = [*_codes(table, rows), np.asarray(rows.column(WRITE_TS))]
    order = np.lexsort(codes)
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for code in codes:
        same &= code[order[1:]] == code[order[:-1]]
    found = np.zeros(len(order), dtype=np.bool_)
    found[order[1:][same]] = found[order[:-1][same]] = True
    return found


def partition_borders(table: StoreTable, rows: pa.RecordBatch) -> list[int]:
    """Return the positions where a new partition begins in sorted rows, and the number of rows at the end."""
    if rows.num_rows == 0:
        return [0]
    begins = np.zeros(rows.num_rows, dtype=np.bool_)
    begins[0] = True
    for code in _codes(table, rows, table.partition_key):
        begins[1:] |= code[1:] != code[:-1]
    return [*np.flatnonzero(begins).tolist(), rows.num_rows]


def shard_of(table: StoreTable, rows: pa.RecordBatch, shards: int) -> Int64s:
    """Return for each row the shard of its partition, 0 .. ``shards`` - 1; the same in every process for ever."""
    mixed = np.full(rows.num_rows, _GOLDEN, dtype=np.uint64)
    for column in _sortable(table, rows, table.partition_key):
        mixed ^= _hash_input(column)
        mixed *= _MIX
        mixed ^= mixed >> np.uint64(29)
    return (mixed % np.uint64(shards)).astype(np.int64)


def _sortable(table: StoreTable, rows: pa.RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    kinds = {column.name: column.type for column in table.columns}
    return [cells.sortable(rows.column(name), kinds[name]) for name in names]


def _codes(table: StoreTable, rows: pa.RecordBatch, names: Sequence[str] = ()) -> list[Int64s]:
    return [_ordered_codes(column) for column in _sortable(table, rows, names or table.key)]


def _ordered_codes(column: pa.Array) -> Int64s:
    """Integers in the same order as the values: themselves, or the rank among the distinct texts or bytes."""
    if pa.types.is_int64(column.type):
        return np.asarray(column)
    coded = column.cast(pa.binary()).dictionary_encode()
    order = np.asarray(pc.sort_indices(coded.dictionary))
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    codes: Int64s = ranks[np.asarray(coded.indices)]
    return codes


def _is_sorted(codes: Sequence[Int64s]) -> bool:
    tied = np.ones(max(len(codes[0]) - 1, 0), dtype=np.bool_)
    for code in codes:
        if np.any(tied & (code[1:] < code[:-1])):
            return False
        tied &= code[1:] == code[:-1]
    return True


def _hash_input(column: pa.Array) -> npt.NDArray[np.uint64]:
    if pa.types.is_int64(column.type):
        return np.asarray(column).astype(np.uint64)
    coded = column.cast(pa.binary()).dictionary_encode()
    hashes = np.array([zlib.crc32(value) for value in coded.dictionary.to_pylist()], dtype=np.uint64)
    spread: npt.NDArray[np.uint64] = hashes[np.asarray(coded.indices)]
    return spread
