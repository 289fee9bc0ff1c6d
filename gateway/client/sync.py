"""The SDK for scripts and notebooks: the same names, results and errors, without ``await``.

Owns: a thread with an event loop for each client, and the crossing between it and the caller's threads. Everything
else is :mod:`gateway.client.client` and :mod:`gateway.client.session`, which see. Safe to use from several threads.

``with Client(...) as client, client.session() as session: ...``; in a notebook, without ``with``: both open at the
first call and close with :meth:`Client.close`, or when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from gateway.client import client as asynchronous
from gateway.client.failures import OperationFailed, OutcomeUnknown
from gateway.client.outbox_file import OutboxEntry
from gateway.client.recovery import Recovered
from gateway.client.results import (
    ClusterInfo,
    FlowInfo,
    ManyResult,
    Page,
    RequestState,
    Resolution,
    Row,
    TableInfo,
    WriteResult,
)
from gateway.client.session import Session as AsyncSession
from gateway.client.settings import Consistency, TableKind
from gateway.client.writes import OperationName
from rifl.errors import Code, Outcome
from rifl.ids import WINDOW_DEFAULT, ClientId, Epoch, RequestId

__all__ = ["Client", "Doubt", "Session"]

T = TypeVar("T")
UNSET = msgspec.UNSET


class Doubt(OutcomeUnknown):
    """:class:`OutcomeUnknown` as raised here: :meth:`resolve` needs no ``await``."""

    def __init__(self, doubt: OutcomeUnknown, client: Client) -> None:
        super().__init__(
            doubt.code,
            doubt.detail,
            request_id=doubt.request_id,
            retry_after_ms=doubt.retry_after_ms,
            outcome=doubt.outcome,
        )
        self.resolver = doubt.resolver
        self._client = client

    def __reduce__(self) -> tuple[object, ...]:
        plain = OutcomeUnknown(self.code, self.detail, request_id=self.request_id, outcome=self.outcome)
        return plain.__reduce__()

    def resolve(self, *, timeout_s: float | None = None) -> Resolution:  # type: ignore[override]
        """End the doubt, as :meth:`OutcomeUnknown.resolve`."""
        return self._client.run(super().resolve(timeout_s=timeout_s))


class _Loop:
    """A thread that runs an event loop until it is stopped."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="oncegate-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it; an interrupt of the wait cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise OperationFailed(
                Code.CONFLICT, "a callback of the client must not call it", outcome=Outcome.NOT_APPLIED
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End what still runs, and the thread."""
        self.run(_wind_up())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Client:
    """A cluster as seen by a script; arguments as :class:`gateway.client.Client`."""

    def __init__(self, *endpoints: Any, **options: Any) -> None:
        self._client = asynchronous.Client(*endpoints, **options)
        self._lock = threading.Lock()
        self._loop: _Loop | None = None
        self._closed = False

    # Life

    def __enter__(self) -> Self:
        self.run(_nothing())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(kind, error, trace)

    def close(self) -> None:
        """Close open sessions as leaving them would, then the connections; idempotent."""
        self._close(None, None, None)

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            self._closed = True
        if loop is None:
            return
        try:
            loop.run(self._client.__aexit__(kind, error, trace))
        finally:
            loop.stop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the asynchronous SDK on this client's loop and wait for it."""
        try:
            loop = self.loop()
        except BaseException:
            work.close()
            raise
        try:
            return loop.run(work)
        except OutcomeUnknown as doubt:
            if type(doubt) is not OutcomeUnknown:
                raise
            raise Doubt(doubt, self) from doubt.__cause__

    def loop(self) -> _Loop:
        """Return the loop; the first call connects."""
        with self._lock:
            if self._closed:
                raise OperationFailed(Code.CONFLICT, "the client is closed", outcome=Outcome.NOT_APPLIED)
            if self._loop is None:
                started = _Loop()
                try:
                    started.run(self._client.__aenter__())
                except BaseException:
                    started.stop()
                    raise
                self._loop = started
                atexit.register(_close_if_alive, weakref.ref(self))
            return self._loop

    def session(
        self,
        *,
        on_unknown: Callable[[OutboxEntry], None] | None = None,
        window: int = WINDOW_DEFAULT,
        **options: Any,
    ) -> Session:
        """Return a session; arguments as :meth:`gateway.client.Client.session`. ``on_unknown`` runs in a thread."""

        async def note(entry: OutboxEntry) -> None:
            if on_unknown is not None:
                await asyncio.to_thread(on_unknown, entry)

        session = self._client.session(on_unknown=None if on_unknown is None else note, window=window, **options)
        return Session(self, session, window, fail=options.get("full") == "fail")

    # Reads and declarations

    def get(
        self,
        table: str,
        key: str,
        *,
        consistency: Consistency = "linearizable",
        min_commit: int | None = None,
        timeout_s: float | None = None,
    ) -> Row | None:
        """Read a row."""
        return self.run(
            self._client.get(table, key, consistency=consistency, min_commit=min_commit, timeout_s=timeout_s)
        )

    def scan(
        self,
        table: str,
        *,
        prefix: str = "",
        after: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Page:
        """Read one page of rows in key order."""
        return self.run(self._client.scan(table, prefix=prefix, after=after, limit=limit, timeout_s=timeout_s))

    def request(self, client_id: int, sequence: int, *, timeout_s: float | None = None) -> RequestState:
        """Ask what became of a request id."""
        return self.run(self._client.request(client_id, sequence, timeout_s=timeout_s))

    def resolve(self, request_id: RequestId | str, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a request id."""
        return self.run(self._client.resolve(request_id, timeout_s=timeout_s))

    def cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        """Return the cluster as one of its nodes sees it."""
        return self.run(self._client.cluster(timeout_s=timeout_s))

    def declare_table(
        self, name: str, *, kind: TableKind = "resident", timeout_s: float | None = None, **options: Any
    ) -> TableInfo:
        """Declare a table; declaring it again as it is changes nothing."""
        return self.run(self._client.declare_table(name, kind=kind, timeout_s=timeout_s, **options))

    def table(self, name: str, *, timeout_s: float | None = None) -> TableInfo:
        """Describe a table."""
        return self.run(self._client.table(name, timeout_s=timeout_s))

    def declare_flow(self, name: str, *, source: str, timeout_s: float | None = None, **options: Any) -> FlowInfo:
        """Declare a flow on a table; declaring it again as it is changes nothing."""
        return self.run(self._client.declare_flow(name, source=source, timeout_s=timeout_s, **options))

    def flow(self, name: str, *, timeout_s: float | None = None) -> FlowInfo:
        """Describe a flow."""
        return self.run(self._client.flow(name, timeout_s=timeout_s))


class Session:
    """Writes with exactly-once effect; see :class:`gateway.client.Session`, whose names these are."""

    def __init__(self, client: Client, session: AsyncSession, window: int, *, fail: bool) -> None:
        self._client = client
        self._session = session
        self._places = threading.BoundedSemaphore(window)
        self._fail = fail
        self._lock = threading.Lock()
        self._entered = False

    # Life

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._client.run(self._session.__aexit__(kind, error, trace))

    def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent."""
        if self._entered:
            self._client.run(self._session.close(drain=drain))

    def _open(self) -> AsyncSession:
        with self._lock:
            if not self._entered:
                self._client.run(self._session.__aenter__())
                self._entered = True
        return self._session

    @property
    def client_id(self) -> ClientId:
        """The session's id."""
        return self._open().client_id

    @property
    def epoch(self) -> Epoch:
        """The session's epoch."""
        return self._open().epoch

    @property
    def highest_commit(self) -> int:
        """Highest commit number that this session has seen."""
        return self._open().highest_commit

    @property
    def outstanding(self) -> int:
        """Writes without a verdict."""
        return self._open().outstanding

    @property
    def memory_ms_left(self) -> int:
        """How long the session's memory is guaranteed from now on."""
        return self._open().memory_ms_left

    @property
    def position(self) -> Any:
        """The position that came with the newest write in the outbox."""
        return self._open().position

    @property
    def recovered(self) -> list[Recovered]:
        """What entering settled of an earlier process."""
        return self._open().recovered

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended without being closed."""
        return self._open().lost.is_set()

    def drain(self) -> None:
        """Wait until every write so far has its result or its error."""
        self._client.run(self._open().drain())

    def resolve(self, sequence: int, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a write of this session."""
        return self._client.run(self._open().resolve(sequence, timeout_s=timeout_s))

    # Writes

    def put(
        self,
        table: str,
        key: str,
        value: Any,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Any = UNSET,
        position: Any = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Write a row exactly once."""
        return self._client.run(
            self._open().put(
                table,
                key,
                value,
                if_absent=if_absent,
                if_version=if_version,
                if_value=if_value,
                position=position,
                timeout_s=timeout_s,
            )
        )

    def insert(
        self, table: str, key: str, value: Any, *, position: Any = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Write a row exactly once if there is none."""
        return self.put(table, key, value, if_absent=True, position=position, timeout_s=timeout_s)

    def delete(self, table: str, key: str, **options: Any) -> WriteResult:
        """Delete a row exactly once."""
        return self._client.run(self._open().delete(table, key, **options))

    def increment(self, table: str, key: str, by: int = 1, **options: Any) -> WriteResult:
        """Add to a row's number exactly once."""
        return self._client.run(self._open().increment(table, key, by, **options))

    def append(self, table: str, key: str, item: Any, **options: Any) -> WriteResult:
        """Add an item to the end of a row's list exactly once."""
        return self._client.run(self._open().append(table, key, item, **options))

    def get_remembered(self, table: str, key: str, **options: Any) -> WriteResult:
        """Read a row as an operation with an id."""
        return self._client.run(self._open().get_remembered(table, key, **options))

    def put_many(
        self,
        table: str,
        rows: Mapping[str, Any] | Iterable[tuple[str, Any]],
        *,
        timeout_s: float | None = None,
    ) -> ManyResult:
        """Write many rows, each exactly once."""
        return self._client.run(self._open().put_many(table, rows, timeout_s=timeout_s))

    def get(
        self, table: str, key: str, *, consistency: Consistency = "session", timeout_s: float | None = None
    ) -> Row | None:
        """Read a row; it reflects at least what this session has written and read."""
        return self._client.run(self._open().get(table, key, consistency=consistency, timeout_s=timeout_s))

    def submit(
        self, operation: OperationName, table: str, key: str, value: Any = UNSET, **options: Any
    ) -> concurrent.futures.Future[WriteResult]:
        """Start a write and return its future; waits while as many are outstanding as the window has places.

        Raises:
            OperationFailed: WINDOW_FULL instead of waiting, in a session opened with ``full="fail"``.
        """
        session = self._open()
        if not self._places.acquire(blocking=not self._fail):
            raise OperationFailed(Code.WINDOW_FULL, "as many writes are outstanding as the window has places")
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
            elif type(failure) is OutcomeUnknown:
                future.set_exception(Doubt(failure, self._client))
            else:
                future.set_exception(failure)

        self._client.loop().loop.call_soon_threadsafe(start)
        return future


async def _nothing() -> None:
    pass


async def _wind_up() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def _close_if_alive(reference: weakref.ref[Client]) -> None:
    client = reference()
    if client is not None:
        client.close()
