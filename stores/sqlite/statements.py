"""The SQL of the SQLite store: schema and statements made from a table declaration.

Owns: last-write-wins in SQL. Names come from checked declarations only, values are always bound. Pure.

Each row carries `write_ts` and `dead`. A deletion is a row with `dead` = 1 and null values; it stays for ever, so
that an older write that arrives later finds it and loses.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

_SQL_TYPE: Final = {ColumnType.INT64: "INTEGER", ColumnType.TEXT: "TEXT", ColumnType.BLOB: "BLOB"}


TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"


def create(table: StoreTable) -> str:
    """Return the statement that creates the table; its text also identifies the declaration."""
    key = set(table.key)
    columns = [
        f'"{column.name}" {_SQL_TYPE[column.type]}{" NOT NULL" if column.name in key else ""}'
        for column in table.columns
    ]
    directions = {column.name: " DESC" if column.descending else "" for column in table.clustering}
    primary = ", ".join(f'"{name}"{directions.get(name, "")}' for name in table.key)
    return (
        f'CREATE TABLE "{table.name}" ({", ".join(columns)}, {WRITE_TS} INTEGER NOT NULL, dead INTEGER NOT NULL, '
        f"PRIMARY KEY ({primary})) WITHOUT ROWID"
    )


def upsert(table: StoreTable, absent: Collection[str] = ()) -> str:
    """Return the upsert; parameters are the declared columns in order but ``absent``, null ones, then the timestamp."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    marks = ", ".join(["NULL" if column.name in absent else "?" for column in table.columns] + ["?"])
    wins = ", ".join(f'"{column.name}" = {_winner(column)}' for column in table.values)
    differs = " OR ".join(
        f'excluded."{column.name}" {"IS NOT" if column.nullable else "<>"} "{table.name}"."{column.name}"'
        for column in table.values
    )
    insert = f'INSERT INTO "{table.name}" ({names}, {WRITE_TS}, dead) VALUES ({marks}, 0)'  # noqa: S608 - checked names
    newer = f'excluded.{WRITE_TS} > "{table.name}".{WRITE_TS}'
    # A retry of the same rows leaves the pages alone.
    equal = f'excluded.{WRITE_TS} = "{table.name}".{WRITE_TS} AND "{table.name}".dead = 0 AND ({differs})'
    change = f"DO UPDATE SET {wins}, {WRITE_TS} = excluded.{WRITE_TS}, dead = 0"
    return f"{insert} ON CONFLICT ({_key(table)}) {change} WHERE {newer} OR ({equal})"


def delete(table: StoreTable) -> str:
    """Return the deletion; parameters are the key columns in key order, then the timestamp."""
    marks = ", ".join("?" * (len(table.key) + 1))
    nulls = ", ".join(f'"{column.name}" = NULL' for column in table.values)
    insert = f'INSERT INTO "{table.name}" ({_key(table)}, {WRITE_TS}, dead) VALUES ({marks}, 1)'  # noqa: S608 - checked
    change = f"DO UPDATE SET {nulls}, {WRITE_TS} = excluded.{WRITE_TS}, dead = 1"
    not_older = f'excluded.{WRITE_TS} >= "{table.name}".{WRITE_TS}'
    return f"{insert} ON CONFLICT ({_key(table)}) {change} WHERE {not_older}"


def replace(table: StoreTable) -> str:
    """Return the statement that writes a row whatever is there; parameters are the declared columns in order."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    marks = ", ".join("?" * len(table.columns))
    return f'INSERT OR REPLACE INTO "{table.name}" ({names}, {WRITE_TS}, dead) VALUES ({marks}, 1, 0)'  # noqa: S608 - checked names


def clear(name: str) -> str:
    """Return the statement that deletes all rows of a table of the store, tombstones included."""
    return f'DELETE FROM "{name}"'  # noqa: S608 - a name that the file itself gave


def select(table: StoreTable) -> str:
    """Return the query of all live rows: the declared columns, then the timestamp."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'SELECT {names}, {WRITE_TS} FROM "{table.name}" WHERE dead = 0'  # noqa: S608 - checked names


def select_one(table: StoreTable) -> str:
    """Return the query of one live row; parameters are the key columns in key order."""
    return select(table) + "".join(f' AND "{name}" = ?' for name in table.key)


def count(table: StoreTable) -> str:
    """Return the query of the number of live rows."""
    return f'SELECT count(*) FROM "{table.name}" WHERE dead = 0'  # noqa: S608 - checked names


def _key(table: StoreTable) -> str:
    return ", ".join(f'"{name}"' for name in table.key)


def _winner(column: Column) -> str:
    """The value that stays: the newer one's, or at equal timestamps the larger as unsigned bytes, as Cassandra."""
    new, old = f'excluded."{column.name}"', f'"{column.name}"'
    larger = f"max({new}, {old})"
    if column.type is ColumnType.INT64:
        # In two's complement a negative number is larger, as bytes, than any that is not.
        larger = f"CASE WHEN ({new} < 0) = ({old} < 0) THEN max({new}, {old}) ELSE min({new}, {old}) END"
    if column.nullable:
        # Its max() with a null is null.
        larger = f"coalesce({larger}, {new}, {old})"
    return f"CASE WHEN excluded.{WRITE_TS} > {WRITE_TS} THEN {new} ELSE {larger} END"
