"""Tables of the SQLite store: made where they are missing, widened where a declaration is newer.

Owns: the only statements that change a schema, and the comparison of a table with its declaration: its columns by name,
type and place in the key, in any order; so a table of any earlier build of layout 1 is itself. Must not open files.
Read next: :mod:`oncegate.stores.sqlite.forms`, :mod:`oncegate.stores.sqlite.statements`.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from oncegate.stores.column_types import ColumnType, name_of
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.sqlite.statements import DELETED_AT, cell_ts
from oncegate.stores.tables import WAY_OUT, WRITE_TS, Column, StoreTable

# What SQLite makes of a type's name is its affinity; what follows is ours.
_TYPES: Final = {
    ColumnType.INT64: "INTEGER",
    ColumnType.TIMESTAMP: "INTEGER TIMESTAMP",
    ColumnType.BOOL: "INTEGER BOOL",
    ColumnType.FLOAT64: "REAL",
    ColumnType.TEXT: "TEXT",
    ColumnType.JSON: "TEXT JSON",
    ColumnType.BLOB: "BLOB",
    ColumnType.UUID: "BLOB UUID",
    ColumnType.DECIMAL: "BLOB DECIMAL",
}
_TS: Final = "INTEGER NOT NULL DEFAULT 0"


class _Shape(NamedTuple):
    """Type, place in the key from 1 (0: not in it), and direction."""

    type: str
    place: int = 0
    descending: bool = False


def settle(connection: sqlite3.Connection, table: StoreTable, where: str) -> None:
    """Create the table if it is missing, and its nullable columns that are missing; within a transaction.

    Raises:
        StoreError: STORE_MISMATCH, when the table has other columns or keys.
    """
    found, wanted = _found(connection, table), _wanted(table)
    if not found:
        connection.execute(create(table))
        return
    added = [column for column in table.columns if column.nullable and column.name not in found]
    for column in added:
        # A row of before reads as null, and a job that does not know the column leaves it alone.
        for definition in _definitions(table, column):
            connection.execute(f'ALTER TABLE "{table.name}" ADD COLUMN {definition}')
    if added:
        found = _found(connection, table)
    different = any(found.get(name) != shape for name, shape in wanted.items())
    further_key = any(found[name].place for name in set(found) - set(wanted))
    if different or further_key or table.partial != (DELETED_AT in found):
        lacking = sorted(set(wanted) - set(found))
        without = f", without {', '.join(lacking)}" if lacking else ""
        raise StoreError(StoreCode.STORE_MISMATCH, f"{where} holds another table {table.name}{without}: {WAY_OUT}")


def create(table: StoreTable) -> str:
    """Return the statement that creates the table."""
    columns = [definition for column in table.columns for definition in _definitions(table, column)]
    columns += [f"{WRITE_TS} INTEGER NOT NULL", "dead INTEGER NOT NULL"]
    if table.partial:
        columns.append(f'"{DELETED_AT}" {_TS}')
    directions = {column.name: " DESC" if column.descending else "" for column in table.clustering}
    primary = ", ".join(f'"{name}"{directions.get(name, "")}' for name in table.key)
    return f'CREATE TABLE "{table.name}" ({", ".join(columns)}, PRIMARY KEY ({primary})) WITHOUT ROWID'


def _definitions(table: StoreTable, column: Column) -> list[str]:
    in_key = column.name in table.key
    found = [f'"{column.name}" {_type(column, in_key=in_key)}{" NOT NULL" if in_key else ""}']
    return [*found, f'"{cell_ts(column.name)}" {_TS}'] if table.partial and not in_key else found


def _type(column: Column, *, in_key: bool) -> str:
    if not isinstance(column.type, ColumnType):
        return f"BLOB {name_of(column.type)}".translate(_NO_PUNCTUATION).upper()
    if in_key and column.type is ColumnType.FLOAT64:
        return "INTEGER FLOAT64"
    return _TYPES[column.type]


_NO_PUNCTUATION: Final = str.maketrans("<,", "  ", ">")


def _wanted(table: StoreTable) -> dict[str, _Shape]:
    descending = {column.name for column in table.clustering if column.descending}
    places = {name: place for place, name in enumerate(table.key, 1)}
    found = {
        column.name: _Shape(
            _type(column, in_key=column.name in places), places.get(column.name, 0), column.name in descending
        )
        for column in table.columns
    }
    if table.partial:
        found |= {cell_ts(column.name): _Shape("INTEGER") for column in table.values}
        found[DELETED_AT] = _Shape("INTEGER")
    return {**found, WRITE_TS: _Shape("INTEGER"), "dead": _Shape("INTEGER")}


def _found(connection: sqlite3.Connection, table: StoreTable) -> dict[str, _Shape]:
    key = 'SELECT x.name, x."desc" FROM pragma_index_list(?) AS i, pragma_index_xinfo(i.name) AS x WHERE i.origin = ?'
    descending = {name for name, down in connection.execute(key, [table.name, "pk"]) if down}
    rows = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", [table.name])
    return {name: _Shape(kind, place, name in descending) for name, kind, place in rows}
