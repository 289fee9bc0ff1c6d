"""A session: writes that are applied exactly once.

Owns: the calls an application makes. Opening, renewing and closing the session:
:mod:`oncegate.gateway.client.session_life`. Turning a call into a write: :mod:`oncegate.gateway.client.writes`.
Sending: :mod:`oncegate.gateway.client.sender`. The promise: SEMANTICS, *Promise*.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import UnsetType

from oncegate.gateway.client.batch import Pending, PendingRows, RowsCollector
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.places import Places, window_full
from oncegate.gateway.client.results import Json, ManyResult, Resolution, Row, WriteResult
from oncegate.gateway.client.sender import Sender
from oncegate.gateway.client.session_life import SessionLife
from oncegate.gateway.client.settings import Consistency, SessionOptions
from oncegate.gateway.client.writes import UNSET, OperationName, Writes
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ClientId, Epoch, RequestId, SequenceNumber

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection


class Session:
    """Writes with exactly-once effect; use as ``async with client.session() as session``.

    Promised: each write is applied exactly once while the session lives, however often it is sent. Writes of one
    session on the same row are applied in the order of the calls, also across retries, as long as the cluster
    accepts them; writes on different rows may be applied in any order. A result means durable and replicated.

    With an outbox, writes leave in the order of the calls, whatever their rows, and a deadline only bounds how long the
    caller waits: :class:`~oncegate.OutcomeUnknown` then means that the write is in the outbox, and a restart sends it
    again.

    Leaving waits for pending writes, each up to its deadline, and closes the session. Leaving because of a cancellation
    does not wait: writes under way then fail with outcome unknown.

    A write whose caller is cancelled before it has travelled is not sent. One that has travelled keeps its sequence
    number and is retried until it has a verdict or its deadline passes.
    """

    __slots__ = ("_connection", "_life", "_places", "_sender", "_tracing", "_wait", "_writes", "lost", "recovered")

    def __init__(self, connection: Connection, options: SessionOptions, nonce: str | None) -> None:
        self._connection = connection
        self._life = SessionLife(connection, options, nonce)
        self._wait = options.full != "fail"
        self._tracing = connection.tracing
        self._writes: Writes
        self._sender: Sender
        self._places: Places
        self.lost = self._life.lost
        """Set once the session has ended without being closed: expired, or taken over by another process."""
        self.recovered = self._life.recovered
        """What entering settled of writes of an earlier process that were in the outbox, in the order of their ids."""

    # Life

    async def __aenter__(self) -> Self:
        life = self._life
        await life.open()
        self._writes, self._sender, self._places = life.writes, life.sender, life.sender.places
        await life.recover()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(drain=kind is None or issubclass(kind, Exception))

    async def close(self, *, drain: bool = True) -> None:
        """Close the session; idempotent. Without ``drain`` pending writes fail at once."""
        await self._life.close(drain=drain)

    @property
    def client_id(self) -> ClientId:
        """The session's id."""
        return self._sender.client_id

    @property
    def epoch(self) -> Epoch:
        """The session's epoch."""
        return self._sender.epoch

    @property
    def highest_commit(self) -> int:
        """Highest commit number that this session has seen: what its reads with ``session`` consistency reflect."""
        return self._sender.highest_commit

    @property
    def outstanding(self) -> int:
        """Writes without a verdict; at most the window."""
        return self._places.outstanding

    @property
    def memory_ms_left(self) -> int:
        """How long the session's memory is guaranteed from now on, by the latest answer."""
        return max(0, int((self._sender.lease.ends_at - self._connection.deadline(0.0)) * 1000))

    @property
    def position(self) -> Json:
        """The position that came with the newest write in the outbox, also of an earlier process; None at first.

        Writes reach an outbox in the order of the calls: those up to this position are in it, or settled. Only a
        write that failed before it was taken in (``outcome`` not_applied) is passed over by the position of the next.
        """
        return None if self._life.outbox is None else self._life.outbox.position

    async def drain(self) -> None:
        """Wait until every write so far has its result or its error."""
        await self._places.drain()
        if self._life.outbox is not None:
            await self._life.outbox.flush()

    async def resolve(self, sequence: int, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a write of this session: it was applied, or it never will be.

        Args:
            sequence: its number, as ``request_id.sequence`` of the error says.
            timeout_s: total time.

        Raises:
            OperationFailed: as :meth:`oncegate.gateway.client.OutcomeUnknown.resolve`.
        """
        return await self._life.settle(RequestId(self._sender.client_id, SequenceNumber(sequence)), timeout_s)

    # Writes

    async def put(
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
        """Write a row exactly once.

        Args:
            table: a declared table.
            key: 1 to 512 bytes of UTF-8.
            value: anything that JSON can express; encoded now, so later changes of it do not matter.
            if_absent: only if there is no such row (resident tables, as the next two).
            if_version: only if the row has this version.
            if_value: only if the row has this value.
            position: with an outbox: the application's position in its input after this write, at most 1 KiB of JSON;
                stored in the same transaction as the write. See :attr:`position`.
            timeout_s: total time, with waiting and all retries; the client's by default.

        Returns:
            The result; ``applied`` is False if the condition failed.

        Raises:
            OutcomeUnknown: the deadline passed after the write may have been applied.
            DeadlineExceeded: the deadline passed and the write was surely not applied.
            OperationFailed: a final refusal, with code and outcome; WINDOW_FULL where the session was opened
                with ``full="fail"`` and as many writes are outstanding as its window has places.
        """
        pending = self._writes.put(table, key, value, if_absent, if_version, if_value, timeout_s)
        if position is not None:
            self._writes.note(pending, position)
        if self._tracing is not None:
            self._tracing.write(pending)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        places = self._places
        if places.outstanding < places.window and not places.waiting:
            places.outstanding += 1
        else:
            await places.take(pending.deadline, wait=self._wait)
        self._sender.enqueue(pending)
        return await future

    async def insert(
        self, table: str, key: str, value: Json, *, position: Json = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Write a row exactly once if there is none; see :meth:`put`."""
        return await self.put(table, key, value, if_absent=True, position=position, timeout_s=timeout_s)

    async def delete(
        self,
        table: str,
        key: str,
        *,
        if_version: int | None = None,
        if_value: Json | UnsetType = UNSET,
        position: Json = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Delete a row exactly once; see :meth:`put`."""
        return await self._write(self._writes.other("delete", table, key, if_version, if_value, timeout_s), position)

    async def increment(
        self,
        table: str,
        key: str,
        by: int = 1,
        *,
        if_version: int | None = None,
        if_value: Json | UnsetType = UNSET,
        position: Json = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Add to a row's number exactly once; ``value`` of the result is the sum. See :meth:`put`."""
        pending = self._writes.other("increment", table, key, if_version, if_value, timeout_s, by=by)
        return await self._write(pending, position)

    async def append(
        self,
        table: str,
        key: str,
        item: Json,
        *,
        if_version: int | None = None,
        if_value: Json | UnsetType = UNSET,
        position: Json = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Add an item to the end of a row's bounded list exactly once; see :meth:`put`."""
        pending = self._writes.other("append", table, key, if_version, if_value, timeout_s, item=item)
        return await self._write(pending, position)

    async def get_remembered(
        self, table: str, key: str, *, position: Json = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Read a row as an operation: it has an id, a place in the order, and the same answer in every retry.

        For a decision that must not change if it is made again after a crash. :meth:`get` is the cheap way to read.

        Returns:
            The result; ``value`` and ``version`` are the row's: None and 0 if there is none.
        """
        return await self._write(self._writes.other("get", table, key, None, UNSET, timeout_s), position)

    def submit(
        self,
        operation: OperationName,
        table: str,
        key: str,
        value: Json | UnsetType = UNSET,
        *,
        by: int = 1,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Json | UnsetType = UNSET,
        position: Json = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[WriteResult]:
        """Start a write without waiting; the future resolves as the call of that name would return or raise.

        Cancelling the future gives up waiting; a write that has travelled may be applied all the same.

        Raises:
            OperationFailed: WINDOW_FULL if as many writes are outstanding as the window has places: nothing was taken;
                or why the session has ended.
        """
        if operation == "put":
            pending = self._writes.put(table, key, value, if_absent, if_version, if_value, timeout_s)
        else:
            pending = self._writes.other(operation, table, key, if_version, if_value, timeout_s, by=by, item=value)
        if position is not None:
            self._writes.note(pending, position)
        places = self._places
        if places.crowded:
            raise window_full()
        if self._tracing is not None:
            self._tracing.write(pending)
        places.outstanding += 1
        self._sender.enqueue(pending)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        return future

    async def put_many(
        self, table: str, rows: Mapping[str, Json] | Iterable[tuple[str, Json]], *, timeout_s: float | None = None
    ) -> ManyResult:
        """Write many rows, each exactly once; on a stream table they travel as ranges.

        Rows have contiguous sequence numbers where they travel together; row *i* of a part has the part's commit
        number + *i*. All rows together are not one transaction: see Raises.

        Args:
            table: a declared table of either kind.
            rows: at least one key with its value; a key may come twice, the later one wins.
            timeout_s: total time for all rows.

        Raises:
            PartialFailure: some rows were applied and some have no result.
            OperationFailed: no row has a result; as :meth:`put`.
        """
        pairs = list(rows.items() if isinstance(rows, Mapping) else rows)
        if not pairs:
            raise OperationFailed(Code.BAD_REQUEST, "put_many needs at least one row")
        sender = self._sender
        deadline = self._writes.deadline(timeout_s)
        kind = await self._connection.kinds.learn(table)
        future: asyncio.Future[ManyResult] = asyncio.get_running_loop().create_future()
        collector = RowsCollector(sender.client_id, len(pairs), future)
        rows_max = min(self._connection.tuning.range_rows_max, self._places.window)
        pendings = deque(self._writes.many(table, pairs, kind, collector, deadline, rows_max))
        if self._tracing is not None:
            self._tracing.rows(table, list(pendings), future)
        try:
            await sender.enqueue_all(pendings, deadline, wait=self._wait)
        except OperationFailed as failure:
            # Rows already sent decide the outcome, together with those that were never sent.
            unsent = sum(len(pending.keys) if isinstance(pending, PendingRows) else 1 for pending in pendings)
            collector.fail(unsent, failure)
        except asyncio.CancelledError:
            future.cancel()
            raise
        return await future

    async def get(
        self, table: str, key: str, *, consistency: Consistency = "session", timeout_s: float | None = None
    ) -> Row | None:
        """Read a row; with ``session`` consistency it reflects at least what this session has written and read.

        Returns:
            The row, or None if there is none.
        """
        row, commit = await self._connection.look(table, key, consistency, self._sender.highest_commit, timeout_s)
        # NOT_FOUND also raises the read floor: a node that still has the row must not answer the next read.
        self._sender.highest_commit = max(self._sender.highest_commit, commit)
        return row

    async def _write(self, pending: Pending, position: Json) -> WriteResult:
        if position is not None:
            self._writes.note(pending, position)
        if self._tracing is not None:
            self._tracing.write(pending)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        await self._places.take(pending.deadline, wait=self._wait)
        self._sender.enqueue(pending)
        return await future
