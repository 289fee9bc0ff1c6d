"""A session: writes that are applied exactly once.

Owns: the calls an application makes. Opening, renewing and closing the session:
:mod:`oncegate.gateway.client.session_life`. Turning a call into a write: :mod:`oncegate.gateway.client.writes`.
Sending: :mod:`oncegate.gateway.client.sender`. The promise: SEMANTICS, *Promise*.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

import msgspec
from msgspec import UnsetType

from oncegate.gateway.client import keyed_writes
from oncegate.gateway.client.arguments import bad, name_of, packed, request_id
from oncegate.gateway.client.batch import Pending, PendingRows, RowsCollector
from oncegate.gateway.client.call_order import CallOrder
from oncegate.gateway.client.failures import OperationFailed, PartialFailure
from oncegate.gateway.client.optimistic import ATTEMPTS_MAX, Updated, update
from oncegate.gateway.client.places import Places
from oncegate.gateway.client.results import Json, ManyResult, Resolution, Row, Value, WriteResult
from oncegate.gateway.client.sender import Sender
from oncegate.gateway.client.session_life import SessionLife
from oncegate.gateway.client.settings import Consistency, SessionOptions, TableKind
from oncegate.gateway.client.transaction import OpenTransaction, Transaction, edges
from oncegate.gateway.client.writes import UNSET, OperationName, Writes, let_end, pairs_of
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, Epoch, RequestId, SequenceNumber

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection


class _Unopened:
    """Stands for the parts of a session that was not entered: whatever is asked of it is refused, with a type."""

    def __getattr__(self, name: str) -> NoReturn:
        detail = "the session is not entered: async with client.session() as session"
        raise OperationFailed(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED)


_UNOPENED: Final[Any] = _Unopened()


class _SentRows(NamedTuple):
    """Rows of a call that are enqueued: their promise, what they travel as, and the session that they are of."""

    promise: asyncio.Future[ManyResult]
    prepared: list[Pending | PendingRows]
    collector: RowsCollector
    client_id: ClientId


class Submitted(asyncio.Future[WriteResult]):
    """A write that :meth:`Session.submit` has started: a future of its result."""

    def __init__(self, pending: Pending, sender: Sender) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._pending = pending
        self._sender = sender
        self._told: RequestId | None = None

    @property
    def request_id(self) -> RequestId | None:
        """The write's id, from before it travels until the end; None if it never got one, and was not applied."""
        if self.done() and not self.cancelled():
            failure = self.exception()
            return self.result().request_id if failure is None else getattr(failure, "request_id", None)
        return self._told or _id_of(self._pending, self._sender)

    def cancel(self, msg: object = None) -> bool:
        """Give up waiting; :attr:`request_id` stays."""
        self._told = _id_of(self._pending, self._sender)
        return super().cancel(msg)


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
    number and is retried until it has a verdict or its deadline passes; the cancellation carries its id:
    :func:`oncegate.request_ids`. Its fate can be resolved as long as the session is open, whatever is written
    meanwhile: an answer that comes late is kept, and where none comes the session asks for it, so that it ran or
    never will. With an outbox that waits until the window needs the place: a restart sends the write again.
    """

    __slots__ = ("_connection", "_life", "_places", "_sender", "_tracing", "_wait", "_writes", "lost", "recovered")

    def __init__(self, connection: Connection, options: SessionOptions, nonce: str | None) -> None:
        self._connection = connection
        self._life = SessionLife(connection, options, nonce)
        self._wait = options.full != "fail"
        self._tracing = connection.tracing
        self._writes: Writes = _UNOPENED
        self._sender: Sender = _UNOPENED
        self._places: Places = _UNOPENED
        self.lost = self._life.lost
        """Set once the session has ended for good without being closed: expired, or taken over by another process."""
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
        """How long the session's memory is guaranteed from now on, by the latest answer; 0 once it is closed."""
        if self._life.is_closed:
            return 0
        return max(0, int((self._sender.lease.ends_at - self._connection.deadline(0.0)) * 1000))

    @property
    def position(self) -> Json:
        """The position that came with the newest write in the outbox, also of an earlier process; None at first.

        It says what was taken in, not what took effect: a write that is refused afterwards, by its condition or for
        good, has moved it all the same. Writes reach an outbox in the order of the calls: those up to this position
        are in it, or settled. Only a write that failed before it was taken in (``outcome`` not_applied) is passed over
        by the position of the next.
        """
        return None if self._life.outbox is None else self._life.outbox.position

    async def drain(self) -> None:
        """Wait until every write so far has its result or its error."""
        self._connection.check()
        await self._places.drain()
        if self._life.outbox is not None:
            await self._life.outbox.flush()

    async def resolve(self, request: int | str | RequestId, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt about a write of this session: it ran, or it never will.

        Args:
            request: its id, or its number in this session alone.
            timeout_s: total time.

        Whatever is written meanwhile: what becomes of a write whose caller has gone is kept as long as the session.

        Raises:
            NotKnownYet, NeverKnown, OperationFailed: as :meth:`oncegate.gateway.client.OutcomeUnknown.resolve`.
        """
        return await self._life.settle(self._named(request), timeout_s)

    def forget(self, request: int | str | RequestId) -> None:
        """Say that nobody will ask what became of a write: its fate is not kept.

        For an application that gives up calls in great numbers and never asks: at 65,536 fates that nobody has asked
        for the session takes no further writes (WINDOW_FULL).

        Args:
            request: as of :meth:`resolve`.
        """
        self._sender.forget(self._named(request))

    async def send_again(self, request: int | str | RequestId, *, timeout_s: float | None = None) -> WriteResult:
        """Send a write again that is in the outbox and whose outcome is unknown, under its own id, as a restart would.

        Args:
            request: as of :meth:`resolve`.
            timeout_s: total time.

        Returns:
            Its result, new or replayed.

        Raises:
            OutcomeUnknown: still no answer, and the write is still in the outbox; or the cluster no longer remembers.
            OperationFailed: NOT_FOUND if no write with that id is in doubt in the outbox of this session; as
                :meth:`put`.
        """
        return await self._life.send_again(self._named(request), timeout_s)

    def _named(self, request: int | str | RequestId) -> RequestId:
        if isinstance(request, int):
            return request_id((self._sender.client_id, request))
        return request_id(request)

    # Writes

    async def put(
        self,
        table: str,
        key: str,
        value: Value,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Write a row exactly once.

        Args:
            table: a declared table.
            key: 1 to 512 bytes of UTF-8.
            value: what JSON can say exactly, and else BAD_REQUEST: None, True, False, texts, whole numbers in
                -2^63..2^64-1, finite floats, lists, dicts whose keys are texts, 64 deep at most and 256 KiB of
                canonical JSON. A tuple is taken and comes back as a list. Encoded now, so later changes do not matter.
                Or ``bytes``, at most 196,605 of them, as the whole value.
            if_absent: only if there is no such row (resident tables, as the next two).
            if_version: only if the row has this version.
            if_value: only if the row has this value.
            ttl_ms: the row ends after so much cluster time, at most 366 days (resident tables, as the next one); a put
                without it stays, whatever the row's end was before.
            bound: the row ends with this session: when it is closed, or its lease ends and the cluster has noticed.
            position: with an outbox: the application's position in its input after this write, at most 1 KiB of JSON;
                stored in the same transaction as the write. See :attr:`position`.
            timeout_s: total time, with waiting and all retries; the client's by default. Zero and less: it is over.
            idempotency_key: names the write for the whole cluster: see :meth:`transact`.

        Returns:
            The result; ``applied`` is False if the condition failed.

        Raises:
            OutcomeUnknown: the deadline passed after the write may have been applied.
            DeadlineExceeded: the deadline passed and the write was surely not applied.
            OperationFailed: a final refusal, with code and outcome; WINDOW_FULL where the session was opened
                with ``full="fail"`` and as many writes are outstanding as its window has places.
        """
        if idempotency_key is not None:
            tests: dict[str, Any] = {"if_absent": if_absent, "if_version": if_version, "if_value": if_value}
            one = Transaction(encode=self._connection.encode).put(
                table, key, value, **tests, ttl_ms=ttl_ms, bound=bound
            )
            return await self._keyed(one, idempotency_key, position, timeout_s)
        pending = self._writes.put(table, key, value, if_absent, if_version, if_value, timeout_s)
        if ttl_ms is not None or bound:
            let_end(pending, ttl_ms, bound=bound)
        if self._sender.in_order is not None:
            return await self._write(pending, position)
        if position is not None:
            self._writes.note(pending, position)
        if self._tracing is not None:
            self._tracing.write(pending)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        places = self._places
        if places.outstanding < places.window and not places.handed and not places.waiting:
            places.outstanding += 1
        else:
            await places.take(pending.deadline, wait=self._wait)
        self._sender.enqueue(pending)
        try:
            return await future
        except asyncio.CancelledError as cancelled:
            self._tell(cancelled, [pending], self._sender.client_id)
            self._missed(future)
            raise

    async def insert(
        self,
        table: str,
        key: str,
        value: Value,
        *,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Write a row exactly once if there is none; see :meth:`put`."""
        return await self.put(
            table,
            key,
            value,
            if_absent=True,
            ttl_ms=ttl_ms,
            bound=bound,
            position=position,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
        )

    async def delete(
        self,
        table: str,
        key: str,
        *,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Delete a row exactly once; see :meth:`put`."""
        if idempotency_key is not None:
            one = Transaction(encode=self._connection.encode).delete(
                table, key, if_version=if_version, if_value=if_value
            )
            return await self._keyed(one, idempotency_key, position, timeout_s)
        return await self._write(self._writes.other("delete", table, key, if_version, if_value, timeout_s), position)

    async def increment(
        self,
        table: str,
        key: str,
        by: int = 1,
        *,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        floor: int | None = None,
        ceiling: int | None = None,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult[int]:
        """Add to a row's number exactly once; ``value`` of the result is the sum. See :meth:`put`.

        ``floor`` and ``ceiling``: it is refused, with CONDITION_FAILED, if the sum is below or above. The row's end and
        owner stay as they are, but for what ``ttl_ms`` and ``bound`` say anew.
        """
        if idempotency_key is not None:
            edged = {"floor": floor, "ceiling": ceiling, "ttl_ms": ttl_ms}
            one = Transaction(encode=self._connection.encode).increment(table, key, by, **edged, bound=bound)
            if if_version is not None or if_value is not UNSET:
                one.check(table, key, version=if_version, value=if_value)
            return await self._keyed(one, idempotency_key, position, timeout_s)
        pending = self._writes.other("increment", table, key, if_version, if_value, timeout_s, by=by)
        pending.operation.floor, pending.operation.ceiling = edges(floor, ceiling)
        if ttl_ms is not None or bound:
            let_end(pending, ttl_ms, bound=bound)
        return await self._write(pending, position)

    async def append(
        self,
        table: str,
        key: str,
        item: Value,
        *,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Add an item to the end of a row's bounded list exactly once; see :meth:`put`, and :meth:`increment`."""
        if idempotency_key is not None:
            one = Transaction(encode=self._connection.encode).append(table, key, item, ttl_ms=ttl_ms, bound=bound)
            if if_version is not None or if_value is not UNSET:
                one.check(table, key, version=if_version, value=if_value)
            return await self._keyed(one, idempotency_key, position, timeout_s)
        pending = self._writes.other("append", table, key, if_version, if_value, timeout_s, item=item)
        if ttl_ms is not None or bound:
            let_end(pending, ttl_ms, bound=bound)
        return await self._write(pending, position)

    async def get_remembered(
        self, table: str, key: str, *, position: Value = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Read a row as an operation: it has an id, a place in the order, and the same answer in every retry.

        For a decision that must not change if it is made again after a crash. :meth:`get` is the cheap way to read.

        Returns:
            The result; ``value`` and ``version`` are the row's: None and 0 if there is none.
        """
        return await self._write(self._writes.other("get", table, key, None, UNSET, timeout_s), position)

    def transaction(
        self, *, position: Value = None, timeout_s: float | None = None, idempotency_key: str | None = None
    ) -> OpenTransaction:
        """Begin a transaction: ``async with session.transaction() as t``, then ``t.result``. See :meth:`transact`."""
        return OpenTransaction(
            lambda made: self.transact(made, position=position, timeout_s=timeout_s, idempotency_key=idempotency_key),
            self._connection.encode,
        )

    async def transact(
        self,
        transaction: Transaction,
        *,
        position: Value = None,
        timeout_s: float | None = None,
        idempotency_key: str | None = None,
    ) -> WriteResult:
        """Do several writes on several rows and tables as one operation: all conditions hold and all happen, or none.

        It has one request id and one place in the order of the session's writes on each of its rows. An outbox keeps
        it as one write.

        Args:
            transaction: what is to be done, as it is now.
            position: as of :meth:`put`.
            timeout_s: total time.
            idempotency_key: names the transaction for the whole cluster, whichever process and session it comes from,
                for events that come more than once: the same key has the same effect, once. 1 to 255 printable
                characters of ASCII. It then has no place in the order of this session, and no position. The result's
                ``memory_ms_left`` is how long the cluster will remember the key.

        Returns:
            The result: ``writes`` of an applied one; ``failed`` says which condition or write refused it.

        Raises:
            OperationFailed: BAD_REQUEST for one without a write; PAYLOAD_MISMATCH if the key was used for another
                content; as :meth:`put`.
        """
        if idempotency_key is not None:
            return await self._keyed(transaction, idempotency_key, position, timeout_s, single=False)
        return await self._write(self._writes.transaction(transaction, timeout_s), position)

    async def update(
        self,
        table: str,
        key: str,
        change: Callable[[Json], Value],
        *,
        attempts_max: int = ATTEMPTS_MAX,
        ttl_ms: int | None = None,
        bound: bool = False,
        timeout_s: float | None = None,
    ) -> Updated:
        """Read a row, compute its new value, write it if the row is still what was read; else do it all again.

        Args:
            table: a resident table.
            key: the row's.
            change: returns the new value of the present one, None for no row; may run several times, and must have no
                other effect. What it raises ends the update, with nothing written.
            attempts_max: how often at most.
            ttl_ms: as of :meth:`put`, as is ``bound``: without them the row stays, whatever its end was before.
            bound: the row ends with this session.
            timeout_s: of each read and each write.

        Returns:
            The value that was written, the result, and how many attempts it took.

        Raises:
            OperationFailed: CONFLICT, not applied, if others were faster each time; as :meth:`get` and :meth:`put`.
        """
        return await update(self, table, key, change, attempts_max, ttl_ms=ttl_ms, bound=bound, timeout_s=timeout_s)

    def submit(
        self,
        operation: OperationName,
        table: str,
        key: str,
        value: Value | UnsetType = UNSET,
        *,
        by: int = 1,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
    ) -> Submitted:
        """Start a write without waiting; the future resolves as the call of that name would return or raise.

        Cancelling the future gives up waiting; a write that has travelled may be applied all the same. Its
        ``request_id`` is there before it travels.

        Raises:
            OperationFailed: WINDOW_FULL if as many writes are outstanding as the window has places: nothing was taken;
                or why the session has ended.
        """
        pending = self._writes.any(operation, table, key, value, by, if_absent, if_version, if_value, timeout_s)
        if ttl_ms is not None or bound:
            let_end(pending, ttl_ms, bound=bound)
        if position is not None:
            self._writes.note(pending, position)
        places, order = self._places, self._sender.in_order
        if places.crowded or (order is not None and order.taken):
            raise places.full()
        submitted = pending.promise = Submitted(pending, self._sender)
        if self._tracing is not None:
            self._tracing.write(pending)
        places.outstanding += 1
        self._sender.enqueue(pending)
        return submitted

    async def put_many(
        self,
        table: str,
        rows: Mapping[str, Value] | Iterable[tuple[str, Value]],
        *,
        ttl_ms: int | None = None,
        bound: bool = False,
        position: Value = None,
        timeout_s: float | None = None,
    ) -> ManyResult:
        """Write many rows, each exactly once; on a stream table they travel as ranges.

        Rows have contiguous sequence numbers where they travel together; row *i* of a part has the part's commit
        number + *i*. All rows together are not one transaction: see Raises.

        Args:
            table: a declared table of either kind.
            rows: at least one key with its value; a key may come twice, the later one wins.
            ttl_ms: when each of them ends, as of :meth:`put`.
            bound: likewise.
            position: as of :meth:`put`, kept with the last row: a process that is killed before begins with the first.
            timeout_s: total time for all rows.

        Raises:
            PartialFailure: some rows were applied and some have no result.
            OperationFailed: no row has a result; as :meth:`put`.
        """
        table, pairs = name_of(table), pairs_of(rows)
        deadline = self._writes.deadline(timeout_s)
        if self._connection.encode is not None:
            pairs = [(key, self._writes.plain(value)) for key, value in pairs]
        if (order := self._sender.in_order) is not None:
            return await self._put_in_order(order, table, pairs, (ttl_ms, bound), position, deadline)
        known = self._connection.kinds.known.get(table)
        if known is None:  # what the values are is decided now, whatever becomes of them until the kind is known
            pairs = [(key, msgspec.msgpack.decode(packed(value))) for key, value in pairs]
        kind = known or await self._connection.kinds.learn(table, deadline)
        while True:
            try:
                return await self._put_rows(table, pairs, kind, (ttl_ms, bound), position, deadline)
            except PartialFailure:
                raise
            except OperationFailed as lost:
                surely_not = lost.outcome is Outcome.NOT_APPLIED
                if surely_not and lost.code is Code.BAD_REQUEST and await self._changed(table, kind, deadline):
                    kind = self._connection.kinds.known[table]
                    continue
                # No row was applied for certain: all of them may go on in the session that follows.
                over = lost.code is not Code.SESSION_EXPIRED or not surely_not
                if over or not self._sender.renews:
                    raise
                await self._sender.ready(deadline)

    async def _put_in_order(
        self,
        order: CallOrder,
        table: str,
        pairs: list[tuple[str, Value]],
        end: tuple[int | None, bool],
        position: Value,
        deadline: float,
    ) -> ManyResult:
        """Write rows where each call has its turn: none is tried again, for that would be behind later calls."""
        pairs = [(key, msgspec.msgpack.decode(packed(value))) for key, value in pairs]
        async with order.turn(deadline):
            kind = await self._connection.kinds.learn(table, deadline)
            sent = await self._send_rows(table, pairs, kind, end, position, deadline)
        return await self._told(sent)

    async def _changed(self, table: str, kind: TableKind, deadline: float) -> bool:
        """Tell whether a table has another kind by now: it was dropped, and declared again."""
        kinds = self._connection.kinds
        kinds.known.pop(table, None)
        return await kinds.learn(table, deadline) != kind

    async def _put_rows(
        self,
        table: str,
        pairs: list[tuple[str, Value]],
        kind: TableKind,
        end: tuple[int | None, bool],
        position: Value,
        deadline: float,
    ) -> ManyResult:
        return await self._told(await self._send_rows(table, pairs, kind, end, position, deadline))

    async def _send_rows(
        self,
        table: str,
        pairs: list[tuple[str, Value]],
        kind: TableKind,
        end: tuple[int | None, bool],
        position: Value,
        deadline: float,
    ) -> _SentRows:
        """Enqueue rows."""
        sender = self._sender
        await sender.ready(deadline)
        future: asyncio.Future[ManyResult] = asyncio.get_running_loop().create_future()
        client_id = sender.client_id  # that of all rows, also where another session follows while some wait for a place
        collector = RowsCollector(client_id, len(pairs), future)
        rows_max = min(self._connection.tuning.range_rows_max, sender.tracker.window)
        prepared = self._writes.many(table, pairs, kind, collector, deadline, rows_max)
        ttl_ms, bound = end
        if ttl_ms is not None or bound:
            for pending in prepared:
                let_end(pending, ttl_ms, bound=bound)
        if position is not None:
            self._writes.note(prepared[-1], position)
        pendings = deque(prepared)
        if self._tracing is not None:
            self._tracing.rows(table, list(pendings), future)
        try:
            await sender.enqueue_all(pendings, deadline, wait=self._wait)
        except OperationFailed as failure:
            # Rows already sent decide the outcome, together with those that were never sent.
            unsent = sum(len(pending.keys) if isinstance(pending, PendingRows) else 1 for pending in pendings)
            collector.fail(unsent, failure)
        except asyncio.CancelledError as cancelled:
            future.cancel()
            self._tell(cancelled, prepared, client_id)
            self._sender.missed_rows(client_id, collector.parts)
            raise
        return _SentRows(future, prepared, collector, client_id)

    async def _told(self, sent: _SentRows) -> ManyResult:
        try:
            return await sent.promise
        except asyncio.CancelledError as cancelled:
            self._tell(cancelled, sent.prepared, sent.client_id)
            self._sender.missed_rows(sent.client_id, sent.collector.parts)
            raise

    async def get(
        self,
        table: str,
        key: str,
        *,
        consistency: Consistency = "session",
        held: Row | None = None,
        timeout_s: float | None = None,
    ) -> Row | None:
        """Read a row; with ``session`` consistency it reflects at least what this session has written and read.

        ``held`` as of :meth:`oncegate.Client.get`.

        Returns:
            The row, or None if there is none.
        """
        self._writes.check()
        seen = self._sender.highest_commit
        row, commit = await self._connection.look(table, key, consistency, seen, timeout_s, held)
        # NOT_FOUND also raises the read floor: a node that still has the row must not answer the next read.
        self._sender.saw(commit)
        return row

    async def _keyed(
        self, one: Transaction, key: str, position: Value, timeout_s: float | None, *, single: bool = True
    ) -> WriteResult[Any]:
        if position is not None:
            raise bad("a write under an idempotency key is not in the outbox: it has no position")
        if self._sender.in_order is not None:
            raise bad("a write under an idempotency key has no place in the order of a session: leave out one of them")
        send = keyed_writes.send_one if single else keyed_writes.send
        result = await send(self._connection, one, key, timeout_s)
        self._sender.saw(result.commit)
        return result

    async def _write(self, pending: Pending, position: Value) -> WriteResult[Any]:
        if position is not None:
            self._writes.note(pending, position)
        if self._tracing is not None:
            self._tracing.write(pending)
        future: asyncio.Future[WriteResult] = pending.promise  # type: ignore[assignment]
        order = self._sender.in_order
        if order is None:
            await self._places.take(pending.deadline, wait=self._wait)
            self._sender.enqueue(pending)
        else:
            async with order.turn(pending.deadline):
                await self._places.take(pending.deadline, wait=self._wait)
                self._sender.enqueue(pending)
        try:
            return await future
        except asyncio.CancelledError as cancelled:
            self._tell(cancelled, [pending], self._sender.client_id)
            self._missed(future)
            raise

    def _missed(self, future: asyncio.Future[WriteResult]) -> None:
        """Keep a result that came in the turn of the loop in which its caller was cancelled."""
        if future.done() and not future.cancelled() and future.exception() is None:
            self._sender.missed(future.result())

    def _tell(
        self, cancelled: asyncio.CancelledError, pendings: Sequence[Pending | PendingRows], client_id: ClientId
    ) -> None:
        """Let the cancellation of a call carry the ids of what may have travelled."""
        told: list[RequestId] = []
        for pending in pendings:
            if isinstance(pending, PendingRows):
                numbers = range(pending.first, pending.first + len(pending.keys)) if pending.first else range(0)
            else:
                numbers = range(pending.operation.sequence, pending.operation.sequence + 1)
            told += [RequestId(client_id, SequenceNumber(number)) for number in numbers if number]
        cancelled.request_ids = tuple(told)  # type: ignore[attr-defined]


def _id_of(pending: Pending, sender: Sender) -> RequestId | None:
    sequence = pending.operation.sequence
    return RequestId(sender.client_id, SequenceNumber(sequence)) if sequence else None
