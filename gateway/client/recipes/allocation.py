"""What is handed out once: numbers, names, and permits of a time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from oncegate.gateway.client.arguments import KEY_BYTES_MAX, canonical, key_of, text, whole
from oncegate.gateway.client.recipes.line import TABLE, Recipe
from oncegate.gateway.client.results import Row, Value, WriteResult
from oncegate.gateway.client.transaction import Transaction

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session

COUNT_MAX = 2**40


class Sequence(Recipe):
    """Numbers from 1, each handed out once, in rising order.

    A number is handed out for good, whether the session lives or not: one whose user ended before using it, or whose
    outcome is unknown, stays unused.
    """

    kind = "sequence"

    async def next(self, count: int = 1) -> range:
        """Return the next numbers, adjacent, and greater than all that were returned before this call."""
        count = whole(count, "count", 1, COUNT_MAX)
        last = (await self._session.increment(self._table, f"{self._prefix}last", count)).value
        assert isinstance(last, int)
        return range(last - count + 1, last + 1)


class Registry(Recipe):
    """Names that have one owner each.

    While the session lives: a taken name is its owner's until it is given up. After: likewise; one that was taken with
    ``bound`` is free again, and gone before anybody else can have it.
    """

    kind = "registry"

    def _entry(self, entry: str) -> str:
        return key_of(self._prefix + text(entry, "entry", KEY_BYTES_MAX))

    async def take(self, entry: str, owner: Value, *, bound: bool = False) -> int | None:
        """Take a name, for an owner that nobody else calls itself.

        Returns:
            Its token, as :attr:`Hold.token`; the same if this owner has it already. None: another owner has it.
        """
        key = self._entry(entry)
        while True:
            taken = await self._session.insert(self._table, key, owner, bound=bound)
            if taken.applied:
                return taken.commit
            had, token = taken.value, taken.version
            if had is None:  # a refusal leaves out a value that is large
                row = await self.find(entry)
                if row is None:
                    continue
                had, token = row.value, row.version
            return token if canonical(had) == canonical(self._plain(owner)) else None

    async def give_up(self, entry: str, token: int) -> bool:
        """Give a name up; False if it is not had under this token any more."""
        return (await self._session.delete(self._table, self._entry(entry), if_version=token)).applied

    async def find(self, entry: str) -> Row | None:
        """Return who has a name, linearizable: ``value`` is the owner, ``version`` the token."""
        return await self._client.get(self._table, self._entry(entry))

    def guard(self, transaction: Transaction, entry: str, token: int) -> Transaction:
        """Let a transaction happen only while a name is had under this token. Returns it."""
        return transaction.check(self._table, self._entry(entry), version=token)


class RateLimiter(Recipe):
    """At most ``permits`` in each window of ``per_ms`` of cluster time, which begins with the first permit.

    Across the border of two windows twice as many may be close together. Everyone must name the same figures. A permit
    is used once it is given, whether the session lives or not; one whose outcome is unknown may be used.
    """

    kind = "rate"

    def __init__(
        self, client: Client, session: Session, name: str, permits: int, per_ms: int, *, table: str = TABLE
    ) -> None:
        super().__init__(client, session, name, table=table)
        self._permits = whole(permits, "permits", 1, COUNT_MAX)
        self._per_ms = whole(per_ms, "per_ms", 1)
        self._key = f"{self._prefix}window"

    async def try_acquire(self, count: int = 1) -> bool:
        """Take permits if the window has so many left; at most ``permits``."""
        return (await self._take(count)).applied

    async def acquire(self, count: int = 1) -> None:
        """Take permits, and wait for the next window as often as it takes; whoever comes first, has them."""
        while not (refused := await self._take(count)).applied:
            async with aclosing(self._changes(refused.commit)) as changes:
                async for change in changes:
                    if change.deleted:
                        break

    async def _take(self, count: int) -> WriteResult:
        count = whole(count, "count", 1, self._permits)
        while True:
            more = Transaction().check(self._table, self._key, present=True)
            result = await self._session.transact(more.increment(self._table, self._key, count, ceiling=self._permits))
            if result.applied or result.failed != "conditions[0]":
                return result
            result = await self._session.insert(self._table, self._key, count, ttl_ms=self._per_ms)
            if result.applied:
                return result
