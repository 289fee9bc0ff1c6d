"""The order of the calls of a session: who may enqueue next.

Owns: the turns of the calls. For a session ``in_order``, whose effects all come in the order of its calls:

1. A call has its turn when all calls before it are in the queue, also those that waited for a place.
2. One request is under way at a time. The server executes nothing new behind a write that it refuses for now, so what
   is sent again is a tail of the request, in its order.
3. A write that ended in doubt may be applied by a copy of it that is still on its way. Nothing leaves until its fate is
   learned (:mod:`oncegate.gateway.client.doubts`): each number is resolved, which seals it if it has not been
   executed. A write that was refused for good holds up nobody.

Example: 7 gets no answer and its deadline passes; 8 waits. The cluster answers again: 7 is resolved, as applied or
sealed, and 8 leaves. A late copy of 7 changes nothing any more. If 8's deadline passes first, it was never sent.

Must not know HTTP. Read next: :mod:`oncegate.gateway.client.sender`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oncegate.gateway.client.verdicts import late
from oncegate.rifl.errors import Code


class CallOrder:
    """The turns of one session's calls."""

    def __init__(self) -> None:
        self._turns = asyncio.Lock()  # first come, first served
        self._calls = 0  # that have their turn or wait for it, also the one that was woken and has not run yet

    @property
    def taken(self) -> bool:
        """Whether a further call has to wait for its turn."""
        return self._calls > 0

    @asynccontextmanager
    async def turn(self, deadline: float) -> AsyncIterator[None]:
        """Let a call enqueue its writes, behind those of all calls before it.

        Raises:
            DeadlineExceeded: they are not in the queue yet.
        """
        self._calls += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._turns.acquire()
            except TimeoutError as out_of_time:
                raise late("a call before it waits for a place", Code.WINDOW_FULL) from out_of_time
            try:
                yield
            finally:
                self._turns.release()
        finally:
            self._calls -= 1
