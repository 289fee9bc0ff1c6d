"""Keyspace and tables of a Cassandra store: made where they are missing, widened where a declaration is newer.

Owns: the only statements that change a schema, and the comparison of a table with its declaration. Called by
`Store.create` alone: nothing else needs a role that may change a schema, nor does `create` where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from oncegate.stores.cassandra import statements
from oncegate.stores.cassandra.connection import Connection
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import StoreTable


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
        connection.query(statements.create_keyspace(options.keyspace, copies))
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
    if set(wanted) - set(found) or any(kind != "regular" for _, _, kind, _ in further):
        raise StoreError(StoreCode.STORE_MISMATCH, f"{connection.place} holds another table {table.name}")


def _create_one(connection: Connection, keyspace: str, table: StoreTable) -> None:
    found = _shape(connection, keyspace, table)
    names = {name for name, *_ in found}
    if not found:
        connection.query(statements.create(keyspace, table))
    elif added := [column for column in table.columns if column.nullable and column.name not in names]:
        # A row without the column reads as null, and a job that does not know it leaves it unset.
        connection.query(statements.add_columns(keyspace, table, added))
    check(connection, keyspace, table)


def _shape(connection: Connection, keyspace: str, table: StoreTable) -> list[tuple[str, str, str, str]]:
    rows = connection.query(statements.DESCRIBED, [keyspace, table.name])
    return [(str(name), str(kind), str(role), str(order)) for name, kind, role, order in rows]
