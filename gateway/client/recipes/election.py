"""Leader election: the first in line leads, and says who it is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing

import msgspec

from oncegate.gateway.client.recipes.line import Hold, Line
from oncegate.gateway.client.results import Json, Value


class Leader(msgspec.Struct, frozen=True):
    """Who leads: what it said of itself, and its fencing token, which rises with every leader."""

    value: Json
    token: int


class Election(Line):
    """One leader at a time, the candidate that asked first; the others wait for its end.

    While the session lives: nobody else leads before the leader resigns, and what it does under :meth:`Hold.guard`
    happens only while it leads. After: the next candidate leads, with a greater token. Observers may see a leader that
    is none any more for as long as it takes to tell them; a guarded transaction of it is refused all the same.
    """

    kind = "election"

    def _blocked(self, before: Mapping[str, Json], value: Value) -> bool:
        return bool(before)

    async def campaign(self, value: Value = None) -> Hold:
        """Wait until this candidate leads; ``value`` is what observers see of it. See :meth:`Lock.acquire`."""
        hold = await self._join(value)
        assert hold is not None
        return hold

    def leading(self, value: Value = None) -> AbstractAsyncContextManager[Hold]:
        """Lead for a block: ``async with election.leading("me") as term: ...``."""
        return self._held(value)

    async def leader(self) -> Leader | None:
        """Return who leads at this moment, linearizable; None without a candidate."""
        found = [row async for row in self._client.rows(self._table, prefix=self._prefix)]
        return _first({row.key: Leader(row.value, row.version) for row in found})

    async def leaders(self) -> AsyncGenerator[Leader | None, None]:
        """Yield who leads now and each leader from then on, in order; None while there is none.

        One that led while the cluster keeps no record any more, because this observer was away, is left out.
        """
        last: list[Leader | None] = []
        while True:
            scan = self._client.rows(self._table, prefix=self._prefix)
            line = {row.key: Leader(row.value, row.version) async for row in scan}
            if last != [_first(line)]:
                last = [_first(line)]
                yield last[0]
            async with aclosing(self._changes(scan.commit)) as changes:
                async for change in changes:
                    if change.deleted:
                        line.pop(change.key, None)
                    else:
                        line[change.key] = Leader(change.value, change.version)
                    if last != [_first(line)]:
                        last = [_first(line)]
                        yield last[0]


def _first(line: Mapping[str, Leader]) -> Leader | None:
    return min(line.values(), key=lambda one: one.token, default=None)
