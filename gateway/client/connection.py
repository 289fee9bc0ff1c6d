"""One client's connections to its cluster, shared by its calls and its sessions.

Owns: the HTTP connections and their life, what every request carries, the deadline of a call, the kinds of tables, and
the newest commit number that was read. What applications call is :mod:`oncegate.gateway.client.client`; retries and
routing are :mod:`oncegate.gateway.client.courier`'s.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args
from urllib.parse import urlencode

import aiohttp
import msgspec

from oncegate.gateway.client.arguments import KEY_BYTES_MAX, Encode, bad, name_of, one_of, packed, seconds, text, whole
from oncegate.gateway.client.courier import Call, Courier, JsonCall, at_deadline
from oncegate.gateway.client.direct_http import USER_AGENT, DirectPool
from oncegate.gateway.client.failures import NeverKnown, NotKnownYet, OperationFailed
from oncegate.gateway.client.paths import request_path, resolve_path, row_path, table_path
from oncegate.gateway.client.profiles import SettledProfile, TokenFile, trusted
from oncegate.gateway.client.results import RequestState, Resolution, Row, TableInfo, WriteResult
from oncegate.gateway.client.routing import AttemptFailed, Router
from oncegate.gateway.client.session_life import SessionLife
from oncegate.gateway.client.settings import Consistency, TableKind, Tuning
from oncegate.gateway.client.tracing import Tracing
from oncegate.gateway.client.verdicts import late, not_applied, refused, write_result
from oncegate.gateway.wire import OperationResult
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import ClientId, RequestId, format_client_id

T = TypeVar("T")

_NO_TIMERS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""The courier bounds each attempt as a whole; aiohttp's own timers would only cost time."""


_OPEN: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()
"""The connections of this process that are open; a child that it forks must not use them."""


def _forked() -> None:
    for connection in list(_OPEN):
        connection.forked()
    _OPEN.clear()


os.register_at_fork(after_in_child=_forked)

_GONE: Final = frozenset((Code.FENCED, Code.NOT_FOUND, Code.SESSION_EXPIRED, Code.STALE))
"""Refusals to resolve a request that will not end."""
ASK_AGAIN_S: Final = 1.0
"""How long the failure to learn a kind in passing is remembered."""


class TableKinds:
    """The kind of each table that a client has met, asked for once: only another table of that name has another one.

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

    async def learn(self, table: str, deadline: float) -> TableKind:
        """Return the kind; concurrent callers share one question, and each waits up to its own deadline.

        Raises:
            OncegateError: NOT_FOUND, or why the cluster could not be asked.
        """
        kind = self.known.get(table)
        if kind is not None:
            return kind
        asking = self._task(table)
        await asyncio.wait([asking], timeout=deadline - self._clock())
        if not asking.done():
            raise late(f"nobody told the kind of {table}")
        return asking.result()

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


def _conflict(detail: str) -> OperationFailed:
    return OperationFailed(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED)


_State: TypeAlias = Literal["applied", "refused", "never_seen", "acknowledged", "sealed", "expired"]


class _Told(msgspec.Struct):
    state: _State
    result: OperationResult | None = None

    def result_of(self, client_id: ClientId) -> WriteResult | None:
        return None if self.result is None else write_result(self.result, client_id, 0)


class _RowCall(JsonCall[Row]):
    """Reads a row, unless the one that the caller holds is the newest."""

    __slots__ = ("_held",)

    def __init__(self, path: str, held: Row | None, headers: Mapping[str, str], deadline: float, *, anywhere: bool):
        if held is not None:
            headers = {**headers, "If-None-Match": f'"{held.version}"'}
        super().__init__("GET", path, Row, headers, deadline, anywhere=anywhere)
        self._held = held

    def takes(self, status: int, payload: bytes) -> bool:
        return status == 304 and self._held is not None

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> Row:
        if status != 304 or self._held is None:
            return super().accept(status, headers, payload)
        self._note(headers)
        return msgspec.structs.replace(self._held, commit=self.commit, age_ms=None)


class Connection:
    """The calls of one client; :meth:`open` first, :meth:`close` last.

    ``prefer_leader`` and ``tls`` are those of :class:`oncegate.gateway.client.Client`.

    Attributes:
        headers: what every request carries.
        encode: turns objects that JSON has no type for into what it has, or None.
        highest_commit: highest commit number that an answer has told.
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
        encode: Encode | None = None,
    ) -> None:
        self.encode = encode
        self.timeout_s = settled.timeout_s
        self.tuning = tuning
        self.tracing = tracing
        self.headers: Mapping[str, str] = {} if settled.token is None else {"Authorization": f"Bearer {settled.token}"}
        self.highest_commit = 0
        self.courier: Courier
        self.kinds: TableKinds
        self.http: aiohttp.ClientSession | None = None
        self._refusal: OperationFailed | None = _conflict("the client is not entered: async with Client(...) as client")
        self.router = Router(settled.endpoints, prefer_leader=prefer_leader)
        self._token_file = None if settled.token_file is None else TokenFile(settled.token_file)
        self._tls = tls
        self._ca_file = settled.ca_file
        self._loop: asyncio.AbstractEventLoop
        self._pool: DirectPool
        self._sessions: list[SessionLife] = []
        self.streams: set[aiohttp.ClientResponse] = set()
        """Answers without an end that are being read."""
        self._streams = 0

    async def open(self) -> None:
        """Prepare the connections; raises CONFLICT the second time."""
        if self.http is not None:
            raise _conflict("a client is entered once")
        self._loop = asyncio.get_running_loop()
        authorization = None if self._token_file is None else self._token_file.header
        if authorization is not None:
            authorization()  # a token file without a token is an error now
        tls = self._tls or trusted(self._ca_file)
        connector = aiohttp.TCPConnector(limit=0, ssl=tls or True)
        self.http = aiohttp.ClientSession(
            connector=connector,
            timeout=_NO_TIMERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"User-Agent": USER_AGENT},
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"),
        )
        self._pool = DirectPool(self._loop, tls)
        self.courier = Courier(self.http, self._pool, self.router, self.tuning, self._loop.time, authorization)
        self.kinds = TableKinds(self._kind, self._loop.time)
        self._refusal = None
        _OPEN.add(self)

    async def close(self, *, drain: bool) -> None:
        """Close open sessions as leaving them would, then the connections; nothing in a child process."""
        if self._refusal is not None:
            return
        try:
            await asyncio.gather(*(session.close(drain=drain) for session in list(self._sessions)))
        finally:
            self._refusal = _conflict("the client was left")
            _OPEN.discard(self)
            await self.kinds.close()
            for stream in self.streams:
                stream.close()
            self.courier.close()
            await self._pool.close()
            if self.http is not None:
                await self.http.close()

    def check(self) -> None:
        """Raise CONFLICT unless the client is open, and in this process."""
        if self._refusal is not None:
            raise not_applied(self._refusal)

    def forked(self) -> None:
        """Refuse every call: the connections are those of the parent process."""
        self._refusal = _conflict(f"process {os.getpid()} was forked: it needs a client of its own")
        for session in self._sessions:
            session.forked(self._refusal)

    def adopt(self, session: SessionLife) -> None:
        """Note an open session, to be closed with the connections."""
        self._sessions.append(session)

    def disown(self, session: SessionLife) -> None:
        """Forget a session that closes by itself."""
        if session in self._sessions:
            self._sessions.remove(session)

    @contextmanager
    def stream_place(self) -> Iterator[None]:
        """Have a place for a stream without an end; raises OVERLOADED if all are taken: waiting would have no end."""
        if self._streams >= self.tuning.streams_max:
            detail = f"the client follows {self._streams} streams (Tuning.streams_max): end one, or use another client"
            raise OperationFailed(Code.OVERLOADED, detail)
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def deadline(self, timeout_s: float | None = None) -> float:
        """Return when a call that starts now ends, on the loop's clock; raises as :meth:`check`."""
        self.check()
        return self._loop.time() + (self.timeout_s if timeout_s is None else seconds(timeout_s))

    async def perform(self, call: Call[T]) -> T:
        """Make a call that is not a batch.

        Running out of time is a typed error. Its outcome, and that of a refusal, is ``unknown`` if an earlier attempt
        may have changed something; a read never has.
        """
        try:
            if self.tracing is None:
                return await self.courier.exchange(call)
            with self.tracing.call(call):
                return await self.courier.exchange(call)
        except AttemptFailed as last:
            raise at_deadline(last, ambiguous=call.changes and call.ambiguous) from last.__cause__
        except OncegateError as refusal:
            if not (call.changes and call.ambiguous):
                raise
            failure = refused(refusal, ambiguous=True)  # an attempt before the one that was refused may have ended well
            raise failure from failure.__cause__

    async def ask(
        self,
        path: str,
        shape: type[T],
        query: Mapping[str, str | int] | None = None,
        *,
        anywhere: bool = False,
        timeout_s: float | None = None,
        waits_s: float = 0.0,
    ) -> T:
        """Get a document of type ``shape``, for which the node may wait so long; raises BAD_REQUEST for a query of
        neither texts nor whole numbers.
        """
        if query:
            for name, value in query.items():
                whole(value, name, 0) if isinstance(value, int) else text(value, name, KEY_BYTES_MAX)
            path = f"{path}?{urlencode(query)}"
        deadline = self.deadline(timeout_s)
        call = JsonCall("GET", path, shape, self.headers, deadline, anywhere=anywhere)
        call.waits_s = waits_s
        return await self.perform(call)

    async def declare(self, path: str, shape: type[T], body: Mapping[str, object], timeout_s: float | None) -> T:
        """Put a declaration; the answer describes what is declared."""
        return await self.send("PUT", path, shape, body, timeout_s)

    async def send(
        self, method: str, path: str, shape: type[T], body: Mapping[str, object] | None, timeout_s: float | None
    ) -> T:
        """Send a request that may be sent again; the answer is a document of type ``shape``."""
        sent = None if body is None else dict(body)
        packed(sent, "the request")  # JSON has to be able to say it
        return await self.perform(JsonCall(method, path, shape, self.headers, self.deadline(timeout_s), body=sent))

    async def look(
        self,
        table: str,
        key: str,
        consistency: Consistency,
        min_commit: int,
        timeout_s: float | None,
        held: Row | None = None,
    ) -> tuple[Row | None, int]:
        """Read a row; returns the commit number that the answer reflects with the row, or without one."""
        if held is not None and (not isinstance(held, Row) or held.key != key):
            raise bad("held is a row of this key that was read before")
        level = one_of(consistency, "consistency", get_args(Consistency))
        query: dict[str, str | int] = {} if level == "linearizable" else {"consistency": level}
        if level == "session":
            query["min_commit"] = whole(min_commit, "min_commit", 0)
        path, row = f"{row_path(table, key)}{'?' if query else ''}{urlencode(query)}", None
        call = _RowCall(path, held, self.headers, self.deadline(timeout_s), anywhere=bool(query))
        try:
            row = await self.perform(call)
        except OperationFailed as failure:
            if failure.code is not Code.NOT_FOUND:
                raise
            # No such row, or no such table? The kind of a known table is cached, so this asks once a table at most.
            await self.kinds.learn(name_of(table), call.deadline)
        if row is not None and call.age_ms is not None:
            row = msgspec.structs.replace(row, age_ms=call.age_ms)
        commit = call.commit if row is None else row.commit
        self.saw(commit)
        return row, commit

    def saw(self, commit: int) -> None:
        """Have reads of consistency ``session`` reflect this commit number from now on."""
        self.highest_commit = max(self.highest_commit, commit)

    async def request(self, client_id: int, sequence: int, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id."""
        path = request_path(format_client_id(whole(client_id, "client_id")), whole(sequence, "sequence"))
        told = await self.ask(path, _Told, timeout_s=timeout_s)
        result = told.result_of(ClientId(client_id))
        return RequestState(told.state, result)

    async def settle(self, request_id: RequestId, owner: Mapping[str, int], timeout_s: float | None) -> Resolution:
        """Resolve a request id; ``owner``: epoch and first incomplete, where it is the session itself that asks.

        Raises:
            NotKnownYet: the cluster could not be asked, whatever is wrong.
            NeverKnown: it no longer remembers, or another process owns the session.
        """
        path = resolve_path(format_client_id(request_id.client_id), request_id.sequence)
        call = JsonCall("POST", path, _Told, self.headers, self.deadline(timeout_s), body=owner)
        try:
            told = await self.perform(call)
        except OncegateError as failure:
            # Outcome and class of the failure are the question's: "not applied" would be read as the write's fate.
            kind = NeverKnown if failure.code in _GONE else NotKnownYet
            raise kind(
                failure.code,
                f"could not be resolved: {failure.detail or failure.title}",
                request_id=request_id,
                retry_after_ms=failure.retry_after_ms,
                outcome=Outcome.UNKNOWN,
            ) from failure
        result = told.result_of(request_id.client_id)
        match told.state:
            case "applied" | "refused" | "sealed" as state:
                return Resolution(state, result)
            case "acknowledged":
                raise NeverKnown(Code.STALE, "its owner has acknowledged it", request_id=request_id)
            case _:
                raise NeverKnown(Code.SESSION_EXPIRED, "its session is forgotten", request_id=request_id)

    def remembered(self, request_id: RequestId) -> Resolution | None:
        """Return the fate of a request of one of the open sessions, if its session knows it; the caller is told."""
        for session in self._sessions:
            fate = session.sender.tell(request_id)
            if fate is not None:
                return fate
        return None

    async def _kind(self, table: str) -> TableKind:
        return (await self.ask(table_path(table), TableInfo)).kind
