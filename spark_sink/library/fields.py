"""Values that the jobs of the library take from items: JSON fields as Arrow columns, each item decoded once. Pure.

Owns: how a field is named and typed, and which items lack one. Must not know a store. Read next: `aggregates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.derivation import ERROR_CHARACTERS_MAX, FlowBatch, Reject
from oncegate.stores.column_types import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import Column, ColumnType

_OF_ITEM: Final = {"$key": pa.string(), "$commit": pa.int64(), "$time_ms": pa.int64()}

COMMIT: Final = pa.field("commit", pa.int64(), nullable=False)
KEY: Final = pa.field("key", pa.string(), nullable=False)


class Kind(Enum):
    """What a field holds: a JSON string, a whole number of 64 bits, any number, or a time."""

    TEXT = "text"
    WHOLE = "whole"
    REAL = "real"
    MOMENT = "moment"


_STORED: Final = {
    Kind.TEXT: ColumnType.TEXT,
    Kind.WHOLE: ColumnType.INT64,
    Kind.REAL: ColumnType.FLOAT64,
    Kind.MOMENT: ColumnType.TIMESTAMP,
}
_PYTHON: Final[dict[Kind, Any]] = {
    Kind.TEXT: str,
    Kind.WHOLE: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    Kind.REAL: float,
}


@dataclass(frozen=True, slots=True)
class Field:
    """A value of each item, and the column that gets it. Made by `text`, `whole`, `real` and `moment`."""

    path: str
    column: str
    kind: Kind
    per: int = 1
    default: str | int | float | None = None
    unit_ms: int = 1

    def __post_init__(self) -> None:
        if self.column in (COMMIT.name, KEY.name) and self.path != f"${self.column}":
            raise StoreError(StoreCode.BAD_TABLE, f"{self.path}: the column {self.column} is the item's own")
        if (self.path.startswith("$") and self.path not in _OF_ITEM) or min(self.per, self.unit_ms) < 1:
            raise StoreError(StoreCode.BAD_TABLE, f"{self.path}: an item has {', '.join(_OF_ITEM)}; units are positive")

    def stored(self) -> Column:
        """Return the column of a stored table."""
        return Column(self.column, _STORED[self.kind], nullable=self.kind is Kind.MOMENT)

    def taken(self) -> pa.Field:
        """Return the column of items."""
        return pa.field(self.column, _STORED[self.kind].arrow, nullable=self.kind is Kind.MOMENT)

    def json_type(self) -> Any:
        """Return what the decoder checks."""
        if self.kind is Kind.MOMENT:
            low, high = -(-TIMESTAMP_MS_MIN // self.unit_ms), TIMESTAMP_MS_MAX // self.unit_ms
            return Annotated[int, msgspec.Meta(ge=low, le=high)] | None
        return _PYTHON[self.kind] if self.default is None else _PYTHON[self.kind] | None

    @property
    def optional(self) -> bool:
        """Whether items may lack it."""
        return self.default is not None or self.kind is Kind.MOMENT


def text(path: str, *, column: str = "", default: str | None = None) -> Field:
    """Return a field that holds text.

    Args:
        path: name of a field of the item's JSON object, with dots into objects inside it (`user.name`); or `$key`, the
            item's own key.
        column: name in rows; default: the last name of the path.
        default: for items without the field, or with null. Without a default they become dead letters.
    """
    return Field(path, column or _last(path), Kind.TEXT, default=default)


def whole(path: str, *, column: str = "", per: int = 1, default: int | None = None) -> Field:
    """Return a field that holds a whole number, -2^63 .. 2^63 - 1.

    Args:
        path: as for `text`; or `$commit` or `$time_ms`, the item's own.
        column: as for `text`.
        per: divides the number, rounded down: 3600 makes hours of seconds.
        default: as for `text`, before it is divided.
    """
    return Field(path, column or _last(path), Kind.WHOLE, per, default)


def real(path: str, *, column: str = "", default: float | None = None) -> Field:
    """Return a field that holds any number; arguments as for `text`."""
    return Field(path, column or _last(path), Kind.REAL, default=default)


def moment(path: str, *, column: str = "", unit_ms: int = 1) -> Field:
    """Return a field that holds a time since 1970 as a whole number; missing or null it is null.

    Args:
        path: as for `text`.
        column: as for `text`.
        unit_ms: how many milliseconds one of the number is: 1000 for seconds.
    """
    return Field(path, column or _last(path), Kind.MOMENT, unit_ms=unit_ms)


@dataclass(frozen=True, slots=True)
class Taken:
    """The items of a batch by what can be made of them, each in commit order.

    Attributes:
        rows: items with a value; columns `commit`, `key` and those of the fields; only moments may be null.
        deleted: deletions; columns `commit` and `key`.
        rejects: items that lack a field, or hold no JSON object.
    """

    rows: pa.RecordBatch
    deleted: pa.RecordBatch
    rejects: list[Reject]


def agreed(*fields: Field) -> tuple[Field, ...]:
    """Return the fields; raises BAD_TABLE, when two of them take the same value in different ways."""
    _decoder(_inside(fields))
    if len({field.column for field in fields}) < len(set(fields)):
        raise StoreError(StoreCode.BAD_TABLE, f"columns repeat: {', '.join(field.column for field in fields)}")
    return fields


def take(batch: FlowBatch, fields: Sequence[Field]) -> Taken:
    """Return the columns of ``fields``; each value is decoded once, whatever their number."""
    items = batch.items
    gone = items.column("value").is_null()
    deleted = items.filter(gone).select([COMMIT.name, KEY.name])
    kept = items.filter(pc.invert(gone)) if len(deleted) else items
    inside = _inside(fields)
    decode, getters = _decoder(inside)
    values: list[Any] = []
    rejects: list[Reject] = []
    good: list[int] = []
    for at, raw in enumerate(kept.column("value").cast(pa.binary()).to_pylist() if inside else ()):
        try:
            values.append(decode(raw))
            good.append(at)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            rejects.append(Reject(kept.column(COMMIT.name)[at].as_py(), str(error)[:ERROR_CHARACTERS_MAX]))
    if rejects:
        kept = kept.take(pa.array(good, pa.int64()))
    columns = {COMMIT: kept.column(COMMIT.name), KEY: kept.column(KEY.name)}
    for field in fields:
        if field.path in _OF_ITEM:
            column = kept.column(field.path[1:])
        else:
            found = pa.int64() if field.kind is Kind.MOMENT else _STORED[field.kind].arrow
            column = pa.array(map(getters[field], values), found)
            column = column if field.default is None else column.fill_null(field.default)
        if field.per != 1:
            column = pa.array(np.asarray(column) // field.per)
        if field.kind is Kind.MOMENT:
            column = pc.multiply(column, field.unit_ms).cast(field.taken().type)
        columns[field.taken()] = column
    return Taken(pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(list(columns))), deleted, rejects)


def _inside(fields: Sequence[Field]) -> tuple[Field, ...]:
    return tuple(dict.fromkeys(field for field in fields if field.path not in _OF_ITEM))


@lru_cache(maxsize=64)
def _decoder(fields: tuple[Field, ...]) -> tuple[Callable[[bytes], Any], dict[Field, Callable[[Any], Any]]]:
    """A decoder of the object that holds the fields, and how each is got out of what it returns."""
    tree: dict[str, Any] = {}
    getters: dict[Field, Callable[[Any], Any]] = {}
    for field in fields:
        *above, last = field.path.split(".")
        inner, names = tree, []
        for name in above:
            names.append(_attribute(inner, name))
            inner = inner.setdefault(name, {})
        if not isinstance(inner, dict) or isinstance(inner.get(last), dict):
            raise StoreError(StoreCode.BAD_TABLE, f"{field.path} is a value here and an object elsewhere")
        known = inner.setdefault(last, field)
        if (known.json_type(), known.default) != (field.json_type(), field.default):
            raise StoreError(StoreCode.BAD_TABLE, f"{field.path} is taken in two ways")
        getters[field] = attrgetter(".".join([*names, _attribute(inner, last)]))
    return msgspec.json.Decoder(_struct(tree)).decode, getters


def _attribute(level: dict[str, Any], name: str) -> str:
    """A name that Python takes, in the order in which names come; JSON's may be anything."""
    return f"f{list(level).index(name) if name in level else len(level)}"


def _struct(level: dict[str, Any]) -> type[msgspec.Struct]:
    declared = list(_declared(level))
    names = {attribute: name for attribute, (name, _, _) in declared}
    return msgspec.defstruct(
        "Fields",
        [(at, kind) if default is msgspec.NODEFAULT else (at, kind, default) for at, (_, kind, default) in declared],
        rename=names,
        kw_only=True,
        gc=False,
    )


def _declared(level: dict[str, Any]) -> Iterator[tuple[str, tuple[str, Any, Any]]]:
    kind: Any
    for name, found in level.items():
        default: Any = msgspec.NODEFAULT
        if isinstance(found, dict):
            kind = _struct(found)
        else:
            kind, default = found.json_type(), None if found.optional else default
        yield _attribute(level, name), (name, kind, default)


def _last(path: str) -> str:
    return path.rpartition(".")[2].removeprefix("$")
