"""A line of contenders: each has a row of its own, bound to its session; who has the lower commit number is before.

Owns: joining, waiting, holding and leaving. What a lock, a semaphore or an election is, is only who has to wait for
whom: :mod:`oncegate.gateway.client.recipes.lock`.

A row that is there keeps its place: rows before it can only go, since new ones have higher commit numbers. Whoever is
not blocked once holds until its own row goes. So *this row is there* is all that a transaction has to check.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from oncegate.gateway.client.arguments import bad, key_of, name_of
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
from oncegate.gateway.client.results import Change, Json, Value
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import RequestId

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session
    from oncegate.gateway.client.transaction import Transaction

T = TypeVar("T")
TABLE: Final = "recipes"
REFUSED_PAUSE_S: Final = 1.0
"""Longest pause before a contender whom the cluster refuses to let leave tries again."""
_leaving: Final[set[asyncio.Task[Any]]] = set()


class Recipe:
    """A named thing in a table; ``oncegate.recipes`` has the kinds of it.

    Args:
        client: reads and watches.
        session: writes; may open anew by itself (``renew_lost``): what was held is then lost, and can be had again.
        name: names it for everybody; without ``/``.
        table: a resident table that holds nothing but recipes.

    Raises:
        OperationFailed: BAD_REQUEST for a name or a table that cannot be.
    """

    kind: ClassVar[str]

    def __init__(self, client: Client, session: Session, name: str, *, table: str = TABLE) -> None:
        if "/" in key_of(name):
            raise bad("the name of a recipe has no /")
        self._client, self._session, self._table = client, session, name_of(table)
        self._prefix = f"{self.kind}/{name}/"
        key_of(self._new_key())

    def _new_key(self) -> str:
        return f"{self._prefix}{os.urandom(12).hex()}"

    def _plain(self, value: Value) -> Json:
        """Return a value as its row says it, which is not as it was given where the client has an ``encode``."""
        row = self._session.transaction().put(self._table, self._prefix, value).operation
        assert row.writes
        plain: Json = msgspec.msgpack.decode(row.writes[0].value)
        return plain

    async def _changes(self, commit: int | None) -> AsyncGenerator[Change, None]:
        """Yield what changes above a commit number; ends if the cluster keeps no record of it: read all again."""
        watch = self._client.watch(self._table, prefix=self._prefix, from_commit=commit)
        try:
            async with aclosing(aiter(watch)) as changes:
                async for change in changes:
                    yield change
        except OperationFailed as failure:
            if failure.code is not Code.RETENTION_EXCEEDED:
                raise

    def _still_there(self, there: bool) -> None:
        """Raise SESSION_EXPIRED if a row of one's own is not there any more."""
        if not there:
            detail = "the session has ended, and the place in line with it"
            raise OperationFailed(Code.SESSION_EXPIRED, detail, outcome=Outcome.NOT_APPLIED)


class Hold:
    """What a contender has got, until it gives it back or its row has gone with its session.

    Attributes:
        token: the fencing token: a commit number, greater than those of all that held before.
    """

    def __init__(self, client: Client, session: Session, table: str, key: str, token: int) -> None:
        self.token = token
        self._client, self._session, self._table, self._key = client, session, table, key
        self._owner = session.client_id
        self._left: asyncio.Future[bool] | None = None

    @property
    def alive(self) -> bool:
        """Whether it surely holds at this moment, by the session's lease; a process that is stopped learns nothing.

        For stopping work early. What must not happen without the hold is fenced: :meth:`guard`.
        """
        session = self._session
        return self._left is None and session.client_id == self._owner and session.memory_ms_left > 0

    def guard(self, transaction: Transaction) -> Transaction:
        """Let a transaction happen only while this hold does; whoever runs it, and whenever it arrives. Returns it."""
        return transaction.check(self._table, self._key, version=self.token)

    async def lost(self) -> None:
        """Return when it is over: given back, ended with its session, or no longer sure (:attr:`alive`)."""
        commit = self.token
        while self.alive:
            watch = self._client.watch(self._table, key=self._key, from_commit=commit)
            try:
                # The lease is renewed meanwhile: when what is left of it now has passed, it is looked at again.
                async with asyncio.timeout(self._session.memory_ms_left / 1000), aclosing(aiter(watch)) as changes:
                    async for change in changes:
                        if change.deleted:
                            return
            except TimeoutError:
                continue
            except OperationFailed as failure:
                if failure.outcome is not Outcome.NOT_APPLIED:
                    raise
                row = await self._client.get(self._table, self._key)
                if row is None or row.version != self.token:
                    return
                # The changes since the token may never be kept again; and who is refused for now does not ask at once.
                commit = row.commit
                await asyncio.sleep(min(REFUSED_PAUSE_S, self._session.memory_ms_left / 1000))

    async def release(self) -> bool:
        """Give it back; idempotent.

        Returns:
            Whether it was held until now. False: its row had gone with the session; or nobody can tell, and it goes.
        """
        if self._left is None:
            self._left = leave(self._session, self._table, self._key, version=self.token)
        return await asyncio.shield(self._left)


def leave(
    session: Session,
    table: str,
    key: str,
    *,
    version: int | None = None,
    after: BaseException | None = None,
) -> asyncio.Task[bool]:
    """Delete a contender's row, whoever waits for it; the result is whether it was there.

    It is tried as long as the session lives: with it the row ends too. ``after`` is what cut its put off. A put in
    doubt is settled first: a late copy of it must not bring the row back.
    """

    async def deleted() -> bool:
        doubts, full = list(put_in_doubt(after)), False
        while True:
            try:
                if full:
                    await session.drain()
                while doubts:
                    await session.resolve(doubts[-1])
                    doubts.pop()
                return (await session.delete(table, key, if_version=version)).applied
            except OncegateError as failure:
                full = failure.code is Code.WINDOW_FULL
                if failure.code is Code.STALE and doubts:
                    doubts.pop()  # acknowledged: no copy of it is taken any more
                elif failure.retry_after_ms is not None:  # until after the deadline of a call, not of the session
                    await asyncio.sleep(min(failure.retry_after_ms / 1000, REFUSED_PAUSE_S))
                elif not full and failure.code is not Code.TIMEOUT:
                    return False

    return task_of(deleted())


def task_of(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Let something be done to its end, whoever waits for it."""
    task = asyncio.ensure_future(work)
    _leaving.add(task)  # a loop keeps weak references only
    task.add_done_callback(_leaving.discard)
    return task


def put_in_doubt(error: BaseException | None) -> Sequence[RequestId]:
    """Return the ids that this error itself carries: one in its context may be of a write of the application."""
    if isinstance(error, OutcomeUnknown):
        return () if error.request_id is None else (error.request_id,)
    return getattr(error, "request_ids", ())


class Line(Recipe):
    """A recipe whose contenders stand in line."""

    @abstractmethod
    def _blocked(self, before: Mapping[str, Json], value: Value) -> bool:
        """Say whether the contenders before, their rows' values by key, block one with this value."""

    async def _join(self, value: Value, *, wait: bool = True) -> Hold | None:
        """Stand in line until it is one's turn; None if that would take waiting, and ``wait`` is not set.

        Whoever does not come to hold, for whatever reason, leaves.
        """
        key = self._new_key()
        try:
            joined = await self._session.put(self._table, key, value, bound=True)
            hold = Hold(self._client, self._session, self._table, key, joined.commit)
            if await self._turn(hold, key, value, wait=wait):
                return hold
        except BaseException as cut:
            leave(self._session, self._table, key, after=cut)
            raise
        await hold.release()
        return None

    async def _turn(self, hold: Hold, key: str, value: Value, *, wait: bool) -> bool:
        while True:
            scan = self._client.rows(self._table, prefix=self._prefix)
            rows = {row.key: row async for row in scan}
            self._still_there(key in rows)
            before = {row.key: row.value for row in rows.values() if row.version < hold.token}
            if not self._blocked(before, value):
                return True
            if not wait:
                return False
            async with aclosing(self._changes(scan.commit)) as changes:
                async for change in changes:
                    if not change.deleted:
                        continue
                    self._still_there(change.key != key)
                    before.pop(change.key, None)
                    if not self._blocked(before, value):
                        return True

    @asynccontextmanager
    async def _held(self, value: Value) -> AsyncGenerator[Hold, None]:
        hold = await self._join(value)
        assert hold is not None
        try:
            yield hold
        finally:
            await hold.release()
