"""The connection of one process to a Cassandra cluster: sessions, prepared statements, and how long to try.

Owns: cluster and sessions, which are made at first use and never across a fork, and the policies of the driver. Must
not know tables, and never changes a schema by itself. Read next: :mod:`oncegate.stores.cassandra.options`,
:mod:`oncegate.stores.cassandra.failures`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from cassandra import policies
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.connection import locally_supported_compressions
from cassandra.query import PreparedStatement, tuple_factory

from oncegate.stores.cassandra.encoding import EncodedBatchProtocol, PageProtocol
from oncegate.stores.cassandra.failures import FAILURES, transient, translated
from oncegate.stores.cassandra.options import CassandraOptions
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.retry import Retry

T = TypeVar("T")

READ: Final = "read"
"""Execution profile of reads; writes have the default one."""
SCAN: Final = "scan"
"""Execution profile of reads of many rows."""
_SCAN_TIMES: Final = 4
_PAGE_ROWS: Final = 20_000
_PROTOCOL_VERSION: Final = 4
_RECONNECT_S: Final = (0.5, 10.0)
_COMPRESSION: Final = "lz4"
_LOG: Final = logging.getLogger(__name__)
_SETTING: Final = "SELECT value FROM system_views.settings WHERE name = %s"


class _BatchesAsMeant(logging.Filter):
    """Drops the warning that the driver logs for each batch over several partitions: `placement` means them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Unlogged batch covering" not in record.getMessage()


logging.getLogger("cassandra.protocol").addFilter(_BatchesAsMeant())


def _has_lz4() -> bool:
    """Return whether the driver has found LZ4; without it, it would say nothing and not compress, or otherwise."""
    if _COMPRESSION in locally_supported_compressions:
        return True
    _LOG.warning("rows travel uncompressed: the package lz4 is missing; oncegate[cassandra] brings it")
    return False


class Connection:
    """A lazily opened connection; every method but `close` may raise a `StoreError` and tries for ``retry_s``."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options
        self._retry = Retry(options.retry_s)
        self._cluster: Cluster | None = None
        self._sessions: dict[type, Session] = {}
        self._prepared: dict[str, PreparedStatement] = {}

    @property
    def place(self) -> str:
        """Contact points and keyspace, for errors; no secret."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self._options.places)
        return f"cassandra://{hosts}/{self._options.keyspace}"

    def retrying(self, action: Callable[[], T]) -> T:
        """Return what ``action`` returns; an idempotent one is repeated while the cluster does not answer.

        Raises:
            StoreError: STORE_UNAVAILABLE, after ``retry_s``; STORE_MISMATCH, without keyspace or table; STORE_REFUSED,
                by log-in, certificate or permission.
        """
        try:
            return self._retry.run(action, transient)
        except FAILURES as error:
            raise translated(error, self.place) from error

    def query(self, query: str, values: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of an idempotent statement."""
        return self.retrying(lambda: list(self.writer().execute(query, values)))

    def prepare(self, statement: str) -> PreparedStatement:
        """Return the prepared statement, made once."""
        if statement not in self._prepared:
            self._prepared[statement] = self.retrying(lambda: self.writer().prepare(statement))
        return self._prepared[statement]

    def setting(self, name: str) -> str | None:
        """Return a setting of the server, None if it has none of that name, or hides it from this user."""
        try:
            rows = self.query(_SETTING, [name])
        except StoreError as error:
            if error.code is StoreCode.STORE_UNAVAILABLE:
                raise
            return None
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    def writer(self) -> Session:
        """Return the session of batches and single rows; raises the driver's errors."""
        return self._session(EncodedBatchProtocol)

    def pages(self) -> Session:
        """Return the session whose rows come as pages, Arrow batches; raises the driver's errors."""
        return self._session(PageProtocol)

    def nodes_by_centre(self) -> dict[str, int]:
        """Return how many nodes each data centre has, the local one first."""
        self.retrying(self.writer)
        nodes = [node.datacenter for node in self.metadata().all_hosts()]
        local = self._options.data_centre or self._local.local_dc or nodes[0]
        return {centre: nodes.count(centre) for centre in sorted(set(nodes), key=lambda one: (one != local, one))}

    def metadata(self) -> Any:
        """Return what the driver knows of the cluster; only once a session is there."""
        if self._cluster is None:
            raise RuntimeError("no session yet")
        return self._cluster.metadata

    def close(self) -> None:
        """Close all connections; idempotent."""
        cluster, self._cluster = self._cluster, None
        self._sessions.clear()
        self._prepared.clear()
        if cluster is not None:
            cluster.shutdown()

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
        options = self._options
        self._local = policies.DCAwareRoundRobinPolicy(options.data_centre or "")
        balanced = policies.TokenAwarePolicy(self._local)
        timeout_s = options.request_timeout_s

        def profile(level: int, seconds: float) -> ExecutionProfile:
            return ExecutionProfile(
                load_balancing_policy=balanced,
                consistency_level=level,
                # The driver must not retry: `Retry` alone decides whether to try again.
                retry_policy=policies.FallthroughRetryPolicy(),
                request_timeout=seconds,
                row_factory=tuple_factory,
            )

        login = PlainTextAuthProvider(options.user, options.password()) if options.user is not None else None
        cluster = Cluster(
            list(options.places),
            options.places[0][1],
            auth_provider=login,
            ssl_context=options.ssl_context(),
            ssl_options={"server_hostname": options.tls_name} if options.tls_name is not None else None,
            execution_profiles={
                EXEC_PROFILE_DEFAULT: profile(options.write_level, timeout_s),
                READ: profile(options.read_level, timeout_s),
                SCAN: profile(options.read_level, timeout_s * _SCAN_TIMES),
            },
            # Each node has its own back-off; a node that is up again is also announced by the others.
            reconnection_policy=policies.ExponentialReconnectionPolicy(*_RECONNECT_S, max_attempts=None),
            connect_timeout=options.connect_timeout_s,
            control_connection_timeout=timeout_s,
            # Version 5 verifies checksums of frames in Python, which costs more than it is worth within one network.
            protocol_version=_PROTOCOL_VERSION,
            # Where the server has it too; else everything travels as it is.
            compression=options.compression and _has_lz4(),
        )
        try:
            cluster.connect().shutdown()
        except NoHostAvailable:
            centres = {node.datacenter for node in cluster.metadata.all_hosts()} - {None}
            cluster.shutdown()
            if centres and options.data_centre not in (None, *centres):
                raise StoreError(
                    StoreCode.BAD_OPTION, f"data_centre must be one of {', '.join(sorted(centres))}"
                ) from None
            raise
        except BaseException:
            cluster.shutdown()
            raise
        return cluster
