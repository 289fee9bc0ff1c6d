"""Declarations of stored tables: data that both stores turn into their own schema.

Owns: names, types and keys. Every row of every table has a write timestamp beside its
columns, in the Arrow column `write_ts`: the commit number of the item it derives from, never a clock. Must not know
a database. Read next: `store`.

A null is not written: in Cassandra it would be a tombstone of a single cell, but a missing cell lets that of an older
write show through. So only columns of rows that are never written with other values may be nullable; that holds if the
commit number is part of the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import pyarrow as pa

from oncegate.stores.errors import StoreCode, StoreError

WRITE_TS: Final = "write_ts"
"""Arrow column of the write timestamp, int64, 1 .. 2^63 - 1."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_RESERVED: Final = frozenset({WRITE_TS, "dead"})
_COMMIT: Final = "commit"


class ColumnType(Enum):
    """The types that both stores hold without loss, and compare alike."""

    INT64 = pa.int64()
    TEXT = pa.string()
    BLOB = pa.binary()


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column, without nulls unless it says so."""

    name: str
    type: ColumnType
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
        columns: all columns, key columns included; at least one is no key and not nullable. Nullable ones are no
            key, are text or blob, and need the column `commit` in the key: a key's rows are then all the same.
        partition_key: names of the columns that together choose the partition; never empty.
        clustering: columns that order and identify rows inside a partition; may be empty.

    Raises:
        StoreError: BAD_TABLE, when the declaration is malformed.
    """

    name: str
    columns: tuple[Column, ...]
    partition_key: tuple[str, ...]
    clustering: tuple[Clustering, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        key = self.key
        if not all(_NAME.fullmatch(name) for name in (self.name, *names)) or _RESERVED & set(names):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: a name is no identifier, or is reserved")
        if len(set(names)) != len(names) or len(set(key)) != len(key) or not set(key) <= set(names):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: columns repeat, or a key column is not declared")
        if not self.partition_key or all(column.nullable for column in self.values):
            raise StoreError(
                StoreCode.BAD_TABLE, f"{self.name}: needs a partition key and a column that is no key and not nullable"
            )
        nullable = {column.name: column for column in self.columns if column.nullable}
        if nullable and _COMMIT not in key:
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: nullable columns need {_COMMIT} in the key")
        if set(nullable) & set(key) or any(column.type is ColumnType.INT64 for column in nullable.values()):
            raise StoreError(StoreCode.BAD_TABLE, f"{self.name}: a nullable column is no key, and text or blob")

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
    def schema(self) -> pa.Schema:
        """Arrow schema of rows written and scanned: the declared columns, then `write_ts`."""
        return _schema(self.columns)

    @property
    def key_schema(self) -> pa.Schema:
        """Arrow schema of deletions: the key columns in key order, then `write_ts`."""
        by_name = {column.name: column for column in self.columns}
        return _schema(tuple(by_name[name] for name in self.key))

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
                "columns": [[column.name, column.type.name, column.nullable] for column in self.columns],
                "partition_key": self.partition_key,
                "clustering": [[column.name, column.descending] for column in self.clustering],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> StoreTable:
        """Return the declaration that gave ``text``."""
        fields = json.loads(text)
        return cls(
            name=fields["name"],
            columns=tuple(Column(name, ColumnType[kind], nullable) for name, kind, nullable in fields["columns"]),
            partition_key=tuple(fields["partition_key"]),
            clustering=tuple(Clustering(name, descending) for name, descending in fields["clustering"]),
        )


def checked(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``rows`` with the columns of ``schema`` in its order.

    Raises BAD_ROWS when a column is missing or has another type; what single rows hold is a matter of `limits`.
    """
    try:
        chosen = rows.select(schema.names)
    except KeyError as error:
        raise StoreError(StoreCode.BAD_ROWS, f"column missing: {error.args[0]}") from error
    for field, column in zip(schema, chosen.columns, strict=True):
        if column.type != field.type:
            raise StoreError(StoreCode.BAD_ROWS, f"column {field.name} is {column.type}, not {field.type}")
    return chosen


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    fields = [pa.field(column.name, column.type.value, nullable=column.nullable) for column in columns]
    return pa.schema([*fields, pa.field(WRITE_TS, pa.int64(), nullable=False)])
