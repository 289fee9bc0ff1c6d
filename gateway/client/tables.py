"""The kind of each table, asked for once.

Owns: the cache of kinds. A table's kind never changes, so no entry is ever removed. Must not know sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from oncegate.gateway.client.settings import TableKind
from oncegate.rifl.errors import OncegateError

ASK_AGAIN_S = 1.0
"""How long the failure to learn a kind in passing is remembered."""


class TableKinds:
    """Kinds of the tables that a client has met.

    Args:
        ask: asks the cluster; raises NOT_FOUND for a table that is not declared.
        clock: monotonic seconds.
    """

    def __init__(self, ask: Callable[[str], Awaitable[TableKind]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self.known: dict[str, TableKind] = {}
        self._asking: dict[str, asyncio.Task[TableKind]] = {}
        self._not_before: dict[str, float] = {}

    async def learn(self, table: str) -> TableKind:
        """Return the kind; concurrent callers share one question.

        Raises:
            OncegateError: NOT_FOUND, or why the cluster could not be asked.
        """
        kind = self.known.get(table)
        if kind is not None:
            return kind
        return await asyncio.shield(self._task(table))

    def wonder(self, table: str) -> None:
        """Learn the kind in the background; after a failure a later call asks again."""
        if table in self._asking or self._not_before.get(table, 0.0) > self._clock():
            return
        self._task(table)

    async def close(self) -> None:
        """End the questions under way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _task(self, table: str) -> asyncio.Task[TableKind]:
        task = self._asking.get(table)
        if task is None:
            task = self._asking[table] = asyncio.ensure_future(self._learn(table))
            task.add_done_callback(lambda done: self._learned(table, done))
        return task

    async def _learn(self, table: str) -> TableKind:
        return await self._ask(table)

    def _learned(self, table: str, task: asyncio.Task[TableKind]) -> None:
        del self._asking[table]
        if task.cancelled():
            return
        failure = task.exception()
        if failure is None:
            self.known[table] = task.result()
        elif isinstance(failure, OncegateError):
            self._not_before[table] = self._clock() + ASK_AGAIN_S
