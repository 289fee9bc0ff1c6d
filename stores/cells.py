"""Values as cells: the bytes that a database compares, made of Arrow columns and back. Pure.

Owns: the cell form of each type, and the sortable form of those that a key may have. Both stores go through here, so
that they hold, order and merge values alike. Must not know a database. Read next: `limits`, `layout`.

The cell form of a column is int64 (`INT64`, `TIMESTAMP`), string (`TEXT`, `JSON`), or binary, which then holds what
CQL's native protocol does, big-endian: `FLOAT64` 8 bytes; `DECIMAL` a scale, which is 9, in 4 bytes, and the unscaled
number in as few as it needs; `BOOL` 1 byte; `UUID` 16; lists and maps the number of elements in 4 bytes, and each
element, or key and value, as its length in 4 bytes and its cell. Keys of a map ascend. The sortable form is int64,
string or binary, and has the order of Cassandra's clustering columns, which differs for `FLOAT64`, `DECIMAL` and `UUID`
(by version first, and those of version 1 by time).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.stores.column_types import (
    DECIMAL_SCALE,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    AnyType,
    ColumnType,
    ListOf,
    MapOf,
)
from oncegate.stores.tables import StoreTable

Bytes = npt.NDArray[np.uint8]
Faults = dict[int, str]
"""Why a value is none of its type, by its place in the column."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_SCALE: Final = struct.pack(">i", DECIMAL_SCALE)
_DECIMAL_BYTES: Final = 16
_NUMBERS: Final = (ColumnType.INT64, ColumnType.TIMESTAMP)
_TEXTS: Final = (ColumnType.TEXT, ColumnType.JSON)
# Of a UUID of version 1: the time's highest bits, its middle and its lowest ones, then the rest.
_BY_TIME: Final = np.array([6, 7, 4, 5, 0, 1, 2, 3, *range(8, 16)])


def is_plain(kind: AnyType) -> bool:
    """Whether cells of this type are its values in Python too."""
    return kind in (ColumnType.INT64, ColumnType.TEXT, ColumnType.BLOB, ColumnType.JSON)


def array_of(values: Iterable[Any], kind: AnyType) -> pa.Array:
    """Return a column of Python's values; raises what Arrow does for one of another type."""
    if kind is ColumnType.UUID:
        # Arrow takes UUIDs themselves only since lately.
        values = [value.bytes if isinstance(value, UUID) else value for value in values]
    return pa.array(values, kind.arrow)


def cell_type(kind: AnyType) -> pa.DataType:
    """Return the Arrow type of the cell form."""
    if kind in _NUMBERS:
        return pa.int64()
    return pa.string() if kind in _TEXTS else pa.binary()


def cells_of(column: pa.Array, kind: AnyType) -> tuple[pa.Array, Faults]:
    """Return the cell form of a column, and what is wrong with which value: its cell is null then."""
    match kind:
        case ColumnType.INT64 | ColumnType.TEXT | ColumnType.BLOB:
            return column, {}
        case ColumnType.TIMESTAMP:
            cells = column.cast(pa.int64())
            outside = pc.or_(pc.less(cells, TIMESTAMP_MS_MIN), pc.greater(cells, TIMESTAMP_MS_MAX))
            return cells, dict.fromkeys(_places(outside), "is not in the years 1 to 9999")
        case ColumnType.FLOAT64:
            # Adding 0.0 turns -0.0 into it.
            numbers = np.asarray(column.fill_null(0.0)) + 0.0
            cells = _binary(numbers.astype(">f8").view(np.uint8).reshape(-1, 8), column)
            return cells, dict.fromkeys(np.flatnonzero(np.isnan(numbers)).tolist(), "is NaN")
        case ColumnType.BOOL:
            return _binary(np.asarray(column.fill_null(fill_value=False).cast(pa.uint8())).reshape(-1, 1), column), {}
        case ColumnType.UUID:
            return column.storage.cast(pa.binary()), {}
        case ColumnType.DECIMAL:
            found = [None if number is None else _decimal_cell(number) for number in _unscaled(column)]
            return pa.array(found, pa.binary()), {}
        case _:
            return _each(column, kind)


def values_of(cells: pa.Array, kind: AnyType) -> pa.Array:
    """Return the column whose cell form this is; a cell of no value of the type becomes null."""
    match kind:
        case ColumnType.TIMESTAMP:
            return cells.cast(kind.arrow)
        case ColumnType.FLOAT64:
            rows, null = _matrix(cells, 8)
            return pa.array(rows.view(">f8").reshape(-1).astype(np.float64), mask=null)
        case ColumnType.BOOL:
            rows, null = _matrix(cells, 1)
            return pa.array(rows.reshape(-1) != 0, mask=null)
        case ColumnType.UUID:
            rows, null = _matrix(cells, 16)
            return pa.ExtensionArray.from_storage(kind.arrow, _binary(rows, null).cast(pa.binary(16)))
        case ColumnType.DECIMAL:
            found = [None if cell is None else _FROM_CELL[kind](cell) for cell in cells.to_pylist()]
            return array_of(found, kind)
        case ListOf(element):
            value = _FROM_CELL[element]
            found = [None if cell is None else [value(part) for part in _parts(cell, 1)] for cell in cells.to_pylist()]
            return array_of(found, kind)
        case MapOf(element):
            value = _FROM_CELL[element]
            maps = [None if cell is None else _parts(cell, 2) for cell in cells.to_pylist()]
            pairs = [
                None if one is None else [(key.decode(), value(part)) for key, part in _pairs(one)] for one in maps
            ]
            return array_of(pairs, kind)
        case _:
            return cells


def sortable(cells: pa.Array, kind: AnyType) -> pa.Array:
    """Return a column in the order of a key's values, of their cell form: int64, string or binary. No nulls."""
    match kind:
        case ColumnType.BOOL:
            return pa.array(_matrix(cells, 1)[0].reshape(-1).astype(np.int64))
        case ColumnType.FLOAT64:
            return pa.array(_turned(_matrix(cells, 8)[0].view(">i8").reshape(-1).astype(np.int64)))
        case ColumnType.DECIMAL:
            offset = 1 << (8 * _DECIMAL_BYTES - 1)
            numbers = map(_number, cells.to_pylist())
            return pa.array([(number + offset).to_bytes(_DECIMAL_BYTES) for number in numbers], pa.binary())
        case ColumnType.UUID:
            rows = _matrix(cells, 16)[0]
            version = rows[:, 6:7] >> 4
            return _binary(np.hstack([version, np.where(version == 1, rows[:, _BY_TIME], rows)]))
        case _:
            return cells


def unsorted(column: pa.Array, kind: AnyType) -> pa.Array:
    """Return the cell form of a column in sortable form."""
    match kind:
        case ColumnType.BOOL:
            return _binary(np.asarray(column).astype(np.uint8).reshape(-1, 1))
        case ColumnType.FLOAT64:
            return _binary(_turned(np.asarray(column)).astype(">i8").view(np.uint8).reshape(-1, 8))
        case ColumnType.DECIMAL:
            offset = 1 << (8 * _DECIMAL_BYTES - 1)
            return pa.array([_decimal_cell(int.from_bytes(cell) - offset) for cell in column.to_pylist()], pa.binary())
        case ColumnType.UUID:
            rows = _matrix(column, 17)[0]
            moved = np.empty_like(rows[:, 1:])
            moved[:, _BY_TIME] = rows[:, 1:]
            return _binary(np.where(rows[:, :1] == 1, moved, rows[:, 1:]))
        case _:
            return column


def rows_of_values(table: StoreTable, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the table in cell form, some or all of its columns and `write_ts`, as rows of its schema."""
    kinds = {column.name: column.type for column in table.columns}
    for at, name in enumerate(rows.schema.names):
        if name in kinds and not is_plain(kinds[name]):
            rows = rows.set_column(at, table.schema.field(name), values_of(rows.column(at), kinds[name]))
    return rows


def rows_of_cells(table: StoreTable, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the table's schema, some or all of its columns, in cell form; all values are good ones."""
    kinds = {column.name: column.type for column in table.columns}
    for at, name in enumerate(rows.schema.names):
        if name in kinds and not is_plain(kinds[name]):
            rows = rows.set_column(at, name, cells_of(rows.column(at), kinds[name])[0])
    return rows


def _each(column: pa.Array, kind: AnyType) -> tuple[pa.Array, Faults]:
    """Cells of texts and of types with parts, value by value."""
    faults: Faults = {}
    found: list[str | bytes | None] = []
    for at in range(len(column)):
        try:
            found.append(_cell(column[at].as_py(), kind))
        except (ValueError, OverflowError, msgspec.DecodeError) as fault:
            found.append(None)
            faults[at] = "is not UTF-8" if isinstance(fault, UnicodeError) else f"is wrong: {fault}"
    return pa.array(found, cell_type(kind)), faults


def _cell(value: Any, kind: AnyType) -> str | bytes | None:
    if value is None:
        return None
    if isinstance(kind, ColumnType):
        msgspec.json.decode(value)
        return str(value)
    if None in value or (isinstance(kind, MapOf) and any(part is None for _, part in value)):
        raise ValueError("an element is null")
    cell = _TO_CELL[kind.element]
    if isinstance(kind, ListOf):
        return _framed(len(value), [cell(part) for part in value])
    keys = [(key.encode(), part) for key, part in value]
    ordered = {key: cell(part) for key, part in sorted(keys, key=lambda pair: pair[0])}
    if len(ordered) != len(keys):
        raise ValueError("a key repeats")
    return _framed(len(keys), [part for pair in ordered.items() for part in pair])


def _framed(count: int, parts: Iterable[bytes]) -> bytes:
    return b"".join([count.to_bytes(4), *(len(part).to_bytes(4) + part for part in parts)])


def _parts(cell: bytes, each: int) -> list[bytes]:
    found, at = [], 4
    for _ in range(int.from_bytes(cell[:4]) * each):
        end = at + 4 + int.from_bytes(cell[at : at + 4])
        found.append(cell[at + 4 : end])
        at = end
    return found


def _pairs(parts: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(parts[::2], parts[1::2], strict=True)


def _float_cell(value: float) -> bytes:
    if value != value:
        raise ValueError("NaN")
    return struct.pack(">d", value + 0.0)


def _json_cell(value: str) -> bytes:
    msgspec.json.decode(value)
    return value.encode()


def _time_cell(value: datetime) -> bytes:
    return struct.pack(">q", (value - _EPOCH) // _MS)


def _decimal_cell(unscaled: int) -> bytes:
    # One bit for the sign.
    return _SCALE + unscaled.to_bytes((unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1, signed=True)


def _number(cell: bytes) -> int:
    """The unscaled number of a decimal's cell, which somebody else may have written with another scale."""
    scale, number = int.from_bytes(cell[:4], signed=True), int.from_bytes(cell[4:], signed=True)
    further = DECIMAL_SCALE - scale
    return int(number * 10**further if further >= 0 else number // 10**-further)


_TO_CELL: Final[Mapping[ColumnType, Callable[[Any], bytes]]] = {
    ColumnType.INT64: lambda value: struct.pack(">q", value),
    ColumnType.FLOAT64: _float_cell,
    ColumnType.DECIMAL: lambda value: _decimal_cell(int(f"{value:f}".replace(".", ""))),
    ColumnType.TEXT: lambda value: value.encode(),
    ColumnType.BLOB: lambda value: value,
    ColumnType.BOOL: lambda value: bytes([value]),
    ColumnType.TIMESTAMP: _time_cell,
    ColumnType.UUID: lambda value: value,
    ColumnType.JSON: _json_cell,
}
_FROM_CELL: Final[Mapping[ColumnType, Callable[[bytes], Any]]] = {
    ColumnType.INT64: lambda cell: struct.unpack(">q", cell)[0],
    ColumnType.FLOAT64: lambda cell: struct.unpack(">d", cell)[0],
    ColumnType.DECIMAL: lambda cell: Decimal(f"{_number(cell)}e-{DECIMAL_SCALE}"),
    ColumnType.TEXT: bytes.decode,
    ColumnType.BLOB: lambda cell: cell,
    ColumnType.BOOL: lambda cell: cell != b"\0",
    ColumnType.TIMESTAMP: lambda cell: struct.unpack(">q", cell)[0],
    ColumnType.UUID: lambda cell: cell,
    ColumnType.JSON: bytes.decode,
}


def _turned(bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bits of floats as integers in their order, and back: those of negative ones run the other way."""
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _unscaled(column: pa.Array) -> list[int | None]:
    data = memoryview(column.buffers()[1] or b"")[column.offset * _DECIMAL_BYTES :]
    there = column.is_valid().to_pylist()
    places = range(0, len(column) * _DECIMAL_BYTES, _DECIMAL_BYTES)
    return [
        int.from_bytes(data[at : at + _DECIMAL_BYTES], "little", signed=True) if valid else None
        for at, valid in zip(places, there, strict=True)
    ]


def _matrix(cells: pa.Array, width: int) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Cells of one length as rows, and which are null, or of another length, as other clients can write them."""
    null = ~np.asarray(pc.fill_null(pc.equal(pc.binary_length(cells), width), fill_value=False))
    if null.any():
        cells = pc.if_else(pa.array(null), pa.scalar(bytes(width), pa.binary()), cells)
    if not len(cells):
        return np.zeros((0, width), np.uint8), null
    _, offsets, data = cells.buffers()
    first = np.frombuffer(offsets, np.int32, 1, cells.offset * 4)[0]
    return np.frombuffer(data, np.uint8, len(cells) * width, first).reshape(-1, width), null


def _binary(rows: Bytes, null: Any = None) -> pa.Array:
    """A binary column of rows of bytes; null where ``null``, a column or a mask, is."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(rows))
    cells = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])
    if null is None:
        return cells
    mask = null.is_null() if isinstance(null, pa.Array) else pa.array(null)
    return pc.if_else(mask, pa.scalar(None, pa.binary()), cells)


def _places(mask: pa.Array) -> list[int]:
    found: list[int] = np.flatnonzero(np.asarray(mask.fill_null(fill_value=False))).tolist()
    return found
