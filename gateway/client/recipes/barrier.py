"""A barrier: nobody goes on before so many have come."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from oncegate.gateway.client.arguments import whole
from oncegate.gateway.client.recipes.line import TABLE, Recipe, leave

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session

PARTIES_MAX = 10_000


class Barrier(Recipe):
    """Opens for good once ``parties`` wait at the same time; everyone must name the same number.

    While the session lives: who waits is counted. After: who has ended before it opened does not count any more, and
    others wait on; that it has opened stays, also for those who come later. Another round takes another name.
    """

    kind = "barrier"

    def __init__(self, client: Client, session: Session, name: str, parties: int, *, table: str = TABLE) -> None:
        super().__init__(client, session, name, table=table)
        self._parties = whole(parties, "parties", 1, PARTIES_MAX)
        self._open = f"{self._prefix}open"

    async def wait(self) -> None:
        """Wait until it is open; cancelled, it leaves no trace.

        Raises:
            OperationFailed: SESSION_EXPIRED, not applied, if the session has ended meanwhile.
        """
        key = self._new_key()
        try:
            await self._session.put(self._table, key, True, bound=True)
            if await self._met(key):
                await self._session.insert(self._table, self._open, True)
        except BaseException as cut:
            leave(self._session, self._table, key, after=cut)
            raise
        await leave(self._session, self._table, key)

    async def _met(self, key: str) -> bool:
        """Wait until so many are there, and return true, or until somebody has seen that before."""
        while True:
            scan = self._client.rows(self._table, prefix=self._prefix)
            there = {row.key async for row in scan}
            if self._open in there:
                return False
            self._still_there(key in there)
            if len(there) >= self._parties:
                return True
            async with aclosing(self._changes(scan.commit)) as changes:
                async for change in changes:
                    if change.deleted:
                        self._still_there(change.key != key)
                        there.discard(change.key)
                    elif change.key == self._open:
                        return False
                    else:
                        there.add(change.key)
                    if len(there) >= self._parties:
                        return True
