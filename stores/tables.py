"""Declarations of stored tables: data that both stores turn into their own schema.

Owns: names, keys and what else a table promises. Every row of every table has a write timestamp beside its
columns, in the Arrow column `write_ts`: the commit number of the item it derives from, never a clock. Must not know
a database. Read next: `column_types`, `store`; why nulls are as they are: docs/decisions/0019-cells.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from oncegate.stores.column_types import AnyType, name_of, type_of
from oncegate.stores.column_types import ColumnType as ColumnType
from oncegate.stores.errors import StoreCode, StoreError

WRITE_TS: Final = "write_ts"
"""Arrow column of the write timestamp, int64, 1 .. 2^63 - 1."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
ROW_MARK: Final = "oncegate_row"
"""Column that Cassandra's tables have where no other one is in every row."""
WAY_OUT: Final = "a column that is added later has to be nullable; a table of another shape needs another name"
"""What to do when a store holds a table of the same name that is not the one declared."""
_RESERVED: Final = frozenset({WRITE_TS, ROW_MARK, "dead"})
_COMMIT: Final = "commit"


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column, without nulls unless it says so."""

    name: str
    type: AnyType
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Clustering:
    """A clustering column: rows of one partition are kept in its order."""

    name: str
    descending: bool = False


@dataclass(frozen=True, slots=True)
class StoreTable:
    """A table: its columns, what chooses the partition, and the order inside one.

    Args:
        name: lower-case identifier, at most 48 characters.
        columns: all columns, key columns included; those of the key are not nullable, and no list, map or JSON.
        partition_key: names of the columns that together choose the partition; never empty.
        clustering: columns that order and identify rows inside a partition; may be empty.
        partial: cells have timestamps of their own, so that `Store.update` may write some of a row's; all columns
            outside the key are nullable then, and rows do not end.
        expires: name of a nullable `TIMESTAMP` column that says when a row ends: from then on no reader sees it. Null:
            never.

    Raises:
        StoreError: BAD_TABLE, when the declaration is malformed.
    """

    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering: tuple[Clustering, ...] = ()
    partial: bool = False
    expires: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        key = self.key
        if not all(_NAME.fullmatch(name) for name in (self.name, *names)) or _RESERVED & set(names):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: a name is no identifier, or is reserved")
        if len(set(names)) != len(names) or len(set(key)) != len(key) or not set(key) <= set(names):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: columns repeat, or a key column is not declared")
        if not self.partition_key:
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: needs a partition key")
        kinds = {column.name: column for column in self.columns}
        for column in map(kinds.__getitem__, key):
            if column.nullable or not isinstance(column.type, ColumnType) or column.type is ColumnType.JSON:
                raise StoreError(
                    StoreCode.BAD_TABLE, f"{self.name}: {column.name} is in the key: not nullable, no list, map or JSON"
                )
        if self.partial and not (self.values and all(column.nullable for column in self.values)):
            raise StoreError(
                StoreCode.BAD_TABLE, f"{self.name}: partial, so it needs columns outside the key, all of them nullable"
            )
        if self.expires and (self.partial or kinds.get(self.expires) != _expiry(self.expires)):
            raise StoreError(
                StoreCode.BAD_TABLE,
                f"{self.name}: expires names a nullable TIMESTAMP column of a table that is not partial",
            )

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the primary key's columns, partition first."""
        return (*self.partition_key, *(column.name for column in self.clustering))

    @property
    def values(self) -> tuple[Column, ...]:
        """The columns outside the key."""
        key = set(self.key)
        return tuple(column for column in self.columns if column.name not in key)

    @property
    def certain(self) -> str:
        """Name of a column that is in every row and outside the key; empty where there is none."""
        return next((column.name for column in self.values if not column.nullable), "")

    @property
    def fixed(self) -> bool:
        """Whether a row, once there, has its values for good, as where the item's commit number is in the key.

        A null of such a row is no value, and loses to every other. Anywhere else it overwrites, and of equal
        timestamps beats, a value.
        """
        return _COMMIT in self.key and not self.partial

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of rows written and scanned: the declared columns, then `write_ts`."""
        return _schema(self.columns)

    @property
    def key_schema(self) -> pa.Schema:
        """Arrow schema of deletions: the key columns in key order, then `write_ts`."""
        return _schema(self._chosen(self.key))

    def update_schema(self, names: Iterable[str]) -> pa.Schema:
        """Return the Arrow schema of partial updates: the key columns in key order, others of ``names``, `write_ts`.

        Raises:
            StoreError: BAD_ROWS, when the table takes no partial updates, or ``names`` has no column outside the key.
        """
        named = set(names)
        chosen = tuple(column for column in self.values if column.name in named)
        if not self.partial or not chosen or named - {*self.key, *(column.name for column in chosen), WRITE_TS}:
            why = "names other columns than its own, or none" if self.partial else "not declared partial"
            raise StoreError(StoreCode.BAD_ROWS, f"{self.name} takes no such update: {why}")
        return _schema((*self._chosen(self.key), *chosen))

    def _chosen(self, names: Iterable[str]) -> tuple[Column, ...]:
        by_name = {column.name: column for column in self.columns}
        return tuple(by_name[name] for name in names)

    def key_values(self, key: Mapping[str, Any]) -> list[Any]:
        """Return the values of a whole primary key in key order; raises BAD_ROWS for other columns."""
        if set(key) != set(self.key):
            raise StoreError(StoreCode.BAD_ROWS, f"a key of {self.name} is {', '.join(self.key)}")
        return [key[name] for name in self.key]

    def to_json(self) -> str:
        """Return the declaration as text, for a process of ours; :meth:`from_json` reads it."""
        return json.dumps(
            {
                "name": self.name,
                "columns": [[column.name, name_of(column.type), column.nullable] for column in self.columns],
                "partition_key": self.partition_key,
                "clustering": [[column.name, column.descending] for column in self.clustering],
                "partial": self.partial,
                "expires": self.expires,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> StoreTable:
        """Return the declaration that gave ``text``."""
        fields = json.loads(text)
        return cls(
            name=fields["name"],
            columns=tuple(Column(name, type_of(kind), nullable) for name, kind, nullable in fields["columns"]),
            partition_key=tuple(fields["partition_key"]),
            clustering=tuple(Clustering(name, descending) for name, descending in fields["clustering"]),
            partial=fields["partial"],
            expires=fields["expires"],
        )


def checked(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``rows`` with the columns of ``schema`` in its order.

    Raises BAD_ROWS when a column is missing or has another type; what single rows hold is a matter of `limits`.
    """
    try:
        chosen = rows.select(schema.names)
    except KeyError as error:
        raise StoreError(StoreCode.BAD_ROWS, f"column missing: {error.args[0]}") from error
    for at, (field, column) in enumerate(zip(schema, chosen.columns, strict=True)):
        if column.type != field.type:
            if not _same(column.type, field.type):
                raise StoreError(StoreCode.BAD_ROWS, f"column {field.name} is {column.type}, not {field.type}")
            chosen = chosen.set_column(at, field, column.cast(field.type))
    return chosen


def _same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the types differ in the names of their parts only, or one is the other's storage."""
    if isinstance(wanted, pa.UuidType):
        return bool(found == wanted.storage_type)
    if pa.types.is_list(wanted):
        return bool(pa.types.is_list(found) and found.value_type == wanted.value_type)
    return bool(pa.types.is_map(wanted) and pa.types.is_map(found) and found.item_type == wanted.item_type)


def _expiry(name: str) -> Column:
    return Column(name, ColumnType.TIMESTAMP, nullable=True)


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    fields = [pa.field(column.name, column.type.arrow, nullable=column.nullable) for column in columns]
    return pa.schema([*fields, pa.field(WRITE_TS, pa.int64(), nullable=False)])
