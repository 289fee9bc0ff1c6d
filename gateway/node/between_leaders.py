"""Commands that come while nobody leads: held for the next leader instead of refused.

Owns: how long, and what is sent on when. A refusal would send the client away to pause, with pauses that grow, and to
come back some time after the next leader was ready: most of what callers noticed of a leader that hands over. Nothing
that is held was proposed. Bounded by the proposer's bounds of what is in flight. Read next:
:mod:`oncegate.gateway.node.proposer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import OncegateError

T = TypeVar("T")

HOLD_MS: Final = 500
"""From when the lead was missed first: a transfer or an election takes less. Afterwards callers are refused at once,
and ask elsewhere: this node may be the one that is cut off."""


class BetweenLeaders(Generic[T]):
    """What waits for a leader; belongs to one event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[T], None],
        fail: Callable[[T, OncegateError], None],
    ) -> None:
        """``send`` sends what was held, when somebody leads; ``fail`` refuses it, when nobody does in time."""
        self._loop = loop
        self._send = send
        self._fail = fail
        self._held: list[tuple[T, OncegateError]] = []
        self.until_s: float | None = None
        """Until when what comes is held; None while somebody leads."""
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, held: T, refusal: OncegateError) -> None:
        """Keep it until somebody leads; refuse it when that takes too long, at once if it has already."""
        now = self._loop.time()
        if self.until_s is None:
            self.until_s = now + HOLD_MS / 1000
            self._timer = self._loop.call_later(HOLD_MS / 1000, self._give_up)
        if now >= self.until_s:
            self._fail(held, refusal)
        else:
            self._held.append((held, refusal))

    def led(self) -> None:
        """Somebody leads: send on what was held."""
        if self.until_s is None:
            return
        self.until_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, []
        for one, _ in held:
            self._send(one)

    def _give_up(self) -> None:
        held, self._held = self._held, []
        for one, refusal in held:
            self._fail(one, refusal)


class Lead:
    """Lets reads wait for the next leader, as commands do; used on one event loop."""

    def __init__(self) -> None:
        self._missed_at_s: float | None = None
        self.moved = asyncio.Event()
        """Set at the next change, and replaced by another one."""

    def change(self, *, known: bool) -> None:
        """The lead has changed; ``known``: somebody has it."""
        if known:
            self._missed_at_s = None
        elif self._missed_at_s is None:
            self._missed_at_s = asyncio.get_running_loop().time()
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    async def wait(self, moved: asyncio.Event, began_s: float, due_s: float = NEVER) -> bool:
        """Wait for ``moved``, taken before the attempt that failed; False if that takes too long, counted from the
        moment ``began_s`` or from when the leader was lost, if that was earlier, or longer than until ``due_s``.
        """
        since_s = began_s if self._missed_at_s is None else min(began_s, self._missed_at_s)
        try:
            async with asyncio.timeout_at(min(since_s + HOLD_MS / 1000, due_s)):
                await moved.wait()
        except TimeoutError:
            return False
        return True
