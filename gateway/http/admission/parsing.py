"""Parsing large bodies: on one thread beside the event loop, one body at a time, tenants in turn.

Owns: the thread, and whose turn it is. Parsing holds the interpreter's lock like any other code of Python, so a second
thread would only take more from the event loop. A tenant that sends many large bodies waits for itself: at most one of
its bodies is ahead of another tenant's. What may wait is bounded by
:class:`oncegate.gateway.http.admission.bodies.BodyBudget`. Must not know what is parsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class _Turn:
    """The bodies of one tenant that wait, and the lock that they wait for."""

    __slots__ = ("lock", "waiting")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class ParsingThread:
    """Runs work that takes long, off the event loop. One a node; made and used on the loop's thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "oncegate-parsing")
        self._free = asyncio.Lock()
        self._turns: dict[str, _Turn] = {}

    async def run(self, tenant: str, work: Callable[[], T]) -> T:
        """Return what ``work`` returns, or raise what it raises; cancelled, it may run to its end all the same."""
        turn = self._turns.get(tenant)
        if turn is None:
            turn = self._turns[tenant] = _Turn()
        turn.waiting += 1
        try:
            # A lock serves in the order of asking, and each tenant asks for the thread once at a time.
            async with turn.lock, self._free:
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(tenant, None)

    async def close(self, _: object = None) -> None:
        """Take no more work, and do not wait for what is under way; an application calls it with itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
