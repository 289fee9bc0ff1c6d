"""Keyspace and tables of a Cassandra store: made where they are missing, widened where a declaration is newer.

Owns: the only statements that change a schema, and the comparison of a table with its declaration. Called by
`Store.create` alone: nothing else needs a role that may change a schema, nor does `create` where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from cassandra import Unauthorized

from oncegate.stores.cassandra import statements
from oncegate.stores.cassandra.connection import Connection
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import ROW_MARK, WAY_OUT, StoreTable


def create(connection: Connection, options: CassandraOptions, tables: Iterable[StoreTable]) -> None:
    """Create what is missing of the keyspace, the tables and their nullable columns; idempotent, also among processes.

    Raises:
        StoreError: STORE_MISMATCH, when a table has other columns or keys; STORE_REFUSED, when this user may not
            create what is missing.
    """
    if not connection.query(statements.KEYSPACE, [options.keyspace]):
        centres = connection.nodes_by_centre()
        local, nodes = next(iter(centres.items()))
        copies = options.replication or {local: options.replicas or min(3, nodes)}
        _change(connection, statements.create_keyspace(options.keyspace, copies), "init", "the keyspace")
    for table in tables:
        _create_one(connection, options.keyspace, table)


def check(connection: Connection, keyspace: str, table: StoreTable) -> None:
    """Raise STORE_MISMATCH unless the keyspace has the table with all columns declared; it may have further values."""
    found = _shape(connection, keyspace, table)
    wanted = statements.shape(table)
    if not found:
        raise StoreError(
            StoreCode.STORE_MISMATCH, f"{connection.place} lacks table {table.name}: `oncegate store init` creates it"
        )
    further = set(found) - set(wanted)
    marked = ROW_MARK in (column[0] for column in further)
    if set(wanted) - set(found) or marked or any(kind != "regular" for _, _, kind, _ in further):
        lacking = sorted({column[0] for column in wanted} - {column[0] for column in found})
        without = f", without {', '.join(lacking)}" if lacking else ""
        raise StoreError(
            StoreCode.STORE_MISMATCH, f"{connection.place} holds another table {table.name}{without}: {WAY_OUT}"
        )


def _create_one(connection: Connection, keyspace: str, table: StoreTable) -> None:
    found = _shape(connection, keyspace, table)
    known = {name for name, *_ in found}
    if not found:
        _change(connection, statements.create(keyspace, table), "init", f"table {table.name}")
    elif added := [column for column in table.columns if column.nullable and column.name not in known]:
        # A row without the column reads as null, and a job that does not know it leaves it unset.
        names = ", ".join(column.name for column in added)
        _change(connection, statements.add_columns(keyspace, table, added), "migrate", f"{names} of table {table.name}")
    check(connection, keyspace, table)


def _change(connection: Connection, statement: str, command: str, lacking: str) -> None:
    """Change the schema; a user who may not do that learns which command does."""
    try:
        connection.query(statement)
    except StoreError as error:
        if not isinstance(error.__cause__, Unauthorized):
            raise
        raise StoreError(
            StoreCode.STORE_REFUSED,
            f"{connection.place} lacks {lacking}, and this user may not create it: let one who may run "
            f"`oncegate store {command}` ({error.detail})",
        ) from error


def _shape(connection: Connection, keyspace: str, table: StoreTable) -> list[tuple[str, str, str, str]]:
    rows = connection.query(statements.DESCRIBED, [keyspace, table.name])
    return [(str(name), str(kind), str(role), str(order)) for name, kind, role, order in rows]
