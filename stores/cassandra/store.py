"""The store of the product: Cassandra through cassandra-driver, explicit timestamps, batches of one set of replicas.

Owns: reads and writes of rows. Must not know Spark or flows. Read next:
:mod:`oncegate.stores.cassandra.connection`, :mod:`oncegate.stores.cassandra.placement`,
:mod:`oncegate.stores.cassandra.schema`.

Rows of the same replicas travel together in unlogged batches below the server's own warning threshold: many times as
fast as single statements. The outcome of a write that timed out is unknown. The store sends it again, which timestamps
make harmless. The server forgets deletions after its `gc_grace_seconds` (10 days by default): do not replay older
batches.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.query import PreparedStatement

from oncegate.stores import cells, expiry, limits
from oncegate.stores.cassandra import schema
from oncegate.stores.cassandra import statements as cql_statements
from oncegate.stores.cassandra.connection import READ, SCAN, Connection
from oncegate.stores.cassandra.encoding import NOT_SET, NULL, EncodedBatch, encode
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.cassandra.placement import Ring, place
from oncegate.stores.cassandra.sending import Sending
from oncegate.stores.column_types import AnyType
from oncegate.stores.errors import Rejected
from oncegate.stores.ranges import normal, slices
from oncegate.stores.store import RANGE_ROWS_DEFAULT, Store, Value
from oncegate.stores.tables import WRITE_TS, StoreTable

T = TypeVar("T")

_BATCH_BYTES_MAX: Final = 32 * 1024
_BATCH_BYTES_FALLBACK: Final = 5 * 1024
_PAGE_ROWS: Final = 20_000
_PAGE_TOMBSTONES: Final = 80_000
_SLICE_ROWS: Final = 5_000
_TTL: Final = "ttl"
_SCAN_RANGES: Final = 64
_SCAN_THREADS: Final = 4


class CassandraStore(Store):
    """A `Store` in a keyspace; connects at first use, in the process that uses it."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options, self._keyspace = options, options.keyspace
        self._connection = Connection(options)
        self._batch_bytes = options.batch_bytes
        self.clock: Callable[[], float] = time.time

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Return the store of a `cassandra://` URL; raises BAD_OPTION."""
        return cls(CassandraOptions.parse(url))

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create the keyspace, missing tables and missing nullable columns; see `Store.create`."""
        schema.create(self._connection, self._options, tables)

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows; see `Store.write`."""
        self._upsert(table, rows, table.schema)

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Write some cells of rows; see `Store.update`."""
        self._upsert(table, rows, table.update_schema(rows.schema.names))

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows; see `Store.delete`."""
        sifted = limits.sift(table, keys, table.key_schema)
        delete = cql_statements.delete(self._keyspace, table)
        sifted.raise_rejected(self._send_all(table, sifted.rows, delete, [WRITE_TS, *table.key]))

    def get(self, table: StoreTable, key: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return one live row; see `Store.get`."""
        values = table.key_values(key)
        query = self._connection.prepare(cql_statements.select_one(self._keyspace, table))
        if table.expires or not all(cells.is_plain(column.type) for column in table.columns):
            bound = [normal(kind, value) for kind, value in zip(_kinds(table, table.key), values, strict=True)]
            found = [
                row for rows in self._pages(table, query, bound) for row in rows.to_pylist(maps_as_pydicts="strict")
            ]
            return found[0] if found else None
        row = self._connection.retrying(
            lambda: self._connection.writer().execute(query, values, execution_profile=READ).one()
        )
        return None if row is None else dict(zip(table.schema.names, row, strict=True))

    def range(
        self,
        table: StoreTable,
        prefix: Mapping[str, Value],
        start: Value = None,
        stop: Value = None,
        *,
        after: Mapping[str, Value] | None = None,
        limit: int = RANGE_ROWS_DEFAULT,
        reverse: bool = False,
    ) -> pa.Table:
        """Return rows of one partition in order; see `Store.range`."""
        found: list[pa.RecordBatch] = []
        left = limit
        for one in slices(table, prefix, start, stop, after, limit=limit, reverse=reverse):
            query = self._connection.prepare(cql_statements.select_slice(self._keyspace, table, one))
            values = [value for _, _, value in one.conditions]
            found += self._pages(table, query, values, left)
            left = limit - sum(rows.num_rows for rows in found)
            if left <= 0:
                break
        return pa.Table.from_batches(found, table.schema)

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows; see `Store.scan`. Token ranges are read at once, pages are decoded to arrays."""
        query = self._connection.prepare(cql_statements.select_range(self._keyspace, table))
        query.fetch_size = _page_rows(table, _PAGE_ROWS)
        session = self._connection.retrying(self._connection.pages)

        def read(ends: tuple[int, int]) -> list[pa.RecordBatch]:
            return list(self._live(table, session.execute(query, ends, execution_profile=SCAN)))

        for batches in self._by_range(read):
            yield from batches

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows; see `Store.count`."""
        if table.expires:
            return sum(rows.num_rows for rows in self.scan(table))
        query = self._connection.prepare(cql_statements.count_range(self._keyspace, table))
        query.fetch_size = _page_rows(table, _PAGE_ROWS)
        session = self._connection.retrying(self._connection.writer)

        def read(ends: tuple[int, int]) -> int:
            return int(session.execute(query, ends, execution_profile=SCAN).one()[0])

        return sum(self._by_range(read))

    def tables(self) -> list[str]:
        """See `Store.tables`."""
        return sorted(str(name) for (name,) in self._query(cql_statements.TABLES, [self._keyspace]))

    def replace(self, table: StoreTable, before: Mapping[str, Value] | None, row: Mapping[str, Value]) -> bool:
        """See `Store.replace`: a lightweight transaction."""
        statement, names = cql_statements.replace(self._keyspace, table, absent=before is None)
        values = [row[name] for name in names] + ([] if before is None else [before[c.name] for c in table.values])
        return bool(self._query(statement, values)[0][0])

    def clear(self, tables: Iterable[str]) -> None:
        """See `Store.clear`: a truncation, for which all nodes must be up."""
        for name in tables:
            self._query(cql_statements.clear(self._keyspace, name))

    def durability(self) -> str:
        """See `Store.durability`."""
        version = self._query("SELECT release_version FROM system.local")[0][0]
        sync = self._connection.setting("commitlog_sync") or "unknown"
        meaning = "survives a kill of all nodes" if sync in ("batch", "group") else "a killed node may lose seconds"
        level = ConsistencyLevel.value_to_name[self._options.write_level]
        return f"cassandra {version}, commitlog_sync={sync}, {level}: {meaning}"

    def close(self) -> None:
        """Close all connections; idempotent."""
        self._connection.close()

    def _pages(
        self, table: StoreTable, query: PreparedStatement, values: Sequence[Any], limit: int = _PAGE_ROWS
    ) -> list[pa.RecordBatch]:
        """The first ``limit`` live rows that the query finds."""

        def read() -> list[pa.RecordBatch]:
            bound = query.bind(values)
            bound.fetch_size = _page_rows(table, min(limit, _SLICE_ROWS))
            found, left = [], limit
            for rows in self._live(table, self._connection.pages().execute(bound, execution_profile=READ)):
                found.append(rows.slice(0, left))
                left -= found[-1].num_rows
                if not left:
                    break
            return found

        return self._connection.retrying(read)

    def _live(self, table: StoreTable, pages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for page in pages:
            rows = pa.RecordBatch.from_arrays(cells.rows_of_values(table, page).columns, schema=table.schema)
            rows = expiry.live(table, rows, int(self.clock() * 1000))
            if rows.num_rows:
                yield rows

    def _upsert(self, table: StoreTable, rows: pa.RecordBatch, wanted: pa.Schema) -> None:
        sifted = limits.sift(table, rows, wanted)
        fit, bound = sifted.rows, list(wanted.names)
        if table.expires:
            fit = fit.append_column(_TTL, expiry.seconds_kept(table, fit, int(time.time() * 1000)))
            bound.append(_TTL)
        insert = cql_statements.insert(self._keyspace, table, wanted.names[:-1])
        sifted.raise_rejected(self._send_all(table, fit, insert, bound))

    def _by_range(self, read: Callable[[tuple[int, int]], T]) -> Iterator[T]:
        """What ``read`` returns for each part of the ring, some at once."""
        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            yield from pool.map(lambda ends: self._connection.retrying(lambda: read(ends)), _token_ranges())

    def _send_all(
        self, table: StoreTable, rows: pa.RecordBatch, statement: str, bound: Sequence[str]
    ) -> list[Rejected]:
        """Send all rows until the server has taken or refused each; return those that it refuses."""
        if rows.num_rows == 0:
            return []
        connection = self._connection
        prepared = connection.prepare(statement)
        placed = place(table, rows, Ring.of(connection.metadata(), self._keyspace))
        null = NOT_SET if table.fixed else NULL
        encoded = encode(prepared.query_id, [placed.rows.column(name) for name in bound], null)
        batches = [
            EncodedBatch(encoded, first, end, self._keyspace, key)
            for first, end, key in placed.spans(encoded.offsets, self._batch_bytes or self._server_bound())
        ]
        sending = Sending(batches, self._options.in_flight)
        connection.retrying(lambda: sending.run(connection.writer()))
        if sending.refused:
            # A server that lacks the table refuses every row: that says nothing about the rows.
            schema.check(connection, self._keyspace, table)
        return [Rejected(int(placed.positions[one.index]), one.reason) for one in sending.refused]

    def _query(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._connection.query(query, values)

    def _server_bound(self) -> int:
        found = re.fullmatch(r"(\d+)(B|KiB|MiB)", self._connection.setting("batch_size_warn_threshold") or "")
        scale = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}
        bound = int(found[1]) * scale[found[2]] if found else _BATCH_BYTES_FALLBACK
        self._batch_bytes = min(bound, _BATCH_BYTES_MAX)
        return self._batch_bytes


def _page_rows(table: StoreTable, wanted: int) -> int:
    """A null may be a tombstone, and the server refuses a page that comes by too many of them."""
    nullable = sum(column.nullable for column in table.values)
    return max(1, min(wanted, _PAGE_TOMBSTONES // max(nullable, 1)))


def _kinds(table: StoreTable, names: Iterable[str]) -> list[AnyType]:
    kinds = {column.name: column.type for column in table.columns}
    return [kinds[name] for name in names]


def _token_ranges() -> list[tuple[int, int]]:
    """The whole ring in equal ranges, first end exclusive; the smallest token is never a partition's."""
    cuts = [-(2**63) + 2**64 * part // _SCAN_RANGES for part in range(_SCAN_RANGES)]
    return list(zip(cuts, [*cuts[1:], 2**63 - 1], strict=True))
