"""Locks and semaphores: lines in which everyone, only writers, or those beyond the permits have to wait."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Literal, get_args

from oncegate.gateway.client.arguments import one_of, whole
from oncegate.gateway.client.recipes.line import TABLE, Hold, Line
from oncegate.gateway.client.results import Json, Value

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client
    from oncegate.gateway.client.session import Session

PERMITS_MAX = 10_000


class _Line(Line):
    """A line that everyone joins alike."""

    async def acquire(self) -> Hold:
        """Wait for one's turn and return it; cancelled, or refused, it leaves no trace.

        Raises:
            OperationFailed: SESSION_EXPIRED, not applied, if the session has ended meanwhile; as
                :meth:`oncegate.Session.put` and :meth:`oncegate.Client.watch`.
        """
        hold = await self._join(True)
        assert hold is not None
        return hold

    async def try_acquire(self) -> Hold | None:
        """Return a hold if it is to be had at once."""
        return await self._join(True, wait=False)

    def held(self) -> AbstractAsyncContextManager[Hold]:
        """Hold it for a block: ``async with lock.held() as hold: ...``."""
        return self._held(True)


class Lock(_Line):
    """Mutual exclusion, first come, first served, by the commit numbers of those who ask.

    While the session lives: nobody else gets it before :meth:`Hold.release`, and no transaction under
    :meth:`Hold.guard` of an earlier holder happens after this one has got it. After: the row goes with the session,
    the next in line is told, and the late writes of the one before are refused by ``guard``; in other systems by
    comparing :attr:`Hold.token`, which only rises. It does not count: a holder that asks again waits for itself.
    """

    kind = "lock"

    def _blocked(self, before: Mapping[str, Json], value: Value) -> bool:
        return bool(before)


class Semaphore(_Line):
    """At most ``permits`` holders at once, first come, first served.

    Everyone must name the same number: each decides by its own. While and after the session: as :class:`Lock`.
    """

    kind = "semaphore"

    def __init__(self, client: Client, session: Session, name: str, permits: int, *, table: str = TABLE) -> None:
        super().__init__(client, session, name, table=table)
        self._permits = whole(permits, "permits", 1, PERMITS_MAX)

    def _blocked(self, before: Mapping[str, Json], value: Value) -> bool:
        return len(before) >= self._permits


Side = Literal["read", "write"]


class ReadWriteLock(Line):
    """Many readers or one writer, first come, first served: a reader waits behind a writer that waits.

    While and after the session: as :class:`Lock`, for each of both sides.
    """

    kind = "rwlock"

    def _blocked(self, before: Mapping[str, Json], value: Value) -> bool:
        return bool(before) if value == "write" else "write" in before.values()

    async def acquire(self, side: Side) -> Hold:
        """Wait for one's turn to read or write; see :meth:`Lock.acquire`."""
        hold = await self._join(one_of(side, "side", get_args(Side)))
        assert hold is not None
        return hold

    def reading(self) -> AbstractAsyncContextManager[Hold]:
        """Hold it with other readers for a block."""
        return self._held("read")

    def writing(self) -> AbstractAsyncContextManager[Hold]:
        """Hold it alone for a block."""
        return self._held("write")
