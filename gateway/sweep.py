"""One timer for the deadlines of all that waits: nobody who waits has one of its own.

Owns when the deadlines are looked at. What waits, and what becomes of it, is its owner's. Read next:
:mod:`oncegate.gateway.client.places`, :mod:`oncegate.gateway.node.proposer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

NEVER: Final = float("inf")


class Sweep:
    """Looks at deadlines when the earliest of them passes: at ``at``; only deadlines before that need :meth:`arm`.

    ``expire``, given the time, fails what is late and returns the next deadline, or :data:`NEVER`.
    """

    __slots__ = ("_expire", "_loop", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[float], float]) -> None:
        self.at = NEVER
        self._loop = loop
        self._expire = expire
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, at: float) -> None:
        """Look at the deadlines at that time, on the loop's clock, if not before."""
        if at >= self.at:
            return
        self.cancel()
        self.at = at
        self._timer = self._loop.call_at(at, self._fire)

    def cancel(self) -> None:
        """Look no more, until a deadline is armed again."""
        if self._timer is not None:
            self._timer.cancel()
        self.at, self._timer = NEVER, None

    def _fire(self) -> None:
        self.at, self._timer = NEVER, None
        self.arm(self._expire(self._loop.time()))
