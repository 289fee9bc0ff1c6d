"""A queue: many put, many take, and what is done with an item is done once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.recipes.line import Hold, Recipe, leave
from oncegate.gateway.client.results import Row, Value, WriteResult
from oncegate.gateway.client.transaction import Transaction
from oncegate.rifl.errors import Code

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session

PAGE_ROWS: Final = 64


class Claim(Hold):
    """An item that one consumer has; its row is bound to the consumer's session, the item's is not.

    Attributes:
        item: what was put.
        number: its place in the queue, from 1.
        token: as :attr:`Hold.token`.
    """

    def __init__(self, client: Client, session: Session, table: str, key: str, token: int, row: Row) -> None:
        super().__init__(client, session, table, key, token)
        self.item, self.number, self._item_key = row.value, int(_number(row)), row.key

    async def complete(self, effects: Transaction | None = None) -> WriteResult:
        """Take the item out of the queue for good, together with the effects of its processing, exactly once.

        Args:
            effects: as of :meth:`completing`.

        Returns:
            ``applied`` is False if the claim was lost meanwhile, or a condition of the effects failed (``failed`` says
            which): nothing has happened then.
        """
        result = await self._session.transact(self.completing(effects))
        if result.applied and self._left is None:
            self._left = asyncio.get_running_loop().create_future()
            self._left.set_result(True)  # its row has gone with the item
        return result

    def completing(self, effects: Transaction | None = None) -> Transaction:
        """Return the transaction that :meth:`complete` sends, for any session, at any time: it happens once at most.

        ``effects`` are writes and conditions that happen with it, all or none; two writes and one condition are added.
        """
        whole = self.guard(Transaction() if effects is None else effects)
        return whole.delete(self._table, self._item_key).delete(self._table, self._key)


class Queue(Recipe):
    """Items are claimed in the order of their numbers, and each is completed exactly once.

    Puts that follow one another are in their order; concurrent ones in any. Consumers at work at the same time finish
    in any order, and an item whose consumer has ended comes again, before later ones.

    While the consumer's session lives: nobody else has the item. After: the claim goes with the session and the item
    is claimed again, so processing may begin more than once; :meth:`Claim.complete`, and all that happens with it,
    is done once, by the one that has the claim then. An item stays until it is completed, whoever put it.
    """

    kind = "queue"

    async def put(self, item: Value) -> int:
        """Put an item at the end, exactly once while this session lives; return its number.

        A number whose put has failed is left out.
        """
        tail = await self._session.increment(self._table, f"{self._prefix}tail")
        number = tail.value
        assert isinstance(number, int)
        await self._session.insert(self._table, f"{self._prefix}item/{number:019d}", item)
        return number

    async def claim(self) -> Claim:
        """Wait for an item that nobody has, and claim it; cancelled, it leaves no trace."""
        while True:
            scan = self._client.rows(self._table, prefix=f"{self._prefix}claim/")
            claimed = {_number(row) async for row in scan}
            items = self._client.rows(
                self._table, prefix=f"{self._prefix}item/", commit=scan.commit, page_rows=PAGE_ROWS
            )
            try:
                async with aclosing(aiter(items)) as rows:
                    async for row in rows:
                        if _number(row) not in claimed:
                            claim = await self._take(row)
                            if claim is not None:
                                return claim
                await self._change(scan.commit)
            except OperationFailed as failure:
                if failure.code is not Code.RETENTION_EXCEEDED:
                    raise

    @asynccontextmanager
    async def claimed(self) -> AsyncGenerator[Claim, None]:
        """Claim an item for a block; one that is not completed in it is given back."""
        claim = await self.claim()
        try:
            yield claim
        finally:
            await claim.release()

    async def _take(self, row: Row) -> Claim | None:
        key, mine = f"{self._prefix}claim/{_number(row)}", os.urandom(12).hex()
        taking = Transaction().check(self._table, row.key, present=True).insert(self._table, key, mine, bound=True)
        try:
            taken = await self._session.transact(taking)
        except BaseException as cut:
            leave(self._session, self._table, key, value=mine, after=cut)
            raise
        return Claim(self._client, self._session, self._table, key, taken.commit, row) if taken.applied else None

    async def _change(self, commit: int | None) -> None:
        """Wait until an item is put or given back."""
        async with aclosing(self._changes(commit)) as changes:
            async for change in changes:
                kind = change.key[len(self._prefix) :].partition("/")[0]
                if kind == ("claim" if change.deleted else "item"):
                    return


def _number(row: Row) -> str:
    return row.key.rpartition("/")[2]
