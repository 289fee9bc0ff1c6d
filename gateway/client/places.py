"""The bound on a session's outstanding writes, and the deadlines of those that wait for room.

Each write has a place of the window, and the next one waits or is refused. Owns: the number of places taken, the
callers that wait for one, and the order in which they get it. Must not know what a write is, nor when it ends:
:mod:`oncegate.gateway.client.sender` frees its place. A place is not a sequence number: those are the tracker's
(:mod:`oncegate.rifl.request_tracker`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.verdicts import late, not_applied
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import Code

AS_MANY: Final = "as many writes are outstanding as the window has places"


class Places:
    """The places of one session; waiters get them in the order in which they came.

    Args:
        loop: makes the futures of waiting callers.
        window: the number of places.
        arm: called with the deadline of each waiting caller; it must have :meth:`expire` called when that has passed.

    Attributes:
        window: the number of places, or 0 while the session is held: see :meth:`hold`.
        outstanding: places that are taken; a caller that finds room without waiting increments it.
        handed: those of them whose callers have waited and not run since: nobody may take a place before them.
        waiting: callers that wait for a place, with deadlines. Bounded by the application's own tasks.
        over: why no caller may wait any more, or None.
    """

    __slots__ = ("_arm", "_drained", "_loop", "_size", "_why", "handed", "outstanding", "over", "waiting", "window")

    def __init__(self, loop: asyncio.AbstractEventLoop, window: int, arm: Callable[[float], None]) -> None:
        self.window = self._size = window
        self._why = ""
        self.outstanding = self.handed = 0
        self.waiting: deque[tuple[asyncio.Future[None], float]] = deque()
        self.over: OperationFailed | None = None
        self._loop = loop
        self._arm = arm
        self._drained: asyncio.Future[None] | None = None

    @property
    def crowded(self) -> bool:
        """Whether a further write has to wait for a place."""
        return self.outstanding >= self.window or self.handed > 0 or bool(self.waiting)

    async def take(self, deadline: float, *, wait: bool = True) -> None:
        """Take a place for one more write; first come, first served. Without ``wait``, only one that is free now.

        Raises:
            OperationFailed: WINDOW_FULL: none is free, and ``wait`` is False; or why the session takes no further
                writes. Nothing was taken.
            DeadlineExceeded: none came free.
        """
        if self.over is not None:
            raise not_applied(self.over)
        if not self.crowded:
            self.outstanding += 1
            return
        if not wait:
            raise self.full()
        place: asyncio.Future[None] = self._loop.create_future()
        self.waiting.append((place, deadline))
        self._arm(deadline)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._taken_up()
                self.free(1)  # the caller already had the place
            raise
        self._taken_up()

    def free(self, count: int) -> None:
        """Give places back, to waiting callers unless the session is over."""
        waiting = self.waiting
        while count and waiting and self.over is None and self.outstanding <= self.window:
            place, _ = waiting.popleft()
            if not place.done():
                place.set_result(None)  # handed over: it stays counted
                self.handed += 1
                count -= 1
        self.outstanding -= count
        if self.outstanding == 0 and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def hold(self, why: str) -> None:
        """Let nobody take a place while ``why`` says a reason; with an empty one, as many as before."""
        if why:
            self.window, self._why = 0, why
        elif not self.window:
            self.window, self._why = self._size, ""
            self._hand_over()

    def _taken_up(self) -> None:
        """Note that a caller goes on with the place that it was handed; the next ones get what came free meanwhile."""
        self.handed -= 1
        if not self.handed and self.over is None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand places that are free to callers that wait."""
        count = min(self.window - self.outstanding, len(self.waiting))
        if count > 0:
            self.outstanding += count  # taken, to be handed over at once
            self.free(count)

    def full(self) -> OperationFailed:
        """Return the refusal of a write that would have to wait for a place and must not."""
        return window_full(self._why or AS_MANY)

    def refuse_waiting(self, reason: OperationFailed) -> None:
        """Fail all waiting callers: nothing of theirs was sent."""
        for place, _ in self.waiting:
            if not place.done():
                place.set_exception(not_applied(reason))
        self.waiting.clear()

    def expire(self, now: float) -> float:
        """Fail waiting callers whose deadline has passed and return the next deadline."""
        following = NEVER
        for place, deadline in self.waiting:
            if deadline <= now and not place.done():
                place.set_exception(late(self._why or "no place came free in the window", Code.WINDOW_FULL))
            elif not place.done():
                following = min(following, deadline)
        return following

    async def drain(self) -> None:
        """Wait until no place is taken."""
        while self.outstanding:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)


def window_full(why: str = AS_MANY) -> OperationFailed:
    """Return the refusal of a write that would have to wait for a place and must not."""
    return OperationFailed(Code.WINDOW_FULL, why)
