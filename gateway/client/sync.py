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
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Self, TypedDict, Unpack

from msgspec import UnsetType

from oncegate.gateway.client import client as asynchronous
from oncegate.gateway.client.arguments import Encode
from oncegate.gateway.client.failures import NeverKnown, NotKnownYet, OperationFailed
from oncegate.gateway.client.outbox_file import OutboxEntry
from oncegate.gateway.client.places import window_full
from oncegate.gateway.client.recovery import Recovered
from oncegate.gateway.client.results import Json, Value, WriteResult
from oncegate.gateway.client.session import Session as AsyncSession
from oncegate.gateway.client.settings import Full, Tuning
from oncegate.gateway.client.sync_crossing import Crossing, Doubt, crossed, without_await
from oncegate.gateway.client.sync_reading import Batch, Items, Rows, Watch
from oncegate.gateway.client.transaction import OpenTransaction, Transaction
from oncegate.gateway.client.writes import UNSET, OperationName
from oncegate.rifl.ids import WINDOW_DEFAULT, ClientId, Epoch, RequestId

__all__ = ["Client", "Doubt", "NeverKnown", "NotKnownYet", "Session"]


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
    encode: Encode | None


class SessionArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Client.session`, beside its window and callbacks."""

    lease_ms: int
    full: Full
    nonce: str | None
    outbox: str | PathLike[str] | None
    renew_lost: bool
    in_order: bool


class RowsArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Client.rows`."""

    prefix: str
    start: str
    end: str
    reverse: bool
    commit: int | None
    page_rows: int
    timeout_s: float | None


class WatchArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Client.watch`."""

    prefix: str
    key: str | None
    from_commit: int | None
    timeout_s: float | None


class SubmitArguments(TypedDict, total=False):
    """Of :meth:`oncegate.gateway.client.Session.submit`."""

    by: int
    if_absent: bool
    if_version: int | None
    if_value: Value | UnsetType
    ttl_ms: int | None
    bound: bool
    position: Value
    timeout_s: float | None


class Client:
    """A cluster as seen by a script; arguments as :class:`oncegate.gateway.client.Client`."""

    def __init__(self, endpoints: str | Sequence[str] | None = None, **options: Unpack[ClientArguments]) -> None:
        self._client = asynchronous.Client(endpoints, **options)
        self._encode = options.get("encode")
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
        on_lost: Callable[[OperationFailed], None] | None = None,
        window: int = WINDOW_DEFAULT,
        **options: Unpack[SessionArguments],
    ) -> Session:
        """Return a session; arguments as :meth:`oncegate.gateway.client.Client.session`. ``on_unknown`` runs in a
        thread.
        """

        async def note(entry: OutboxEntry) -> None:
            if on_unknown is not None:
                await asyncio.to_thread(on_unknown, entry)

        def lost(reason: OperationFailed) -> None:
            if on_lost is not None:
                crossed(reason, self._crossing)
                on_lost(reason)

        session = self._client.session(
            on_unknown=None if on_unknown is None else note,
            on_lost=None if on_lost is None else lost,
            window=window,
            **options,
        )
        return Session(self._crossing, session, window, fail=options.get("full") == "fail", encode=self._encode)

    def rows(self, table: str, **options: Unpack[RowsArguments]) -> Rows:
        """Read rows at one commit number; arguments as :meth:`oncegate.gateway.client.Client.rows`."""
        return Rows(self._crossing, self._client.rows(table, **options))

    def watch(self, table: str, **options: Unpack[WatchArguments]) -> Watch:
        """Follow changes, waiting for each; arguments as :meth:`oncegate.gateway.client.Client.watch`."""
        return Watch(self._crossing, self._client.watch(table, **options))

    def consume(self, flow: str, consumer: str, *, timeout_s: float | None = None) -> Iterator[Batch]:
        """Read a flow's batches; as :meth:`oncegate.gateway.client.Client.consume`."""
        for batch in self._crossing.steps(self._client.consume(flow, consumer, timeout_s=timeout_s)):
            yield Batch(self._crossing, batch)

    def items(
        self,
        flow: str,
        *,
        from_batch: int | None = None,
        from_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Items:
        """Read what a flow retains; as :meth:`oncegate.gateway.client.Client.items`."""
        options = {"from_batch": from_batch, "from_commit": from_commit}
        return Items(self._crossing, self._client.items(flow, **options, timeout_s=timeout_s))

    get = without_await(asynchronous.Client.get)
    get_many = without_await(asynchronous.Client.get_many)
    scan = without_await(asynchronous.Client.scan)
    request = without_await(asynchronous.Client.request)
    resolve = without_await(asynchronous.Client.resolve)
    sessions = without_await(asynchronous.Client.sessions)
    open_requests = without_await(asynchronous.Client.open_requests)
    turns = without_await(asynchronous.Client.turns)
    cluster = without_await(asynchronous.Client.cluster)
    new_idempotency_key = without_await(asynchronous.Client.new_idempotency_key)
    put = without_await(asynchronous.Client.put)
    delete = without_await(asynchronous.Client.delete)
    increment = without_await(asynchronous.Client.increment)
    append = without_await(asynchronous.Client.append)
    transact = without_await(asynchronous.Client.transact)
    declare_table = without_await(asynchronous.Client.declare_table)
    table = without_await(asynchronous.Client.table)
    tables = without_await(asynchronous.Client.tables)
    drop_table = without_await(asynchronous.Client.drop_table)
    declare_flow = without_await(asynchronous.Client.declare_flow)
    flow = without_await(asynchronous.Client.flow)
    flows = without_await(asynchronous.Client.flows)
    alter_flow = without_await(asynchronous.Client.alter_flow)
    delete_flow = without_await(asynchronous.Client.delete_flow)
    start_consumer = without_await(asynchronous.Client.start_consumer)
    remove_consumer = without_await(asynchronous.Client.remove_consumer)


class Session:
    """Writes with exactly-once effect; see :class:`oncegate.gateway.client.Session`, whose names these are."""

    def __init__(
        self, crossing: Crossing, session: AsyncSession, window: int, *, fail: bool, encode: Encode | None = None
    ) -> None:
        self._crossing = crossing
        self._encode = encode
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
        if self._entered and self._crossing.is_here:
            self._crossing.run(self._session.__aexit__(kind, error, trace))

    def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent."""
        if self._entered and self._crossing.is_here:
            self._crossing.run(self._session.close(drain=drain))

    def _opened(self) -> AsyncSession:
        self._crossing.check()
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

    def forget(self, request: int | str | RequestId) -> None:
        """Say that nobody will ask what became of a write."""
        session = self._opened()

        async def forget() -> None:
            session.forget(request)

        self._crossing.run(forget())

    drain = without_await(AsyncSession.drain)
    resolve = without_await(AsyncSession.resolve)
    send_again = without_await(AsyncSession.send_again)
    put = without_await(AsyncSession.put)
    insert = without_await(AsyncSession.insert)
    delete = without_await(AsyncSession.delete)
    increment = without_await(AsyncSession.increment)
    append = without_await(AsyncSession.append)
    get_remembered = without_await(AsyncSession.get_remembered)
    put_many = without_await(AsyncSession.put_many)
    transact = without_await(AsyncSession.transact)
    update = without_await(AsyncSession.update)
    get = without_await(AsyncSession.get)

    def transaction(
        self, *, position: Value = None, timeout_s: float | None = None, idempotency_key: str | None = None
    ) -> OpenTransaction:
        """Begin a transaction: ``with session.transaction() as t``, then ``t.result``."""

        def send(made: Transaction) -> WriteResult:
            return self.transact(made, position=position, timeout_s=timeout_s, idempotency_key=idempotency_key)

        return OpenTransaction(send, self._encode)

    def submit(
        self,
        operation: OperationName,
        table: str,
        key: str,
        value: Value | UnsetType = UNSET,
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

        try:
            self._crossing.thread().call(start)
        except OperationFailed:
            future.cancel()  # its place is free again
            raise
        return future
