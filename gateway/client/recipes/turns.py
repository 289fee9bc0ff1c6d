"""Waiting for rows under a prefix, for all who wait in this process: one question to the cluster for all of them.

Owns: one line a client, table and prefix, as long as somebody stands in it, and the question that is under way for it.
What a turn is: :meth:`oncegate.Client.turns`.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from oncegate.rifl.errors import OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.client.client import Client

COUNT_MAX: Final = 64
PAUSE_S: Final = 0.5
"""Between two questions of which the first was refused: up to so long, at random."""

_Used = asyncio.Future[None]
"""Ends when whoever has the turn has looked."""
_Place = tuple["Client", str, str]


class _Line:
    """Those who wait in this process for one prefix; ``users`` stand in it, or use a turn of it."""

    def __init__(self, place: _Place) -> None:
        self.users = 0
        self._place = place
        self._waiting: deque[asyncio.Future[_Used]] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def wait(self) -> _Used:
        """Wait for a turn."""
        given: asyncio.Future[_Used] = asyncio.get_running_loop().create_future()
        self._waiting.append(given)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        try:
            return await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled() and given.exception() is None:
                given.result().set_result(None)  # unused: its row lies, and the next question finds it
            raise
        finally:
            if given in self._waiting:
                self._waiting.remove(given)

    def close(self) -> None:
        """End the question: nobody waits for its answer."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        client, table, prefix = self._place
        while self._waiting:
            try:
                turns = await client.turns(table, prefix=prefix, count=min(COUNT_MAX, len(self._waiting)))
            except OncegateError as refusal:
                if not refusal.retryable:
                    for given in self._waiting:
                        if not given.done():
                            given.set_exception(refusal)
                    return
                await asyncio.sleep(random.uniform(0, PAUSE_S))
                continue
            used: list[_Used] = []
            while self._waiting and len(used) < turns:
                given = self._waiting.popleft()
                if not given.done():
                    used.append(asyncio.get_running_loop().create_future())
                    given.set_result(used[-1])
            if used:
                await asyncio.wait(used)


_LINES: Final[dict[_Place, _Line]] = {}


@asynccontextmanager
async def turn(client: Client, table: str, prefix: str) -> AsyncGenerator[None, None]:
    """Wait for a turn and have it for a block; the next question is asked when all that came with it were used.

    Raises:
        OncegateError: as :meth:`oncegate.Client.turns`, if it is not worth asking again.
    """
    place = client, table, prefix
    line = _LINES.get(place)
    if line is None:
        line = _LINES[place] = _Line(place)
    line.users += 1
    try:
        used = await line.wait()
        try:
            yield
        finally:
            used.set_result(None)
    finally:
        line.users -= 1
        if not line.users:
            line.close()
            if _LINES.get(place) is line:
                del _LINES[place]
