"""Deadlines of waiting callers: one timer for all of them, and the errors of writes that were never sent.

Owns: when the next deadline is checked, and the end of writes that have no number yet. Deadlines of writes that were
sent: :mod:`oncegate.gateway.client.batch_call`. Of callers without a place: :mod:`oncegate.gateway.client.places`. Read
next: :mod:`oncegate.gateway.client.sender`, which puts the three together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from oncegate.gateway.client.batch import Pending, PendingRows
from oncegate.gateway.client.failures import DeadlineExceeded, OperationFailed
from oncegate.rifl.errors import Code, Outcome

NEVER: Final = float("inf")


class Sweep:
    """Looks at deadlines when the earliest of them passes.

    Args:
        loop: its timer and clock.
        expire: given the time, fails what is late and returns the next deadline, or :data:`NEVER`.

    Attributes:
        at: when it looks next; only deadlines before that need :meth:`arm`.
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


def expire_unsent(queue: deque[Pending | PendingRows], now: float) -> tuple[int, float]:
    """Fail the writes whose deadline has passed; remove them, and those without a waiting caller, from the queue.

    Returns:
        How many left the queue, and the next deadline.
    """
    following = NEVER
    kept: list[Pending | PendingRows] = []
    for pending in queue:
        if pending.promise.done():
            continue
        if pending.deadline <= now:
            fail_unsent(pending, late("it was never sent"))
        else:
            kept.append(pending)
            following = min(following, pending.deadline)
    expired = len(queue) - len(kept)
    if expired:
        queue.clear()
        queue.extend(kept)
    return expired, following


def fail_unsent(pending: Pending | PendingRows, failure: OperationFailed) -> None:
    """Fail a write that was never sent with the reason, if its caller still waits."""
    if pending.promise.done():
        return
    if isinstance(pending, PendingRows):
        pending.promise.fail(len(pending.keys), failure)
    else:
        pending.promise.set_exception(failure)


def late(why: str, code: Code = Code.TIMEOUT) -> DeadlineExceeded:
    """Return the error of a write whose deadline passed before it was sent; it was surely not applied."""
    return DeadlineExceeded(code, f"not sent before the deadline: {why}", outcome=Outcome.NOT_APPLIED)
