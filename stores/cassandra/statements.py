"""The CQL of the Cassandra store: schema and statements made from a table declaration.

Owns: names and bind order. Tables are always named with their keyspace: a prepared statement that depends on the
session's keyspace is one that the server warns of. Names come from checked declarations only, values are always
bound. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from oncegate.stores.column_types import AnyType, ColumnType, ListOf, MapOf
from oncegate.stores.ranges import Slice
from oncegate.stores.tables import ROW_MARK, WRITE_TS, Column, StoreTable

_CQL_TYPE: Final = {
    ColumnType.INT64: "bigint",
    ColumnType.FLOAT64: "double",
    ColumnType.DECIMAL: "decimal",
    ColumnType.TEXT: "text",
    ColumnType.BLOB: "blob",
    ColumnType.BOOL: "boolean",
    ColumnType.TIMESTAMP: "timestamp",
    ColumnType.UUID: "uuid",
    ColumnType.JSON: "text",
}


def create_keyspace(keyspace: str, copies: Mapping[str, int]) -> str:
    """Return the statement that creates the keyspace if it is missing, with so many copies in each data centre."""
    centres = "".join(f", '{centre}': {count}" for centre, count in copies.items())
    return (
        f'CREATE KEYSPACE IF NOT EXISTS "{keyspace}" WITH replication = '
        f"{{'class': 'NetworkTopologyStrategy'{centres}}}"
    )


def create(keyspace: str, table: StoreTable) -> str:
    """Return the statement that creates the table if it is missing."""
    columns = ", ".join(f'"{name}" {kind}' for name, kind, _, _ in shape(table))
    partition = ", ".join(f'"{name}"' for name in table.partition_key)
    clustering = "".join(f', "{column.name}"' for column in table.clustering)
    order = ", ".join(f'"{column.name}" {"DESC" if column.descending else "ASC"}' for column in table.clustering)
    ordered = f" WITH CLUSTERING ORDER BY ({order})" if order else ""
    key = f"PRIMARY KEY (({partition}){clustering})"
    return f"CREATE TABLE IF NOT EXISTS {_name(keyspace, table)} ({columns}, {key}){ordered}"


def add_columns(keyspace: str, table: StoreTable, columns: Iterable[Column]) -> str:
    """Return the statement that adds those of the columns that the table lacks."""
    added = ", ".join(f'"{column.name}" {_type(column.type)}' for column in columns)
    return f"ALTER TABLE {_name(keyspace, table)} ADD IF NOT EXISTS ({added})"


def shape(table: StoreTable) -> list[tuple[str, str, str, str]]:
    """Return what `DESCRIBED` yields for the table: name, type, kind and order of each column."""
    order = {column.name: "desc" if column.descending else "asc" for column in table.clustering}
    rows = []
    for column in table.columns:
        kind = "partition_key" if column.name in table.partition_key else "regular"
        kind = "clustering" if column.name in order else kind
        rows.append((column.name, _type(column.type), kind, order.get(column.name, "none")))
    if marked(table):
        rows.append((ROW_MARK, "boolean", "regular", "none"))
    return rows


def marked(table: StoreTable) -> bool:
    """Whether rows carry `ROW_MARK`, a cell that each write writes: no other one tells the row's timestamp."""
    return table.partial or not table.certain


KEYSPACE: Final = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
DESCRIBED: Final = (
    "SELECT column_name, type, kind, clustering_order FROM system_schema.columns "
    "WHERE keyspace_name = %s AND table_name = %s"
)
TABLES: Final = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"


def insert(keyspace: str, table: StoreTable, names: Iterable[str]) -> str:
    """Return the upsert of these columns; bound are they, the timestamp, and seconds to live where rows expire."""
    columns = {f'"{name}"': "?" for name in names}
    if marked(table):
        columns[f'"{ROW_MARK}"'] = "true"
    kept = " AND TTL ?" if table.expires else ""
    return (
        f"INSERT INTO {_name(keyspace, table)} ({', '.join(columns)}) VALUES ({', '.join(columns.values())}) "  # noqa: S608 - checked names
        f"USING TIMESTAMP ?{kept}"
    )


def delete(keyspace: str, table: StoreTable) -> str:
    """Return the deletion of a row; bound are the timestamp, then the key columns in key order."""
    return f"DELETE FROM {_name(keyspace, table)} USING TIMESTAMP ? WHERE {_where(table.key)}"  # noqa: S608 - checked names


def replace(keyspace: str, table: StoreTable, *, absent: bool) -> tuple[str, list[str]]:
    """Return the conditional write, and the columns in bind order; the values it must find follow unless ``absent``."""
    values = [column.name for column in table.values]
    names = [*values, *table.key]
    if absent:
        marks = ", ".join(["%s"] * len(names))
        columns = ", ".join(f'"{name}"' for name in names)
        return f"INSERT INTO {_name(keyspace, table)} ({columns}) VALUES ({marks}) IF NOT EXISTS", names  # noqa: S608 - checked
    change = ", ".join(f'"{name}" = %s' for name in values)
    where, held = (" AND ".join(f'"{name}" = %s' for name in part) for part in (table.key, values))
    return f"UPDATE {_name(keyspace, table)} SET {change} WHERE {where} IF {held}", names  # noqa: S608 - checked names


def clear(keyspace: str, name: str) -> str:
    """Return the statement that deletes all rows of a table of the keyspace."""
    return f'TRUNCATE "{keyspace}"."{name}"'


def select_one(keyspace: str, table: StoreTable) -> str:
    """Return the query of one row, `write_ts` last; bound are the key columns in key order."""
    return f"{_select(keyspace, table)} WHERE {_where(table.key)}"


def select_slice(keyspace: str, table: StoreTable, wanted: Slice) -> str:
    """Return the query of a slice in its order; bound are the values of its conditions."""
    where = " AND ".join(f'"{name}" {comparison} ?' for name, comparison, _ in wanted.conditions)
    order = ", ".join(f'"{column.name}" {"ASC" if column.descending else "DESC"}' for column in table.clustering)
    turned = f" ORDER BY {order}" if wanted.reverse and order else ""
    return f"{_select(keyspace, table)} WHERE {where}{turned}"


def select_range(keyspace: str, table: StoreTable) -> str:
    """Return the query of the rows of a token range, `write_ts` last; bound are its ends, the first one exclusive."""
    return f"{_select(keyspace, table)} WHERE {_tokens(table)}"


def count_range(keyspace: str, table: StoreTable) -> str:
    """Return the query of the number of rows in a token range."""
    return f"SELECT count(*) FROM {_name(keyspace, table)} WHERE {_tokens(table)}"  # noqa: S608 - checked names


def _select(keyspace: str, table: StoreTable) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    # All columns of a row are written at once, so one that is never null tells the row's timestamp.
    written = f'WRITETIME("{ROW_MARK if marked(table) else table.certain}") AS {WRITE_TS}'
    return f"SELECT {names}, {written} FROM {_name(keyspace, table)}"  # noqa: S608 - checked names


def _name(keyspace: str, table: StoreTable) -> str:
    return f'"{keyspace}"."{table.name}"'


def _where(names: tuple[str, ...]) -> str:
    return " AND ".join(f'"{name}" = ?' for name in names)


def _tokens(table: StoreTable) -> str:
    partition = ", ".join(f'"{name}"' for name in table.partition_key)
    return f"token({partition}) > ? AND token({partition}) <= ?"


def _type(kind: AnyType) -> str:
    match kind:
        case ListOf(element):
            return f"frozen<list<{_CQL_TYPE[element]}>>"
        case MapOf(element):
            return f"frozen<map<text, {_CQL_TYPE[element]}>>"
        case _:
            return _CQL_TYPE[kind]
