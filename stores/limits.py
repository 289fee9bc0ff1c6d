"""What a row must keep to: one rule, Cassandra's, so that no store takes what another refuses.

Owns: the bounds, and the split of a batch into rows that fit and rows that do not. Pure; must not know a database.
Read next: `store`, `errors` (`BadRows`).

The bounds are those of a Cassandra 5.0 with the settings it comes with, found by trying each: a serialised partition
key of 1 .. 65,535 bytes, clustering columns of 65,535 bytes together. A row may hold 4 MiB: Cassandra takes half a
segment of its commit log (16 MiB by default, 8 MiB where segments are of 16), and a frame of 16 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.stores import cells
from oncegate.stores.column_types import ColumnType
from oncegate.stores.errors import BadRows, Rejected
from oncegate.stores.tables import WRITE_TS, StoreTable, checked

Int64s = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KEY_BYTES_MAX: Final = 65_535
"""Of the serialised partition key, and of the values of all clustering columns together."""
ROW_BYTES_MAX: Final = 4 * 2**20
"""Of all values of a row together, key included; an int64 counts 8."""
_FIXED_BYTES: Final = 8
_COMPONENT_BYTES: Final = 3
"""Of the length and the end that frame each value of a partition key of several."""


@dataclass(frozen=True, slots=True)
class Sifted:
    """The rows of a batch that fit, in cell form (`cells`), where each stood (None: all, in place), and the others."""

    rows: pa.RecordBatch
    positions: Int64s | None
    rejected: tuple[Rejected, ...]

    def raise_rejected(self, more: Sequence[Rejected] = ()) -> None:
        """Raise `BadRows` when a row was left out, or is among ``more``, whose indices are of `rows`."""
        at = self.positions
        found = [one if at is None else Rejected(int(at[one.index]), one.reason) for one in more]
        if self.rejected or found:
            raise BadRows((*self.rejected, *found))


def sift(table: StoreTable, rows: pa.RecordBatch, schema: pa.Schema) -> Sifted:
    """Split ``rows`` by what their content allows; ``schema`` is one of the table's three.

    Raises:
        StoreError: BAD_ROWS, when a column is missing or has another type: no row can be told from another.
    """
    chosen = checked(rows, schema)
    wrong: list[tuple[Mask, str]] = []
    kinds = {column.name: column.type for column in table.columns}
    for at, (field, column) in enumerate(zip(schema, chosen.columns, strict=True)):
        if column.null_count and not field.nullable:
            wrong.append((_mask(column.is_null()), f"{field.name} is null"))
        kind = kinds.get(field.name)
        if kind is ColumnType.TEXT and not _is_text(column):
            texts = column.cast(pa.binary()).to_pylist()
            wrong.append((np.array([not _decodes(text) for text in texts]), f"{field.name} is not UTF-8"))
        elif kind is not None and (kind is ColumnType.JSON or not cells.is_plain(kind)):
            found, faults = cells.cells_of(column, kind)
            chosen = chosen.set_column(at, field.name, found)
            for why in set(faults.values()):
                places = np.array([place for place, reason in faults.items() if reason == why])
                wrong.insert(0, (np.isin(np.arange(chosen.num_rows), places), f"{field.name} {why}"))
    late = pc.fill_null(chosen.column(WRITE_TS), 1)
    wrong.append((_mask(pc.less(late, 1)), "the write timestamp is not positive"))
    partition = _bytes_of(chosen, table.partition_key)
    framed = partition + (_COMPONENT_BYTES * len(table.partition_key) if len(table.partition_key) > 1 else 0)
    clustering = _bytes_of(chosen, [column.name for column in table.clustering])
    wrong.append((framed == 0, "the partition key is empty"))
    wrong.append((framed > KEY_BYTES_MAX, f"the partition key is over {KEY_BYTES_MAX} bytes"))
    wrong.append((clustering > KEY_BYTES_MAX, f"the clustering columns are over {KEY_BYTES_MAX} bytes together"))
    wrong.append((_bytes_of(chosen, schema.names[:-1]) > ROW_BYTES_MAX, f"the row is over {ROW_BYTES_MAX} bytes"))
    refused = np.zeros(chosen.num_rows, dtype=np.bool_)
    for mask, _ in wrong:
        refused |= mask
    if not refused.any():
        return Sifted(chosen, None, ())
    rejected = [
        Rejected(at, next(reason for mask, reason in wrong if mask[at])) for at in np.flatnonzero(refused).tolist()
    ]
    positions = np.flatnonzero(~refused)
    return Sifted(chosen.take(pa.array(positions)), positions, tuple(rejected))


def _bytes_of(rows: pa.RecordBatch, names: Sequence[str]) -> Int64s:
    """The bytes that the values of these columns take in each row; a null takes none."""
    total = np.zeros(rows.num_rows, dtype=np.int64)
    for name in names:
        column = rows.column(name)
        if pa.types.is_int64(column.type):
            total += _FIXED_BYTES
        else:
            total += np.asarray(pc.fill_null(pc.binary_length(column), 0))
    return total


def _mask(column: pa.Array) -> Mask:
    found: Mask = np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.bool_)
    return found


def _is_text(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _decodes(cell: bytes | None) -> bool:
    try:
        return cell is None or cell.decode() is not None
    except UnicodeDecodeError:
        return False
