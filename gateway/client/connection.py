"""One client's connections to its cluster, shared by its calls and its sessions.

Owns: the HTTP connections and their life, what every request carries, the deadline of a call, the kinds of tables, and
the newest commit number that was read. What applications call is :mod:`oncegate.gateway.client.client`; retries and
routing are :mod:`oncegate.gateway.client.courier`'s.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec

from oncegate.gateway.client.courier import Call, Courier, JsonCall, at_deadline
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.paths import request_path, resolve_path, row_path, table_path
from oncegate.gateway.client.profiles import SettledProfile, TokenFile, trusted
from oncegate.gateway.client.results import RequestState, Resolution, Row, TableInfo, WriteResult
from oncegate.gateway.client.routing import AttemptFailed, Router
from oncegate.gateway.client.session_life import SessionLife
from oncegate.gateway.client.settings import Consistency, TableKind, Tuning
from oncegate.gateway.client.tracing import Tracing
from oncegate.gateway.client.verdicts import write_result
from oncegate.gateway.wire import OperationResult
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import ClientId, RequestId, format_client_id

T = TypeVar("T")

_NO_TIMERS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""The courier bounds each attempt as a whole; aiohttp's own timers would only cost time."""


ASK_AGAIN_S: Final = 1.0
"""How long the failure to learn a kind in passing is remembered."""


class TableKinds:
    """The kind of each table that a client has met, asked for once: it never changes.

    Args:
        ask: asks the cluster; raises NOT_FOUND for a table that is not declared.
        clock: monotonic seconds.
    """

    def __init__(self, ask: Callable[[str], Coroutine[Any, Any, TableKind]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self.known: dict[str, TableKind] = {}
        self._asking: dict[str, asyncio.Task[TableKind]] = {}
        self._not_before: dict[str, float] = {}

    async def learn(self, table: str) -> TableKind:
        """Return the kind; concurrent callers share one question.

        Raises:
            OncegateError: NOT_FOUND, or why the cluster could not be asked.
        """
        kind = self.known.get(table)
        if kind is not None:
            return kind
        return await asyncio.shield(self._task(table))

    def wonder(self, table: str) -> None:
        """Learn the kind in the background; after a failure a later call asks again."""
        if table in self._asking or self._not_before.get(table, 0.0) > self._clock():
            return
        self._task(table)

    async def close(self) -> None:
        """End the questions under way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, table: str) -> asyncio.Task[TableKind]:
        task = self._asking.get(table)
        if task is None:
            task = self._asking[table] = asyncio.create_task(self._ask(table))
            task.add_done_callback(lambda done: self._learned(table, done))
        return task

    def _learned(self, table: str, task: asyncio.Task[TableKind]) -> None:
        del self._asking[table]
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self.known[table] = task.result()
        elif isinstance(failure, OncegateError):
            self._not_before[table] = self._clock() + ASK_AGAIN_S


class _Told(msgspec.Struct):
    state: Literal["applied", "never_seen", "acknowledged", "sealed", "expired"]
    result: OperationResult | None = None

    def result_of(self, client_id: ClientId) -> WriteResult | None:
        return None if self.result is None else write_result(self.result, client_id, 0)


class Connection:
    """The calls of one client; :meth:`open` first, :meth:`close` last.

    ``prefer_leader`` and ``tls`` are those of :class:`oncegate.gateway.client.Client`.

    Attributes:
        headers: what every request carries.
        highest_commit: highest commit number that a read has reflected.
        courier, kinds, http: from :meth:`open` on.
    """

    def __init__(
        self,
        settled: SettledProfile,
        tuning: Tuning,
        tracing: Tracing | None,
        *,
        prefer_leader: bool,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.timeout_s = settled.timeout_s
        self.tuning = tuning
        self.tracing = tracing
        self.headers: Mapping[str, str] = {} if settled.token is None else {"Authorization": f"Bearer {settled.token}"}
        self.highest_commit = 0
        self.courier: Courier
        self.kinds: TableKinds
        self.http: aiohttp.ClientSession | None = None
        self.router = Router(settled.endpoints, prefer_leader=prefer_leader)
        self._token_file = None if settled.token_file is None else TokenFile(settled.token_file)
        self._tls = tls
        self._ca_file = settled.ca_file
        self._loop: asyncio.AbstractEventLoop
        self._sessions: list[SessionLife] = []

    async def open(self) -> None:
        """Prepare the connections; raises CONFLICT the second time."""
        if self.http is not None:
            raise OperationFailed(Code.CONFLICT, "a client is entered once", outcome=Outcome.NOT_APPLIED)
        self._loop = asyncio.get_running_loop()
        authorization = None if self._token_file is None else self._token_file.header
        if authorization is not None:
            authorization()  # a token file without a token is an error now
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or trusted(self._ca_file) or True)
        self.http = aiohttp.ClientSession(
            connector=connector,
            timeout=_NO_TIMERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )
        self.courier = Courier(self.http, self.router, self.tuning, self._loop.time, authorization)
        self.kinds = TableKinds(self._kind, self._loop.time)

    async def close(self, *, drain: bool) -> None:
        """Close open sessions as leaving them would, then the connections."""
        try:
            await asyncio.gather(*(session.close(drain=drain) for session in list(self._sessions)))
        finally:
            await self.kinds.close()
            if self.http is not None:
                await self.http.close()

    def adopt(self, session: SessionLife) -> None:
        """Note an open session, to be closed with the connections."""
        self._sessions.append(session)

    def disown(self, session: SessionLife) -> None:
        """Forget a session that closes by itself."""
        if session in self._sessions:
            self._sessions.remove(session)

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

    async def ask(
        self, path: str, shape: type[T], query: Mapping[str, str | int] | None = None, *, timeout_s: float | None = None
    ) -> T:
        """Get a document of type ``shape``."""
        if query:
            path = f"{path}?{urlencode(query)}"
        return await self.perform(JsonCall("GET", path, shape, self.headers, self.deadline(timeout_s)))

    async def declare(self, path: str, shape: type[T], body: Mapping[str, object], timeout_s: float | None) -> T:
        """Put a declaration; the answer describes what is declared."""
        return await self.send("PUT", path, shape, body, timeout_s)

    async def send(
        self, method: str, path: str, shape: type[T], body: Mapping[str, object] | None, timeout_s: float | None
    ) -> T:
        """Send a request that may be sent again; the answer is a document of type ``shape``."""
        sent = None if body is None else dict(body)
        return await self.perform(JsonCall(method, path, shape, self.headers, self.deadline(timeout_s), body=sent))

    async def look(
        self, table: str, key: str, consistency: Consistency, min_commit: int, timeout_s: float | None
    ) -> tuple[Row | None, int]:
        """Read a row; returns the commit number that the answer reflects with the row, or without one."""
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

    async def request(self, client_id: int, sequence: int, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id."""
        path = request_path(format_client_id(client_id), sequence)
        told = await self.ask(path, _Told, timeout_s=timeout_s)
        return RequestState(told.state, told.result_of(ClientId(client_id)))

    async def settle(self, request_id: RequestId, owner: Mapping[str, int], timeout_s: float | None) -> Resolution:
        """Resolve a request id; ``owner``: epoch and first incomplete, where it is the session itself that asks.

        Raises:
            OutcomeUnknown: STALE, SESSION_EXPIRED where the cluster no longer remembers.
        """
        path = resolve_path(format_client_id(request_id.client_id), request_id.sequence)
        told = await self.perform(JsonCall("POST", path, _Told, self.headers, self.deadline(timeout_s), body=owner))
        match told.state:
            case "applied" | "sealed" as state:
                return Resolution(state, told.result_of(request_id.client_id))
            case "acknowledged":
                raise OutcomeUnknown(Code.STALE, "its owner has acknowledged it", request_id=request_id)
            case _:
                raise OutcomeUnknown(Code.SESSION_EXPIRED, "its session is forgotten", request_id=request_id)

    async def _kind(self, table: str) -> TableKind:
        return (await self.ask(table_path(table), TableInfo)).kind
