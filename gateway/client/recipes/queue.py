"""A queue: many put, many take, and what is done with an item is done once.

An item is one row, whose key says how it stands; its value is how often it was claimed, and what was put::

    ready/<number>   to be had
    later/<number>   put with a delay: a row that ends, and is moved to ready then
    taken/<number>   claimed: moved there by a take, bound to the consumer's session, and moved back at its end
    dead/<number>    claimed too often

Each step is one transaction of the log, so an item is in one place at any commit number. The number is the commit
number of the put, or of the transaction's write that put it. Who waits for an item stands in the line of
:mod:`oncegate.gateway.client.recipes.turns`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from oncegate.gateway.client.arguments import TTL_MS_MAX, flag, key_of, whole
from oncegate.gateway.client.recipes.line import TABLE, Hold, Recipe, put_in_doubt, task_of
from oncegate.gateway.client.recipes.turns import turn
from oncegate.gateway.client.results import Json, Row, Value, WriteResult, as_kind
from oncegate.gateway.client.transaction import TAKE_MAX, Transaction
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session
    from oncegate.gateway.wire import Operation
    from oncegate.rifl.ids import RequestId

T = TypeVar("T")
ATTEMPTS_MAX: Final = 1_000_000
_PAGE_ROWS: Final = 32
_DIGITS: Final = 19


class DeadLetter(NamedTuple):
    """An item that was claimed too often, or set aside (:meth:`Claim.bury`).

    Attributes:
        number: as :attr:`Claim.number`.
        item: what was put.
        attempts: how often it was claimed.
    """

    number: int
    item: Json
    attempts: int

    def item_as(self, kind: type[T]) -> T:
        """Return the item as a type, as :meth:`oncegate.Row.value_as`."""
        return as_kind(self.item, kind)


class Claim(Hold):
    """An item that one consumer has; its row is bound to the consumer's session, which renews itself.

    Attributes:
        item: what was put.
        number: its place in the queue; rises with each put.
        attempts: how often it was claimed, this time included.
        token: as :attr:`Hold.token`.
    """

    def __init__(
        self,
        client: Client,
        session: Session,
        table: str,
        prefix: str,
        number: int,
        token: int,
        attempts: int,
        item: Json,
    ) -> None:
        super().__init__(client, session, table, f"{prefix}taken/{number:0{_DIGITS}d}", token)
        self.number, self._prefix = number, prefix
        self.attempts, self.item = attempts, item
        self._cut: list[tuple[Operation, Sequence[RequestId]]] = []
        """What was sent to end it without an answer, and under which id."""
        self._done: tuple[Operation, WriteResult] | None = None

    def item_as(self, kind: type[T]) -> T:
        """Return the item as a type, as :meth:`oncegate.Row.value_as`."""
        return as_kind(self.item, kind)

    async def complete(self, effects: Transaction | None = None) -> WriteResult:
        """Take the item out of the queue for good, together with the effects of its processing, exactly once.

        Args:
            effects: as of :meth:`completing`, but they stay as they are, for the next claim if this one was lost.

        Called again with the same effects, after it was cut off or its outcome was unknown, it first asks what became
        of the call before, and tells its result if that was applied.

        Returns:
            ``applied`` is False if the claim was lost meanwhile, or a condition of the effects failed (``failed`` says
            which): nothing has happened then.
        """
        return await self._end(self.completing(None if effects is None else effects.copy()))

    def completing(self, effects: Transaction | None = None) -> Transaction:
        """Return the transaction that :meth:`complete` sends, for any session, at any time: it happens once at most.

        ``effects`` are writes and conditions that happen with it, all or none, such as the put of another queue
        (:meth:`Queue.putting`); a write and a condition are added to them: for another claim make them anew.
        """
        return self.guard(Transaction() if effects is None else effects).delete(self._table, self._key)

    async def bury(self) -> bool:
        """Set the item aside among the dead letters; False if the claim was lost meanwhile."""
        return (await self._end(self._moved("dead", self.attempts))).applied

    async def release(self, *, delay_ms: int | None = None, counts: bool = True) -> bool:
        """Give it back, to be claimed again before all later items, or after a while; idempotent.

        Args:
            delay_ms: cluster time for which nobody gets it.
            counts: whether this attempt counts; False: as if the item had not been claimed.

        Returns:
            Whether it was held until now. False: its row had gone with the session; or nobody can tell, and it goes.
        """
        if self._left is None:
            attempts = self.attempts - (not flag(counts, "counts"))
            back = self._moved("ready" if delay_ms is None else "later", attempts, delay_ms)
            self._left = task_of(_until_known(self._session, back))
        return await asyncio.shield(self._left)

    def _moved(self, place: str, attempts: int, delay_ms: int | None = None) -> Transaction:
        key, number = f"{self._prefix}{place}/", f"{self.number:0{_DIGITS}d}"
        moved, value = self.guard(Transaction()).delete(self._table, self._key), [attempts, self.item]
        if delay_ms is None:
            return moved.put(self._table, key + number, value)
        then = f"{self._prefix}ready/{number}"
        return moved.put(self._table, key + number, value, ttl_ms=_time(delay_ms, "delay_ms"), then=then)

    async def _end(self, transaction: Transaction) -> WriteResult:
        sent = transaction.operation
        if self._done is not None and self._done[0] == sent:
            return self._done[1]
        for request in [request for before, ids in self._cut if before == sent for request in ids]:
            fate = await self._session.resolve(request)
            if fate.applied and fate.result is not None:
                return self._ended(sent, fate.result)
        self._cut = [each for each in self._cut if each[0] != sent]
        try:
            return self._ended(sent, await self._session.transact(transaction))
        except BaseException as cut:
            self._cut.append((sent, put_in_doubt(cut)))
            raise

    def _ended(self, sent: Operation, result: WriteResult) -> WriteResult:
        if result.applied:
            self._done = sent, result
        if result.applied and self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            self._left.set_result(True)  # its row has gone
        return result


class Queue(Recipe):
    """Items are claimed in the order of their numbers, and each is completed exactly once.

    Puts that follow one another are in their order; concurrent ones in any. Consumers at work at the same time finish
    in any order, and an item whose consumer has ended comes again, before later ones.

    While the consumer's session lives: nobody else has the item; the session renews itself, whatever it holds. After:
    the item is there again in the same entry of the log, and processing may begin more than once;
    :meth:`Claim.complete`, and all that happens with it, is done once, by the one that has the claim then. An item
    stays until it is completed, whoever put it. A session has up to 1,024 claims.

    Args:
        client: as of :class:`Lock`, and the next three.
        session: writes.
        name: names it for everybody.
        table: a resident table that holds nothing but recipes.
        attempts_max: an item that was claimed so often, and not completed, is set aside among the dead letters by the
            next consumer that gets it; None: never. Everyone must name the same number: each decides by its own.
        visibility_ms: cluster time after which a claimed item comes again although its session lives; None: never. It
            cannot be renewed: it is for consumers that hang.
    """

    kind = "queue"

    def __init__(
        self,
        client: Client,
        session: Session,
        name: str,
        *,
        table: str = TABLE,
        attempts_max: int | None = None,
        visibility_ms: int | None = None,
    ) -> None:
        super().__init__(client, session, name, table=table)
        most = ATTEMPTS_MAX if attempts_max is None else attempts_max
        self._attempts_max = whole(most, "attempts_max", 1, ATTEMPTS_MAX)
        self._visibility_ms = None if visibility_ms is None else _time(visibility_ms, "visibility_ms")
        key_of(f"{self._prefix}taken/{'0' * _DIGITS}")

    async def put(self, item: Value, *, idempotency_key: str | None = None, delay_ms: int | None = None) -> int:
        """Put an item at the end, exactly once; return its number.

        Args:
            item: what the consumers get.
            idempotency_key: the name of the event that asks for it: put again under this key, by whichever process, it
                is in the queue once, as :meth:`oncegate.Client.transact` says. Without it, it is exactly once while
                this session lives. A session that keeps the order of its calls has no place for it: BAD_REQUEST.
            delay_ms: cluster time for which nobody gets it.
        """
        putting = self.putting(item, delay_ms=delay_ms)
        if idempotency_key is None:
            result = await self._session.transact(putting)
        else:
            result = await self._session.transact(putting, idempotency_key=idempotency_key)
        return result.writes[-1].version

    def putting(self, item: Value, effects: Transaction | None = None, *, delay_ms: int | None = None) -> Transaction:
        """Return a transaction that puts an item, for any session or key; what it writes beside happens with it.

        ``effects`` are writes and conditions of the application, or the completion of an item
        (:meth:`Claim.completing`); a write is added to them, whose result's ``version`` is the item's number. Each call
        adds an item: to try again, send what the first one returned.
        """
        whole_ = Transaction() if effects is None else effects
        item = self._plain(item)
        ready = f"{self._prefix}ready/"
        if delay_ms is None:
            # Of a row that never is: a stream table, whose items nobody can claim, refuses conditions.
            return whole_.check(self._table, ready, absent=True).put(self._table, ready, [0, item], numbered=True)
        later, ttl_ms = f"{self._prefix}later/", _time(delay_ms, "delay_ms")
        return whole_.put(self._table, later, [0, item], numbered=True, ttl_ms=ttl_ms, then=ready)

    async def claim(self) -> Claim:
        """Wait for an item that nobody has, and claim it; cancelled, it leaves no trace."""
        return (await self.claim_many(1))[0]

    async def claim_many(self, count: int) -> list[Claim]:
        """Wait for items, and claim those that are there at one stroke: at least one, at most ``count`` (1 to 64).

        Several cost what one does. Cancelled, it leaves no trace.
        """
        count = whole(count, "count", 1, TAKE_MAX)
        claims = await self._take(count)
        while not claims:
            async with turn(self._client, self._table, f"{self._prefix}ready/"):
                claims = await self._take(count)
        return claims

    @asynccontextmanager
    async def claimed(self) -> AsyncGenerator[Claim, None]:
        """Claim an item for a block; one that is not completed in it is given back."""
        claim = await self.claim()
        try:
            yield claim
        finally:
            await claim.release()

    def dead(self) -> AsyncIterator[DeadLetter]:
        """Read the dead letters in the order of their numbers: ``async for letter in queue.dead()``."""
        return self._dead()

    async def _dead(self) -> AsyncGenerator[DeadLetter, None]:
        async with aclosing(aiter(self._client.rows(self._table, prefix=f"{self._prefix}dead/"))) as rows:
            async for row in rows:
                value: Any = row.value
                yield DeadLetter(_number(row.key), value[1], value[0])

    async def redrive(self, number: int | None = None) -> int:
        """Put dead letters back into the queue, at their places, as if they had never been claimed.

        Args:
            number: that of one letter; by default all of them.

        Returns:
            How many there were; one that somebody else has put back meanwhile does not count.
        """
        which = "" if number is None else f"{whole(number, 'number'):0{_DIGITS}d}"
        moved = 0
        rows = self._client.rows(self._table, prefix=f"{self._prefix}dead/{which}", page_rows=_PAGE_ROWS)
        async with aclosing(aiter(rows)) as dead:
            async for row in dead:
                value: Any = row.value
                moved += (await self._session.transact(self._to_ready(row, value[1]))).applied
        return moved

    def _to_ready(self, row: Row, item: Json) -> Transaction:
        ready = f"{self._prefix}ready/{_number(row.key):0{_DIGITS}d}"
        moving = Transaction().delete(self._table, row.key, if_version=row.version)
        return moving.put(self._table, ready, [0, item])

    async def _take(self, count: int) -> list[Claim]:
        """Claim up to so many items that are there; those that were claimed too often are set aside, and not told."""
        ready, taken = f"{self._prefix}ready/", f"{self._prefix}taken/"
        taking = Transaction().take(self._table, ready, taken, count, ttl_ms=self._visibility_ms, bound=True)
        while True:
            result: WriteResult | None = None
            claims: list[Claim] = []
            try:
                result = await self._session.transact(taking)
                claims = await self._claims(result)
                if not claims or await self._living(claims):
                    return claims
            except BaseException as cut:
                for claim in claims:
                    task_of(claim.release(counts=False))
                task_of(self._undone(put_in_doubt(cut), None if claims else result))
                raise

    async def _claims(self, result: WriteResult) -> list[Claim]:
        claims: list[Claim] = []
        for row in (result.writes[-1].rows or ()) if result.writes else ():
            value: Any = row.value
            if not isinstance(value, list):  # over 64 KiB: it was not remembered
                found = await self._client.get(self._table, row.key)
                if found is None or found.version != row.version:
                    continue  # the session has ended
                value = found.value
            place = self._table, self._prefix, _number(row.key), row.version
            claims.append(Claim(self._client, self._session, *place, value[0], value[1]))
        return claims

    async def _living(self, claims: list[Claim]) -> list[Claim]:
        """Set those aside that were claimed too often before; returns the others, which are left of ``claims``."""
        for claim in [claim for claim in claims if claim.attempts > self._attempts_max]:
            claims.remove(claim)
            claim.attempts -= 1  # this one does not count: nobody was given it
            try:
                await claim.bury()
            except BaseException:
                task_of(claim.release())
                raise
        return claims

    async def _undone(self, doubts: Sequence[RequestId], result: WriteResult | None) -> None:
        """Give back what a take has taken that was cut off; its result, or what is in doubt, tells."""
        if result is not None:
            await self._give_back(result)
        for doubt in doubts:
            while True:
                try:
                    resolution = await self._session.resolve(doubt)
                except OncegateError as failure:
                    if failure.code is Code.WINDOW_FULL:
                        await self._session.drain()
                    elif failure.code is not Code.TIMEOUT:
                        break  # its result has gone, with the session or before: what it took ends with the session
                else:
                    if resolution.result is not None:
                        await self._give_back(resolution.result)
                    break

    async def _give_back(self, result: WriteResult) -> None:
        for claim in await self._claims(result):
            await claim.release(counts=False)


async def _until_known(session: Session, transaction: Transaction) -> bool:
    """Do a transaction that happens once at most, as often as it takes to know whether it did."""
    while True:
        try:
            return (await session.transact(transaction)).applied
        except OncegateError as failure:
            if failure.code is Code.WINDOW_FULL:
                await session.drain()
            elif failure.code is not Code.TIMEOUT:
                return False


def _number(key: str) -> int:
    return int(key.rpartition("/")[2])


def _time(value: int, what: str) -> int:
    return whole(value, what, 1, TTL_MS_MAX)
