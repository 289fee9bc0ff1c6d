"""A session for scripts and notebooks: the calls of :class:`oncegate.gateway.client.Session`, without ``await``.

Owns: passing a session's calls to the event loop, opening it at the first call, and the bound on writes submitted from
other threads. What a call does: :mod:`oncegate.gateway.client.session`. How it gets to the loop:
:mod:`oncegate.gateway.client.sync_crossing`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self, Unpack

from msgspec import UnsetType

from oncegate.gateway.client.arguments import ConditionArguments, SubmitArguments, WriteArguments
from oncegate.gateway.client.places import window_full
from oncegate.gateway.client.recovery import Recovered
from oncegate.gateway.client.results import Json, ManyResult, Resolution, Row, WriteResult
from oncegate.gateway.client.session import Session as AsyncSession
from oncegate.gateway.client.settings import Consistency
from oncegate.gateway.client.sync_crossing import Crossing, crossed
from oncegate.gateway.client.writes import UNSET, OperationName
from oncegate.rifl.ids import ClientId, Epoch


class Session:
    """Writes with exactly-once effect; see :class:`oncegate.gateway.client.Session`, whose names these are."""

    def __init__(self, crossing: Crossing, session: AsyncSession, window: int, *, fail: bool) -> None:
        self._crossing = crossing
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
            self._crossing.run(self._session.__aexit__(kind, error, trace))

    def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent."""
        if self._entered:
            self._crossing.run(self._session.close(drain=drain))

    def _open(self) -> AsyncSession:
        with self._lock:
            if not self._entered:
                self._crossing.run(self._session.__aenter__())
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
    def position(self) -> Json:
        """The position that came with the newest write in the outbox."""
        return self._open().position

    @property
    def recovered(self) -> list[Recovered]:
        """The writes of an earlier process that entering the session has settled."""
        return self._open().recovered

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended without being closed."""
        return self._open().lost.is_set()

    def drain(self) -> None:
        """Wait until every write so far has its result or its error."""
        self._crossing.run(self._open().drain())

    def resolve(self, sequence: int, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a write of this session."""
        return self._crossing.run(self._open().resolve(sequence, timeout_s=timeout_s))

    # Writes

    def put(
        self,
        table: str,
        key: str,
        value: Json,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Json | UnsetType = UNSET,
        position: Json = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Write a row exactly once."""
        return self._crossing.run(
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
        self, table: str, key: str, value: Json, *, position: Json = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Write a row exactly once if there is none."""
        return self.put(table, key, value, if_absent=True, position=position, timeout_s=timeout_s)

    def delete(self, table: str, key: str, **options: Unpack[ConditionArguments]) -> WriteResult:
        """Delete a row exactly once."""
        return self._crossing.run(self._open().delete(table, key, **options))

    def increment(self, table: str, key: str, by: int = 1, **options: Unpack[ConditionArguments]) -> WriteResult:
        """Add to a row's number exactly once."""
        return self._crossing.run(self._open().increment(table, key, by, **options))

    def append(self, table: str, key: str, item: Json, **options: Unpack[ConditionArguments]) -> WriteResult:
        """Add an item to the end of a row's list exactly once."""
        return self._crossing.run(self._open().append(table, key, item, **options))

    def get_remembered(self, table: str, key: str, **options: Unpack[WriteArguments]) -> WriteResult:
        """Read a row as an operation with an id."""
        return self._crossing.run(self._open().get_remembered(table, key, **options))

    def put_many(
        self,
        table: str,
        rows: Mapping[str, Json] | Iterable[tuple[str, Json]],
        *,
        timeout_s: float | None = None,
    ) -> ManyResult:
        """Write many rows, each exactly once."""
        return self._crossing.run(self._open().put_many(table, rows, timeout_s=timeout_s))

    def get(
        self, table: str, key: str, *, consistency: Consistency = "session", timeout_s: float | None = None
    ) -> Row | None:
        """Read a row; it reflects at least what this session has written and read."""
        return self._crossing.run(self._open().get(table, key, consistency=consistency, timeout_s=timeout_s))

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
        session = self._open()
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
