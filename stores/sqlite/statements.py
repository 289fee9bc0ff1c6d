"""The SQL of the SQLite store: statements made from a table declaration.

Owns: last-write-wins in SQL, and the names of columns that no declaration has. Names come from checked declarations
only, values are always bound. Pure. Read next: :mod:`oncegate.stores.sqlite.schema`, which makes the tables.

Each row carries `write_ts` and `dead`. A deletion is a row with `dead` = 1 and null values; it stays for ever, so
that an older write that arrives later finds it and loses.

A table that is declared partial carries the timestamp of each cell besides, in `column@ts` (0: never written), and that
of the latest deletion in `@dead`; `write_ts` is that of the latest write of any cell. A cell counts if it is newer than
the deletion, and the row is there if its latest write is. Other tables bear nothing of that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from oncegate.stores.column_types import ColumnType
from oncegate.stores.ranges import Slice
from oncegate.stores.tables import WRITE_TS, Column, StoreTable

TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table'"
DELETED_AT: Final = "@dead"


def cell_ts(name: str) -> str:
    """Return the name of the column that holds the timestamp of a cell."""
    return f"{name}@ts"


def upsert(table: StoreTable, absent: Collection[str] = (), columns: Sequence[str] = ()) -> str:
    """Return the upsert of ``columns``, all by default; parameters are they, then the timestamp.

    Those of ``absent`` are null in every row, and no parameters. Of a partial table every column outside the key that
    is named is written, and no other one.
    """
    names = columns or [column.name for column in table.columns]
    marks = {name: "NULL" if name in absent else "?" for name in names}
    if table.partial:
        return _upsert_cells(table, marks)
    values = table.values
    wins = "".join(f'"{column.name}" = {_winner(table, column)}, ' for column in values)
    differs = " OR ".join(
        f'excluded."{column.name}" {"IS NOT" if column.nullable else "<>"} "{table.name}"."{column.name}"'
        for column in values
    )
    newer = f'excluded.{WRITE_TS} > "{table.name}".{WRITE_TS}'
    # A retry of the same rows leaves the pages alone.
    same_age = f'excluded.{WRITE_TS} = "{table.name}".{WRITE_TS} AND "{table.name}".dead = 0'
    equal = f" OR ({same_age} AND ({differs}))" if values else ""
    change = f"DO UPDATE SET {wins}{WRITE_TS} = excluded.{WRITE_TS}, dead = 0"
    return f"{_insert(table, marks)} {change} WHERE {newer}{equal}"


def delete(table: StoreTable) -> str:
    """Return the deletion; parameters are the key columns in key order, then the timestamp."""
    marks = dict.fromkeys(table.key, "?")
    nulls = "".join(f'"{column.name}" = NULL, ' for column in table.values)
    if not table.partial:
        change = f"DO UPDATE SET {nulls}{WRITE_TS} = excluded.{WRITE_TS}, dead = 1"
        return f'{_insert(table, marks, dead=1)} {change} WHERE excluded.{WRITE_TS} >= "{table.name}".{WRITE_TS}'
    gone = "".join(_erased(column.name) for column in table.values)
    # A row that only a deletion has made was never written.
    insert = _insert(table, {**marks, WRITE_TS: "0", DELETED_AT: "?"}, dead=1)
    change = f'"{DELETED_AT}" = excluded."{DELETED_AT}", dead = {WRITE_TS} <= excluded."{DELETED_AT}"'
    return f'{insert} DO UPDATE SET {gone}{change} WHERE excluded."{DELETED_AT}" > "{DELETED_AT}"'


def replace(table: StoreTable) -> str:
    """Return the statement that writes a row whatever is there; parameters are the declared columns in order."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    marks = ", ".join("?" * len(table.columns))
    return f'INSERT OR REPLACE INTO "{table.name}" ({names}, {WRITE_TS}, dead) VALUES ({marks}, 1, 0)'  # noqa: S608 - checked names


def clear(name: str) -> str:
    """Return the statement that deletes all rows of a table of the store, tombstones included."""
    return f'DELETE FROM "{name}"'  # noqa: S608 - a name that the file itself gave


def select(table: StoreTable) -> str:
    """Return the query of live rows: the declared columns, then the timestamp; parameters are those of `live_at`."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f'SELECT {names}, {WRITE_TS} FROM "{table.name}" WHERE {_live(table)}'  # noqa: S608 - checked names


def select_one(table: StoreTable) -> str:
    """Return the query of one live row; parameters are those of `live_at`, then the key columns in key order."""
    return select(table) + "".join(f' AND "{name}" = ?' for name in table.key)


def select_slice(table: StoreTable, wanted: Slice) -> str:
    """Return the query of a slice in its order; parameters are those of `live_at`, of its conditions, and the limit."""
    where = "".join(f' AND "{name}" {comparison} ?' for name, comparison, _ in wanted.conditions)
    order = ", ".join(
        f'"{column.name}" {"DESC" if column.descending != wanted.reverse else "ASC"}' for column in table.clustering
    )
    return f"{select(table)}{where}{' ORDER BY ' if order else ''}{order} LIMIT ?"


def count(table: StoreTable) -> str:
    """Return the query of the number of live rows; parameters are those of `live_at`."""
    return f'SELECT count(*) FROM "{table.name}" WHERE {_live(table)}'  # noqa: S608 - checked names


def _live(table: StoreTable) -> str:
    return f'dead = 0 AND ("{table.expires}" IS NULL OR "{table.expires}" > ?)' if table.expires else "dead = 0"


def live_at(table: StoreTable, now_ms: int) -> list[int]:
    """Return the first parameters of a query of live rows: the time, where rows of the table expire."""
    return [now_ms] if table.expires else []


def _insert(table: StoreTable, marks: dict[str, str], *, dead: int = 0) -> str:
    """The beginning of an upsert of these columns; parameters are those marked, and the timestamp unless it is."""
    if WRITE_TS not in marks:
        marks = {**marks, WRITE_TS: "?"}
    names, values = ", ".join(f'"{name}"' for name in marks), ", ".join(marks.values())
    key = ", ".join(f'"{name}"' for name in table.key)
    return f'INSERT INTO "{table.name}" ({names}, dead) VALUES ({values}, {dead}) ON CONFLICT ({key})'  # noqa: S608 - checked


def _winner(table: StoreTable, column: Column) -> str:
    """The value that stays: the newer one's, or at equal timestamps the larger as unsigned bytes, as Cassandra."""
    new, old = f'excluded."{column.name}"', f'"{column.name}"'
    larger = _larger(column)
    if column.nullable and table.fixed:
        # Its max() with a null is null.
        larger = f"coalesce({larger}, {new}, {old})"
    return f"CASE WHEN excluded.{WRITE_TS} > {WRITE_TS} THEN {new} ELSE {larger} END"


def _larger(column: Column) -> str:
    """The larger of two values as unsigned bytes; null, if one of them is."""
    new, old = f'excluded."{column.name}"', f'"{column.name}"'
    if column.type in (ColumnType.INT64, ColumnType.TIMESTAMP):
        # In two's complement a negative number is larger, as bytes, than any that is not.
        return f"CASE WHEN ({new} < 0) = ({old} < 0) THEN max({new}, {old}) ELSE min({new}, {old}) END"
    if column.type is ColumnType.FLOAT64:
        # Of two negative floats the one with the larger absolute value is larger, as bytes.
        return f"CASE WHEN {new} >= 0 AND {old} >= 0 THEN max({new}, {old}) ELSE min({new}, {old}) END"
    return f"max({new}, {old})"


def _upsert_cells(table: StoreTable, marks: dict[str, str]) -> str:
    """The upsert of cells; the timestamp, the last parameter, has number ``last`` because several columns take it."""
    written = [column for column in table.values if column.name in marks]
    last = f"?{sum(mark == '?' for mark in marks.values()) + 1}"
    sets = []
    for column in written:
        name, ts = column.name, f'"{cell_ts(column.name)}"'
        older = f'max({ts}, "{DELETED_AT}")'
        newer = f"excluded.{WRITE_TS} > {older}"
        tie = f'excluded.{WRITE_TS} = {ts} AND {ts} > "{DELETED_AT}"'
        sets.append(
            f'"{name}" = CASE WHEN {newer} THEN excluded."{name}" WHEN {tie} THEN {_larger(column)} ELSE "{name}" END'
        )
        sets.append(f"{ts} = CASE WHEN {newer} THEN excluded.{WRITE_TS} ELSE {ts} END")
    sets.append(f"{WRITE_TS} = max({WRITE_TS}, excluded.{WRITE_TS})")
    sets.append(f'dead = max({WRITE_TS}, excluded.{WRITE_TS}) <= "{DELETED_AT}"')
    stamps = {cell_ts(column.name): last for column in written}
    return f"{_insert(table, {**marks, **stamps, WRITE_TS: last})} DO UPDATE SET {', '.join(sets)}"


def _erased(name: str) -> str:
    ts, alive = f'"{cell_ts(name)}"', f'"{cell_ts(name)}" > excluded."{DELETED_AT}"'
    return f'"{name}" = CASE WHEN {alive} THEN "{name}" END, {ts} = CASE WHEN {alive} THEN {ts} ELSE 0 END, '
