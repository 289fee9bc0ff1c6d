"""The SDK for scripts and notebooks: the same names, results and errors, without ``await``.

Owns: which calls there are, opening a session at its first call, and the bound on writes submitted from other threads.
What a call does, and what its arguments mean: :mod:`oncegate.gateway.client.client` and
:mod:`oncegate.gateway.client.session`. How it gets to an event loop and back:
:mod:`oncegate.gateway.client.sync_crossing`. Safe to use from several threads.

``with Client(...) as client, client.session() as session: ...``; in a notebook, without ``with``: both open at the
first call and close with :meth:`Client.close`, or when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import ssl
import threading
from collections.abc import Callable, Coroutine, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack

from msgspec import UnsetType

from oncegate.gateway.client import client as asynchronous
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.outbox_file import OutboxEntry
from oncegate.gateway.client.places import window_full
from oncegate.gateway.client.recovery import Recovered
from oncegate.gateway.client.results import Json, WriteResult
from oncegate.gateway.client.session import Session as AsyncSession
from oncegate.gateway.client.settings import Full, Tuning
from oncegate.gateway.client.sync_crossing import Crossing, Doubt, crossed
from oncegate.gateway.client.writes import UNSET, OperationName
from oncegate.rifl.ids import WINDOW_DEFAULT, ClientId, Epoch

__all__ = ["Client", "Doubt", "Session"]

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")


class _Facade(Protocol[A_co]):
    """An object of this module: it has one of the asynchronous SDK, and the way to its loop."""

    _crossing: Crossing

    def _opened(self) -> A_co: ...


def _without_await(
    method: Callable[Concatenate[A_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Facade[A_co], P], T]:
    """Return a call of the asynchronous SDK in the form that runs it on the client's loop and waits for it."""

    @functools.wraps(method)
    def call(self: _Facade[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._crossing.run(method(self._opened(), *args, **kwargs))

    return call


class ClientArguments(TypedDict, total=False):
    """Keyword arguments of :class:`oncegate.gateway.client.Client`."""

    profile: str | None
    timeout_s: float | None
    token: str | None
    token_file: str | PathLike[str] | None
    ca_file: str | PathLike[str] | None
    prefer_leader: bool
    tls: ssl.SSLContext | None
    tuning: Tuning | None
    tracing: bool | None


class SessionArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Client.session`, beside its window and ``on_unknown``."""

    lease_ms: int
    full: Full
    nonce: str | None
    outbox: str | PathLike[str] | None
    on_lost: Callable[[OperationFailed], None] | None


class SubmitArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Session.submit`."""

    by: int
    if_absent: bool
    if_version: int | None
    if_value: Json | UnsetType
    position: Json
    timeout_s: float | None


class Client:
    """A cluster as seen by a script; arguments as :class:`oncegate.gateway.client.Client`."""

    def __init__(self, endpoints: str | Sequence[str] | None = None, **options: Unpack[ClientArguments]) -> None:
        self._client = asynchronous.Client(endpoints, **options)
        self._crossing = Crossing(self._client)

    def _opened(self) -> asynchronous.Client:
        return self._client

    @property
    def timeout_s(self) -> float:
        """Total time of a call that does not say otherwise."""
        return self._client.timeout_s

    @property
    def highest_commit(self) -> int:
        """Highest commit number that a read of this client has reflected."""
        return self._client.highest_commit

    def __enter__(self) -> Self:
        self._crossing.thread()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._crossing.close(kind, error, trace)

    def close(self) -> None:
        """Close open sessions as leaving them would, then the connections; idempotent."""
        self._crossing.close()

    def session(
        self,
        *,
        on_unknown: Callable[[OutboxEntry], None] | None = None,
        window: int = WINDOW_DEFAULT,
        **options: Unpack[SessionArguments],
    ) -> Session:
        """Return a session; arguments as :meth:`oncegate.gateway.client.Client.session`. ``on_unknown`` runs in a
        thread.
        """

        async def note(entry: OutboxEntry) -> None:
            if on_unknown is not None:
                await asyncio.to_thread(on_unknown, entry)

        session = self._client.session(on_unknown=None if on_unknown is None else note, window=window, **options)
        return Session(self._crossing, session, window, fail=options.get("full") == "fail")

    get = _without_await(asynchronous.Client.get)
    scan = _without_await(asynchronous.Client.scan)
    request = _without_await(asynchronous.Client.request)
    resolve = _without_await(asynchronous.Client.resolve)
    cluster = _without_await(asynchronous.Client.cluster)
    declare_table = _without_await(asynchronous.Client.declare_table)
    table = _without_await(asynchronous.Client.table)
    declare_flow = _without_await(asynchronous.Client.declare_flow)
    flow = _without_await(asynchronous.Client.flow)
    flows = _without_await(asynchronous.Client.flows)
    alter_flow = _without_await(asynchronous.Client.alter_flow)
    delete_flow = _without_await(asynchronous.Client.delete_flow)
    start_consumer = _without_await(asynchronous.Client.start_consumer)
    remove_consumer = _without_await(asynchronous.Client.remove_consumer)


class Session:
    """Writes with exactly-once effect; see :class:`oncegate.gateway.client.Session`, whose names these are."""

    def __init__(self, crossing: Crossing, session: AsyncSession, window: int, *, fail: bool) -> None:
        self._crossing = crossing
        self._session = session
        self._places = threading.BoundedSemaphore(window)
        self._fail = fail
        self._lock = threading.Lock()
        self._entered = False

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._crossing.run(self._session.__aexit__(kind, error, trace))

    def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent."""
        if self._entered:
            self._crossing.run(self._session.close(drain=drain))

    def _opened(self) -> AsyncSession:
        with self._lock:
            if not self._entered:
                self._crossing.run(self._session.__aenter__())
                self._entered = True
        return self._session

    @property
    def client_id(self) -> ClientId:
        """The session's id."""
        return self._opened().client_id

    @property
    def epoch(self) -> Epoch:
        """The session's epoch."""
        return self._opened().epoch

    @property
    def highest_commit(self) -> int:
        """Highest commit number that this session has seen."""
        return self._opened().highest_commit

    @property
    def outstanding(self) -> int:
        """Writes without a verdict."""
        return self._opened().outstanding

    @property
    def memory_ms_left(self) -> int:
        """How long the session's memory is guaranteed from now on."""
        return self._opened().memory_ms_left

    @property
    def position(self) -> Json:
        """The position that came with the newest write in the outbox."""
        return self._opened().position

    @property
    def recovered(self) -> list[Recovered]:
        """The writes of an earlier process that entering the session has settled."""
        return self._opened().recovered

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended without being closed."""
        return self._opened().lost.is_set()

    drain = _without_await(AsyncSession.drain)
    resolve = _without_await(AsyncSession.resolve)
    put = _without_await(AsyncSession.put)
    insert = _without_await(AsyncSession.insert)
    delete = _without_await(AsyncSession.delete)
    increment = _without_await(AsyncSession.increment)
    append = _without_await(AsyncSession.append)
    get_remembered = _without_await(AsyncSession.get_remembered)
    put_many = _without_await(AsyncSession.put_many)
    get = _without_await(AsyncSession.get)

    def submit(
        self,
        operation: OperationName,
        table: str,
        key: str,
        value: Json | UnsetType = UNSET,
        **options: Unpack[SubmitArguments],
    ) -> concurrent.futures.Future[WriteResult]:
        """Start a write and return its future; waits while as many are outstanding as the window has places.

        Raises:
            OperationFailed: WINDOW_FULL instead of waiting, in a session opened with ``full="fail"``.
        """
        session = self._opened()
        if not self._places.acquire(blocking=not self._fail):
            raise window_full()
        future: concurrent.futures.Future[WriteResult] = concurrent.futures.Future()
        future.add_done_callback(lambda _: self._places.release())

        def start() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                pending = session.submit(operation, table, key, value, **options)
            except Exception as refused:  # noqa: BLE001 - whatever it is belongs to the caller
                future.set_exception(refused)
                return
            pending.add_done_callback(finish)

        def finish(done: asyncio.Future[WriteResult]) -> None:
            failure = asyncio.CancelledError() if done.cancelled() else done.exception()
            if failure is None:
                future.set_result(done.result())
            else:
                future.set_exception(crossed(failure, self._crossing))

        self._crossing.thread().loop.call_soon_threadsafe(start)
        return future
