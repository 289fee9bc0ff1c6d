"""The store of the product: Cassandra through cassandra-driver, explicit timestamps, batches of one partition.

Owns: connections, how much is in flight, and which failures are retried. Must not know Spark or flows. Read next:
:mod:`oncegate.stores.cassandra.statements`, :mod:`oncegate.stores.cassandra.encoding`.

Rows of one partition travel together in unlogged batches below the server's own warning threshold: many times as
fast as single statements. The outcome of a write that timed out is unknown. The store sends it again, which timestamps
make harmless. The server forgets deletions after its `gc_grace_seconds` (10 days by default): do not replay older
batches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, Self
from urllib.parse import SplitResult

import numpy as np
import pyarrow as pa
from cassandra import ConsistencyLevel, CoordinationFailure, OperationTimedOut, Timeout, Unavailable, policies
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import ConnectionException
from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError
from cassandra.query import PreparedStatement, tuple_factory

from oncegate.stores import layout, limits
from oncegate.stores.cassandra import statements as cql_statements
from oncegate.stores.cassandra.encoding import EncodedBatch, EncodedBatchProtocol, PageProtocol, encode
from oncegate.stores.cassandra.sending import Sending
from oncegate.stores.errors import Rejected, StoreCode, StoreError
from oncegate.stores.retry import Retry
from oncegate.stores.store import Store, Value
from oncegate.stores.tables import WRITE_TS, StoreTable

_PORT_DEFAULT: Final = 9042
_OPTIONS: Final = {"replication": 0, "in_flight": 32, "batch_bytes": 0, "retry_s": 120}
_BATCH_BYTES_MAX: Final = 32 * 1024
_BATCH_BYTES_FALLBACK: Final = 5 * 1024
_REQUEST_TIMEOUT_S: Final = 15.0
_SCAN_TIMEOUT_S: Final = 60.0
_SCAN_RANGES: Final = 64
_SCAN_THREADS: Final = 4
_PAGE_ROWS: Final = 20_000
_PROTOCOL_VERSION: Final = 4
_TRANSIENT: Final = (
    CoordinationFailure,
    ConnectionException,
    IsBootstrappingErrorMessage,
    NoHostAvailable,
    OperationTimedOut,
    OverloadedErrorMessage,
    ServerError,
    Timeout,
    Unavailable,
)
_KEYSPACE: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")


class CassandraStore(Store):
    """A `Store` in a keyspace; connects at first use, in the process that uses it.

    Args:
        hosts: contact points.
        port: of the native protocol.
        keyspace: created if missing.
        replication: copies in the local data centre when the keyspace is created; 0 = one a node, at most 3.
        in_flight: batches under way at once, 1 or more.
        batch_bytes: upper bound of a batch; 0 = the server's warning threshold, at most 32 KiB.
        retry_s: how long one write is retried.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        port: int,
        keyspace: str,
        *,
        replication: int = 0,
        in_flight: int = 32,
        batch_bytes: int = 0,
        retry_s: float = 120,
    ) -> None:
        if not hosts or not _KEYSPACE.fullmatch(keyspace) or in_flight < 1 or replication < 0 or batch_bytes < 0:
            raise StoreError(StoreCode.BAD_OPTION, "hosts, a lower-case keyspace and positive bounds are needed")
        self._hosts, self._port, self._keyspace = list(hosts), port, keyspace
        self._replication, self._in_flight, self._batch_bytes = replication, in_flight, batch_bytes
        self._retry = Retry(retry_s)
        self._cluster: Cluster | None = None
        self._sessions: dict[type, Session] = {}
        self._prepared: dict[str, PreparedStatement] = {}

    @classmethod
    def from_url(cls, parts: SplitResult, options: Mapping[str, int]) -> Self:
        """Return the store of a `cassandra://host[:port][,host…]/keyspace` URL; the port of the last host counts."""
        places = [place.partition(":") for place in parts.netloc.split(",") if place]
        unknown = set(options) - set(_OPTIONS)
        ports = {port for _, _, port in places if port}
        if unknown or len(ports) > 1 or not all(port.isdigit() for port in ports):
            raise StoreError(StoreCode.BAD_OPTION, f"use cassandra://host:port/keyspace, options {', '.join(_OPTIONS)}")
        port = int(ports.pop()) if ports else _PORT_DEFAULT
        return cls([host for host, _, _ in places], port, parts.path.strip("/"), **{**_OPTIONS, **options})

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create the keyspace and missing tables; see `Store.create`."""
        for table in tables:
            self._retrying(lambda table=table: self._create_one(table))

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows; see `Store.write`."""
        sifted = limits.sift(table, rows, table.schema)
        insert = cql_statements.insert(self._keyspace, table)
        sifted.raise_rejected(self._send_all(table, sifted.rows, insert, table.schema.names))

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows; see `Store.delete`."""
        sifted = limits.sift(table, keys, table.key_schema)
        delete = cql_statements.delete(self._keyspace, table)
        sifted.raise_rejected(self._send_all(table, sifted.rows, delete, [WRITE_TS, *table.key]))

    def get(self, table: StoreTable, key: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return one live row; see `Store.get`."""
        values = table.key_values(key)
        statement = cql_statements.select_one(self._keyspace, table)
        row = self._retrying(lambda: self._writer().execute(self._prepare(statement), values).one())
        return None if row is None else dict(zip(table.schema.names, row, strict=True))

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows; see `Store.scan`. Token ranges are read at once, pages are decoded to arrays."""
        query = cql_statements.select_range(self._keyspace, table)
        session = self._retrying(lambda: self._session(PageProtocol))
        prepared = self._prepare(query)

        def read(ends: tuple[int, int]) -> list[pa.RecordBatch]:
            pages = session.execute(prepared, ends, timeout=_SCAN_TIMEOUT_S)
            return [pa.RecordBatch.from_arrays(page.columns, schema=table.schema) for page in pages if page.num_rows]

        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            for batches in pool.map(lambda ends: self._retrying(lambda: read(ends)), _token_ranges()):
                yield from batches

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows; see `Store.count`."""
        query = self._prepare(cql_statements.count_range(self._keyspace, table))

        def read(ends: tuple[int, int]) -> int:
            return int(self._writer().execute(query, ends, timeout=_SCAN_TIMEOUT_S).one()[0])

        with ThreadPoolExecutor(_SCAN_THREADS) as pool:
            return sum(pool.map(lambda ends: self._retrying(lambda: read(ends)), _token_ranges()))

    def durability(self) -> str:
        """See `Store.durability`."""
        version = self._query("SELECT release_version FROM system.local")[0][0]
        sync = self._setting("commitlog_sync") or "unknown"
        meaning = "survives a kill of all nodes" if sync in ("batch", "group") else "a killed node may lose seconds"
        return f"cassandra {version}, commitlog_sync={sync}, LOCAL_QUORUM: {meaning}"

    def close(self) -> None:
        """Close all connections; idempotent."""
        cluster, self._cluster = self._cluster, None
        self._sessions.clear()
        self._prepared.clear()
        if cluster is not None:
            cluster.shutdown()

    def _send_all(
        self, table: StoreTable, rows: pa.RecordBatch, statement: str, bound: Sequence[str]
    ) -> list[Rejected]:
        """Send all rows until the server has taken or refused each; return those that it refuses."""
        if rows.num_rows == 0:
            return []
        order = layout.key_order(table, rows)
        ordered = rows if order is None else rows.take(pa.array(order))
        encoded = encode(self._prepare(statement).query_id, [ordered.column(name) for name in bound])
        spans = list(self._batches(table, ordered, encoded.offsets))
        keys = _routing_keys(table, ordered, [first for first, _ in spans])
        sending = Sending(
            [EncodedBatch(encoded, *span, self._keyspace, key) for span, key in zip(spans, keys, strict=True)],
            self._in_flight,
        )
        self._retrying(lambda: sending.run(self._writer()))
        if sending.refused:
            # A server that lacks the table refuses every row: that says nothing about the rows.
            self._check(table)
        return [one if order is None else Rejected(int(order[one.index]), one.reason) for one in sending.refused]

    def _batches(self, table: StoreTable, rows: pa.RecordBatch, offsets: layout.Int64s) -> Iterator[tuple[int, int]]:
        """Cut the rows into batches of one partition, below the bound in bytes unless it is a single row."""
        bound = self._batch_bytes or self._server_bound()
        borders = layout.partition_borders(table, rows)
        for begin, end in pairwise(borders):
            first = begin
            while first < end:
                fits = int(np.searchsorted(offsets, offsets[first] + bound, side="right")) - 1
                last = min(max(fits, first + 1), end)
                yield first, last
                first = last

    def _create_one(self, table: StoreTable) -> None:
        self._query(cql_statements.create(self._keyspace, table))
        self._check(table)

    def _check(self, table: StoreTable) -> None:
        found = sorted(tuple(row) for row in self._query(cql_statements.DESCRIBED, [self._keyspace, table.name]))
        if found != cql_statements.shape(table):
            raise StoreError(StoreCode.STORE_MISMATCH, f"keyspace {self._keyspace} holds another table {table.name}")

    def _query(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._retrying(lambda: list(self._writer().execute(query, values)))  # type: ignore[no-any-return]

    def _prepare(self, statement: str) -> PreparedStatement:
        if statement not in self._prepared:
            self._prepared[statement] = self._retrying(lambda: self._writer().prepare(statement))
        return self._prepared[statement]

    def _server_bound(self) -> int:
        found = re.fullmatch(r"(\d+)(B|KiB|MiB)", self._setting("batch_size_warn_threshold") or "")
        scale = {"B": 1, "KiB": 1024, "MiB": 1024 * 1024}
        bound = int(found[1]) * scale[found[2]] if found else _BATCH_BYTES_FALLBACK
        self._batch_bytes = min(bound, _BATCH_BYTES_MAX)
        return self._batch_bytes

    def _setting(self, name: str) -> str | None:
        rows = self._query(cql_statements.SETTING, [name])
        return str(rows[0][0]) if rows else None

    def _writer(self) -> Session:
        return self._session(EncodedBatchProtocol)

    def _session(self, protocol: type) -> Session:
        if protocol not in self._sessions:
            if self._cluster is None:
                self._cluster = self._connected()
            session = self._cluster.connect()
            session.client_protocol_handler = protocol
            session.default_fetch_size = _PAGE_ROWS
            self._sessions[protocol] = session
        return self._sessions[protocol]

    def _connected(self) -> Cluster:
        profile = ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(policies.DCAwareRoundRobinPolicy()),
            consistency_level=ConsistencyLevel.LOCAL_QUORUM,
            # The driver must not retry: this module alone decides whether to try again.
            retry_policy=policies.FallthroughRetryPolicy(),
            request_timeout=_REQUEST_TIMEOUT_S,
            row_factory=tuple_factory,
        )
        cluster = Cluster(
            self._hosts,
            self._port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=policies.ConstantReconnectionPolicy(0.5, max_attempts=None),
            # Version 5 verifies checksums of frames in Python, which costs more than it is worth within one network.
            protocol_version=_PROTOCOL_VERSION,
        )
        try:
            session = cluster.connect()
            nodes = cluster.metadata.all_hosts()
            centre = next(iter(nodes)).datacenter
            copies = self._replication or min(3, sum(node.datacenter == centre for node in nodes))
            session.execute(cql_statements.create_keyspace(self._keyspace, centre, copies))
            session.shutdown()
        except BaseException:
            cluster.shutdown()
            raise
        return cluster

    def _retrying(self, action: Any) -> Any:
        try:
            return self._retry.run(action, lambda error: isinstance(error, _TRANSIENT))
        except _TRANSIENT as error:
            what = f"{type(error).__name__} {error}"[:300]
            raise StoreError(StoreCode.STORE_UNAVAILABLE, f"{','.join(self._hosts)}:{self._port}: {what}") from error


def _routing_keys(table: StoreTable, rows: pa.RecordBatch, at: Sequence[int]) -> list[bytes]:
    """The serialised partition key of the rows at these positions: where the driver sends them."""
    chosen = rows.take(pa.array(at, pa.int64()))
    parts = []
    for name in table.partition_key:
        values = chosen.column(name).to_pylist()
        parts.append([_serialised(value) for value in values])
    if len(parts) == 1:
        return parts[0]
    framed = [[len(value).to_bytes(2, "big") + value + b"\0" for value in column] for column in parts]
    return [b"".join(cells) for cells in zip(*framed, strict=True)]


def _serialised(value: Value) -> bytes:
    match value:
        case int():
            return value.to_bytes(8, "big", signed=True)
        case str():
            return value.encode()
        case _:
            return value


def _token_ranges() -> list[tuple[int, int]]:
    """The whole ring in equal ranges, first end exclusive; the smallest token is never a partition's."""
    cuts = [-(2**63) + 2**64 * part // _SCAN_RANGES for part in range(_SCAN_RANGES)]
    return list(zip(cuts, [*cuts[1:], 2**63 - 1], strict=True))
