"""The client: connections to a cluster, reads, declarations, and sessions.

Owns: the public calls that belong to no session, and the life of the connections. Writes:
:mod:`oncegate.gateway.client.session`. Retries and routing: :mod:`oncegate.gateway.client.courier`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from oncegate.gateway.client.courier import Call, Courier, at_deadline
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.json_call import JsonCall
from oncegate.gateway.client.paths import CLUSTER, flow_path, request_path, resolve_path, row_path, table_path
from oncegate.gateway.client.profiles import Profile, TokenFile, settle, trusted
from oncegate.gateway.client.recovery import OnUnknown
from oncegate.gateway.client.results import ClusterInfo, FlowInfo, Page, RequestState, Resolution, Row, TableInfo
from oncegate.gateway.client.retry import AttemptFailed
from oncegate.gateway.client.routing import Router
from oncegate.gateway.client.session import Session
from oncegate.gateway.client.session_life import SessionLife
from oncegate.gateway.client.settings import Consistency, Full, SessionOptions, TableKind, Tuning
from oncegate.gateway.client.tables import TableKinds
from oncegate.gateway.client.tracing import tracing as make_tracing
from oncegate.gateway.client.verdicts import write_result
from oncegate.gateway.wire import OperationResult
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import LEASE_MS_DEFAULT, WINDOW_DEFAULT, ClientId, RequestId, format_client_id, parse_request_id

T = TypeVar("T")

_NO_TIMERS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""The courier bounds each attempt as a whole; aiohttp's own timers would only cost time."""


class _Resolved(msgspec.Struct):
    state: Literal["applied", "sealed", "acknowledged", "expired"]
    result: OperationResult | None = None


class _RequestTold(msgspec.Struct):
    state: Literal["applied", "never_seen", "acknowledged", "sealed", "expired"]
    result: OperationResult | None = None


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

    Leaving closes open sessions as leaving them would, then the connections.
    """

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
        settled = settle(given, profile)
        self.timeout_s = settled.timeout_s
        self.tuning = tuning or Tuning()
        self.headers: Mapping[str, str] = {} if settled.token is None else {"Authorization": f"Bearer {settled.token}"}
        self._token_file = None if settled.token_file is None else TokenFile(settled.token_file)
        self.tracing = make_tracing(tracing)
        self.courier: Courier
        self.kinds: TableKinds
        self.highest_commit = 0
        """Highest commit number that a read of this client has reflected."""
        self._router = Router(settled.endpoints, prefer_leader=prefer_leader)
        self._tls = tls
        self._ca_file = settled.ca_file
        self._http: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop
        self._sessions: list[SessionLife] = []

    # Life

    async def __aenter__(self) -> Self:
        if self._http is not None:
            raise OperationFailed(Code.CONFLICT, "a client is entered once", outcome=Outcome.NOT_APPLIED)
        self._loop = asyncio.get_running_loop()
        authorization = None if self._token_file is None else self._token_file.header
        if authorization is not None:
            authorization()  # a file without a token is told now
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or trusted(self._ca_file) or True)
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=_NO_TIMERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        self.courier = Courier(self._http, self._router, self.tuning, self._loop.time, authorization)
        self.kinds = TableKinds(self._kind, self._loop.time)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        drain = kind is None or issubclass(kind, Exception)
        try:
            await asyncio.gather(*(session.close(drain=drain) for session in list(self._sessions)))
        finally:
            await self.kinds.close()
            if self._http is not None:
                await self._http.close()

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
                raises :class:`OutboxUnresolved`.
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
        return Session(self, options, nonce)

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
        return (await self.look(table, key, consistency, floor, timeout_s))[0]

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
        return await self._ask(f"{table_path(table)}/rows", Page, query, timeout_s=timeout_s)

    async def request(self, client_id: int, sequence: int, *, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id, such as that of an :class:`OutcomeUnknown`."""
        path = request_path(format_client_id(client_id), sequence)
        told = await self._ask(path, _RequestTold, timeout_s=timeout_s)
        result = None if told.result is None else write_result(told.result, ClientId(client_id), 0)
        return RequestState(told.state, result)

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
        return await self.settle(known, {}, timeout_s)

    async def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster as one of its nodes sees it."""
        return await self._ask(CLUSTER, ClusterInfo, timeout_s=timeout_s)

    # Declarations

    async def declare_table(
        self, name: str, *, kind: TableKind = "resident", timeout_s: float | None = None, **options: Any
    ) -> TableInfo:
        """Declare a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently.
        """
        info = await self._declare(table_path(name), TableInfo, {"kind": kind, **options}, timeout_s)
        self.kinds.known[name] = info.kind
        return info

    async def table(self, name: str, *, timeout_s: float | None = None) -> TableInfo:
        """Describe a table."""
        info = await self._ask(table_path(name), TableInfo, timeout_s=timeout_s)
        self.kinds.known[name] = info.kind
        return info

    async def declare_flow(self, name: str, *, source: str, timeout_s: float | None = None, **options: Any) -> FlowInfo:
        """Declare a flow on a table; declaring it again as it is changes nothing.

        Raises:
            OperationFailed: CONFLICT if it is declared differently or would close a cycle.
        """
        return await self._declare(flow_path(name), FlowInfo, {"source": source, **options}, timeout_s)

    async def flow(self, name: str, *, timeout_s: float | None = None) -> FlowInfo:
        """Describe a flow: its batches and its consumers with their lag."""
        return await self._ask(flow_path(name), FlowInfo, timeout_s=timeout_s)

    # For the modules of the SDK

    async def look(
        self, table: str, key: str, consistency: Consistency, min_commit: int, timeout_s: float | None
    ) -> tuple[Row | None, int]:
        """As :meth:`get`; returns the commit number that the answer reflects with the row, or without one."""
        query: dict[str, str | int] = {} if consistency == "linearizable" else {"consistency": consistency}
        if consistency == "session":
            query["min_commit"] = min_commit
        path, row = f"{row_path(table, key)}{'?' if query else ''}{urlencode(query)}", None
        call = JsonCall("GET", path, Row, self.headers, self.deadline(timeout_s), anywhere=bool(query))
        try:
            row = await self.perform(call)
        except OperationFailed as failure:
            if failure.code is not Code.NOT_FOUND:
                raise
            # No such row, or no such table? The kind of a known table is cached, so this asks once a table at most.
            await self.kinds.learn(table)
        if row is not None and call.age_ms is not None:
            row = msgspec.structs.replace(row, age_ms=call.age_ms)
        commit = call.commit if row is None else row.commit
        self.highest_commit = max(self.highest_commit, commit)
        return row, commit

    def deadline(self, timeout_s: float | None = None) -> float:
        """Return when a call that starts now ends, on the loop's clock."""
        return self._loop.time() + (self.timeout_s if timeout_s is None else timeout_s)

    async def perform(self, call: Call[T]) -> T:
        """Make a call that is not a batch; running out of time is a typed error."""
        try:
            if self.tracing is None:
                return await self.courier.exchange(call)
            with self.tracing.call(call):
                return await self.courier.exchange(call)
        except AttemptFailed as last:
            raise at_deadline(last, ambiguous=call.ambiguous) from last.__cause__

    async def settle(self, request_id: RequestId, owner: Mapping[str, int], timeout_s: float | None) -> Resolution:
        """Resolve a request id; ``owner``: epoch and first incomplete, where it is the session itself that asks."""
        path = resolve_path(format_client_id(request_id.client_id), request_id.sequence)
        call = JsonCall("POST", path, _Resolved, self.headers, self.deadline(timeout_s), body=owner)
        told = await self.perform(call)
        match told.state:
            case "acknowledged":
                raise OutcomeUnknown(Code.STALE, "its owner has acknowledged it", request_id=request_id)
            case "expired":
                raise OutcomeUnknown(Code.SESSION_EXPIRED, "its session is forgotten", request_id=request_id)
            case state:
                result = None if told.result is None else write_result(told.result, request_id.client_id, 0)
                return Resolution(state, result)

    def adopt(self, session: SessionLife) -> None:
        """Note an open session, to be closed with the client."""
        self._sessions.append(session)

    def disown(self, session: SessionLife) -> None:
        """Forget a session that closes by itself."""
        if session in self._sessions:
            self._sessions.remove(session)

    async def _ask(
        self,
        path: str,
        shape: type[T],
        query: Mapping[str, str | int] | None = None,
        *,
        anywhere: bool = False,
        timeout_s: float | None = None,
    ) -> T:
        if query:
            path = f"{path}?{urlencode(query)}"
        return await self.perform(
            JsonCall("GET", path, shape, self.headers, self.deadline(timeout_s), anywhere=anywhere)
        )

    async def _declare(self, path: str, shape: type[T], body: Mapping[str, Any], timeout_s: float | None) -> T:
        return await self.perform(JsonCall("PUT", path, shape, self.headers, self.deadline(timeout_s), body=dict(body)))

    async def _kind(self, table: str) -> TableKind:
        return (await self._ask(table_path(table), TableInfo)).kind
