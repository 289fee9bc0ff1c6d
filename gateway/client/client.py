"""The client: connections to a cluster, reads, declarations, and sessions.

Owns: the public calls that belong to no session. Writes: :mod:`oncegate.gateway.client.session`. What is beneath both:
:mod:`oncegate.gateway.client.connection`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Literal, Self
from uuid import uuid4

import msgspec

from oncegate.gateway.client.connection import Connection
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.paths import CLUSTER, FLOWS, consumer_path, flow_path, table_path
from oncegate.gateway.client.profiles import Profile, settle
from oncegate.gateway.client.recovery import OnUnknown
from oncegate.gateway.client.results import (
    ClusterInfo,
    Consumer,
    FlowInfo,
    Json,
    Page,
    RequestState,
    Resolution,
    Row,
    TableInfo,
)
from oncegate.gateway.client.session import Session
from oncegate.gateway.client.settings import Consistency, Full, SessionOptions, TableKind, Tuning
from oncegate.gateway.client.tracing import tracing as make_tracing
from oncegate.rifl.ids import LEASE_MS_DEFAULT, WINDOW_DEFAULT, RequestId, parse_request_id


class _Flows(msgspec.Struct):
    flows: list[FlowInfo]


class _Deleted(msgspec.Struct):
    last_batch: int


class Client:
    """A cluster as seen by an application; use as ``async with Client(["http://127.0.0.1:7400"]) as client``.

    Args:
        endpoints: addresses of some nodes; the others are learned. Without them, and with ``profile``, what is not
            given comes from the environment and the profiles file: see :mod:`oncegate.gateway.client.profiles`.
        profile: which profile.
        timeout_s: total time of a call, retries included, unless the call says otherwise; 30 s by default.
        token: sent as ``Authorization: Bearer``.
        token_file: holds the token instead; read again when it has changed.
        ca_file: certificates (PEM) that https endpoints are checked against; the system's by default.
        prefer_leader: send writes and linearizable reads to the leader when it is known; False takes all endpoints
            in turn and lets them forward.
        tls: context for https endpoints, in place of ``ca_file``.
        tuning: how operations travel.
        tracing: whether calls make OpenTelemetry spans; by default, if the application has imported OpenTelemetry.

    Leaving the context closes all open sessions, as leaving each of them would, then the connections.
    """

    __slots__ = ("_connection",)

    def __init__(
        self,
        endpoints: str | Sequence[str] | None = None,
        *,
        profile: str | None = None,
        timeout_s: float | None = None,
        token: str | None = None,
        token_file: str | PathLike[str] | None = None,
        ca_file: str | PathLike[str] | None = None,
        prefer_leader: bool = True,
        tls: ssl.SSLContext | None = None,
        tuning: Tuning | None = None,
        tracing: bool | None = None,
    ) -> None:
        given = Profile(
            [endpoints] if isinstance(endpoints, str) else None if endpoints is None else list(endpoints),
            token,
            None if token_file is None else fspath(token_file),
            None if ca_file is None else fspath(ca_file),
            timeout_s,
        )
        self._connection = Connection(
            settle(given, profile), tuning or Tuning(), make_tracing(tracing), prefer_leader=prefer_leader, tls=tls
        )

    @property
    def timeout_s(self) -> float:
        """Total time of a call that does not say otherwise."""
        return self._connection.timeout_s

    @property
    def highest_commit(self) -> int:
        """Highest commit number that a read of this client has reflected."""
        return self._connection.highest_commit

    # Life

    async def __aenter__(self) -> Self:
        await self._connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close(drain=kind is None or issubclass(kind, Exception))

    def session(
        self,
        *,
        lease_ms: int = LEASE_MS_DEFAULT,
        window: int = WINDOW_DEFAULT,
        full: Full = "wait",
        nonce: str | None = None,
        outbox: str | PathLike[str] | None = None,
        on_unknown: OnUnknown | None = None,
        on_lost: Callable[[OperationFailed], None] | None = None,
    ) -> Session:
        """Return a session to be opened with ``async with``.

        Args:
            lease_ms: how long its memory lasts without a sign of life, 1 second to 24 hours.
            window: writes that may be outstanding, 1..4096; the next one waits, or fails with ``full="fail"``.
            full: see ``window``.
            nonce: 1 to 64 characters that name this open; the same nonce opens the same session. Random by default.
            outbox: a file that keeps writes, ids and payloads, from before they travel until their results are
                known. A restart with the same file goes on in the same session: see
                :mod:`oncegate.gateway.client.recovery`. Give a lease that outlives a restart.
            on_unknown: called when entering finds a write of an earlier process whose outcome cannot be known any
                more; when it returns, the write leaves the outbox. May be a coroutine function. Without it entering
                raises :class:`~oncegate.OutboxUnresolved`.
            on_lost: called once when the session has ended without being closed, with the reason: its lease expired
                or another process took it over. See also :attr:`Session.lost`.
        """
        options = SessionOptions(
            lease_ms=lease_ms,
            window=window,
            full=full,
            outbox=None if outbox is None else fspath(outbox),
            on_unknown=on_unknown,
            on_lost=on_lost,
        )
        return Session(self._connection, options, nonce)

    # Reads

    async def get(
        self,
        table: str,
        key: str,
        *,
        consistency: Consistency = "linearizable",
        min_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Row | None:
        """Read a row.

        Args:
            table: a declared table.
            key: its key.
            consistency: ``linearizable``; ``session``: any node that has applied ``min_commit``; ``stale``: any node.
            min_commit: for ``session``; by default the highest commit number this client has read. A session's own
                :meth:`Session.get` gives what that session has seen.
            timeout_s: total time.

        Returns:
            The row, or None if there is none.

        Raises:
            OperationFailed: NOT_FOUND if there is no such table, or why it could not be read.
        """
        floor = self.highest_commit if min_commit is None else min_commit
        return (await self._connection.look(table, key, consistency, floor, timeout_s))[0]

    async def scan(
        self,
        table: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Page:
        """Read one page of rows in key order; pass ``next`` of a page as ``after`` to read on."""
        query: dict[str, str | int] = {"prefix": prefix} if prefix else {}
        if after is not None:
            query["after"] = after
        if limit is not None:
            query["limit"] = limit
        return await self._connection.ask(f"{table_path(table)}/rows", Page, query, timeout_s=timeout_s)

    async def request(self, client_id: int, sequence: int, *, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id, such as that of an :class:`~oncegate.OutcomeUnknown`."""
        return await self._connection.request(client_id, sequence, timeout_s)

    async def resolve(self, request_id: RequestId | str, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a request id: it was applied, or it never will be.

        Args:
            request_id: from an error or a result, or written as ``client_id/sequence``.
            timeout_s: total time.

        Raises:
            OutcomeUnknown: STALE, SESSION_EXPIRED where the cluster no longer remembers.
            OperationFailed: NOT_FOUND if there never was such a session, or why the cluster could not be asked.
        """
        known = parse_request_id(request_id) if isinstance(request_id, str) else request_id
        return await self._connection.settle(known, {}, timeout_s)

    async def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster as one of its nodes sees it."""
        return await self._connection.ask(CLUSTER, ClusterInfo, timeout_s=timeout_s)

    # Declarations

    async def declare_table(
        self, /, name: str, *, kind: TableKind = "resident", timeout_s: float | None = None, **options: Json
    ) -> TableInfo:
        """Declare a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently.
        """
        info = await self._connection.declare(table_path(name), TableInfo, {"kind": kind, **options}, timeout_s)
        self._connection.kinds.known[name] = info.kind
        return info

    async def table(self, name: str, *, timeout_s: float | None = None) -> TableInfo:
        """Describe a table."""
        info = await self._connection.ask(table_path(name), TableInfo, timeout_s=timeout_s)
        self._connection.kinds.known[name] = info.kind
        return info

    async def declare_flow(
        self, /, name: str, *, source: str, timeout_s: float | None = None, **options: Json
    ) -> FlowInfo:
        """Declare a flow on a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently or would close a cycle.
        """
        return await self._connection.declare(flow_path(name), FlowInfo, {"source": source, **options}, timeout_s)

    async def flow(self, name: str, *, timeout_s: float | None = None) -> FlowInfo:
        """Describe a flow: its batches and its consumers with their lag."""
        return await self._connection.ask(flow_path(name), FlowInfo, timeout_s=timeout_s)

    async def flows(self, *, timeout_s: float | None = None) -> list[FlowInfo]:
        """Describe all flows, in order of declaration."""
        return (await self._connection.ask(FLOWS, _Flows, timeout_s=timeout_s)).flows

    async def alter_flow(
        self, /, name: str, *, version: int | None = None, timeout_s: float | None = None, **changes: Json
    ) -> FlowInfo:
        """Change a flow's ``retention_ms``, ``consumers``, ``consumer_expiry_ms``, ``max_items``, ``max_bytes`` or
        ``linger_ms``.

        A consumer that is not required any more and has never attached is removed; what nobody waits for is dropped.

        Args:
            name: of the flow.
            version: that the caller has seen; by default that of now, asked for first.
            timeout_s: total time.
            changes: the fields that change.

        Raises:
            OperationFailed: CONFLICT if the flow has another version by now, BAD_REQUEST for what cannot change.
        """
        body = {"version": await self._version(name, version, timeout_s), **changes}
        return await self._connection.send("PATCH", flow_path(name), FlowInfo, body, timeout_s)

    async def delete_flow(
        self, name: str, *, version: int | None = None, force: bool = False, timeout_s: float | None = None
    ) -> int:
        """Delete a flow with its batches; returns the number of its last batch, above which the name begins again.

        Args:
            name: of the flow; not the own flow of a stream table, which keeps its rows.
            version: as with :meth:`alter_flow`.
            force: although consumers have attached.
            timeout_s: total time.

        Raises:
            OperationFailed: CONFLICT for another version, or if consumers have attached.
        """
        seen = await self._version(name, version, timeout_s)
        path = f"{flow_path(name)}?version={seen}{'&force=true' if force else ''}"
        return (await self._connection.send("DELETE", path, _Deleted, None, timeout_s)).last_batch

    async def start_consumer(
        self,
        flow: str,
        consumer: str,
        *,
        start: Literal["beginning", "now", "cursor"] | None = None,
        batch: int | None = None,
        time_ms: int | None = None,
        ago_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Consumer:
        """Place a consumer's cursor and fence every instance that has attached; exactly one of the four says where.

        Args:
            flow: its name.
            consumer: its name; made if it is not there, unless it is to start at its cursor.
            start: the oldest batch that is retained, what is sealed from now on, or where its cursor stands, which
                only fences.
            batch: the batch to read next.
            time_ms: a cluster time: what was applied then or later is read.
            ago_ms: the same, counted back from now.
            timeout_s: total time.

        Returns:
            Its new fence, and its cursor.

        Raises:
            OperationFailed: RETENTION_EXCEEDED if what is asked for may have been dropped; BAD_REQUEST, NOT_FOUND.
        """
        asked = {"start": start, "batch": batch, "time_ms": time_ms, "ago_ms": ago_ms}
        body = {"nonce": uuid4().hex, **{name: value for name, value in asked.items() if value is not None}}
        return await self._connection.send("POST", f"{consumer_path(flow, consumer)}/start", Consumer, body, timeout_s)

    async def remove_consumer(
        self, flow: str, consumer: str, *, version: int | None = None, timeout_s: float | None = None
    ) -> FlowInfo:
        """Remove a consumer, required or not, and fence its job; ``version`` as with :meth:`alter_flow`.

        Raises:
            OperationFailed: NOT_FOUND; CONFLICT for another version.
        """
        seen = await self._version(flow, version, timeout_s)
        path = f"{consumer_path(flow, consumer)}?version={seen}"
        return await self._connection.send("DELETE", path, FlowInfo, None, timeout_s)

    async def _version(self, flow: str, version: int | None, timeout_s: float | None) -> int:
        return (await self.flow(flow, timeout_s=timeout_s)).version if version is None else version
