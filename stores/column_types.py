"""The types of stored columns: what both stores hold without loss, compare alike and give back alike. Pure.

Owns: their names, and their types in Arrow. Must not know a database. Read next: `tables`, `cells`.

| type | in Python | in Arrow | bounds |
|---|---|---|---|
| `INT64` | int | int64 | |
| `FLOAT64` | float | float64 | no NaN: it equals nothing; -0.0 becomes 0.0 |
| `DECIMAL` | decimal.Decimal | decimal128(38, 9) | 29 digits before the point, 9 behind it |
| `TEXT` | str | string | UTF-8 |
| `BLOB` | bytes | binary | |
| `BOOL` | bool | bool | |
| `TIMESTAMP` | datetime, or int: ms since 1970 | timestamp[ms, UTC] | years 1 .. 9999; without a zone it is UTC |
| `UUID` | uuid.UUID | uuid | |
| `JSON` | str | string | JSON text |
| `ListOf(type)` | list | list | no element is null; a UUID is read as its 16 bytes |
| `MapOf(type)` | dict, keys are texts | map | no value is null; a UUID as in a list |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import pyarrow as pa

TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999


class ColumnType(Enum):
    """A type of single values; the only ones that a key may have, `JSON` aside."""

    INT64 = "int64"
    FLOAT64 = "float64"
    DECIMAL = "decimal"
    TEXT = "text"
    BLOB = "blob"
    BOOL = "bool"
    TIMESTAMP = "timestamp"
    UUID = "uuid"
    JSON = "json"

    @property
    def arrow(self) -> pa.DataType:
        """The type of an Arrow column."""
        return _ARROW[self]


_ARROW: Final = {
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.DECIMAL: pa.decimal128(38, 9),
    ColumnType.TEXT: pa.string(),
    ColumnType.BLOB: pa.binary(),
    ColumnType.BOOL: pa.bool_(),
    ColumnType.TIMESTAMP: pa.timestamp("ms", "UTC"),
    ColumnType.UUID: pa.uuid(),
    ColumnType.JSON: pa.string(),
}
DECIMAL_SCALE: Final = 9


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of values of one type, written and compared as a whole."""

    element: ColumnType

    @property
    def arrow(self) -> pa.DataType:
        """The type of an Arrow column."""
        return pa.list_(_part(self.element))


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map from texts to values of one type, written and compared as a whole."""

    element: ColumnType

    @property
    def arrow(self) -> pa.DataType:
        """The type of an Arrow column."""
        return pa.map_(pa.string(), _part(self.element))


def _part(kind: ColumnType) -> pa.DataType:
    # Arrow makes no lists of its extension types out of Python's values.
    return pa.binary(16) if kind is ColumnType.UUID else kind.arrow


AnyType: TypeAlias = ColumnType | ListOf | MapOf


def name_of(kind: AnyType) -> str:
    """Return the name of a type: `int64`, `list<int64>`, `map<text, int64>`; :func:`type_of` reads it."""
    match kind:
        case ListOf(element):
            return f"list<{element.value}>"
        case MapOf(element):
            return f"map<text, {element.value}>"
        case _:
            return kind.value


def type_of(name: str) -> AnyType:
    """Return the type of a name; raises ValueError for another text."""
    for made, begin in ((ListOf, "list<"), (MapOf, "map<text, ")):
        if name.startswith(begin):
            return made(ColumnType(name.removeprefix(begin).removesuffix(">")))
    return ColumnType(name)
