"""Wait for a condition until a deadline: :func:`wait_for` blocks a thread, :func:`until` a coroutine.

Both look at once, then every ``every_s``, and a last time at the deadline. What was waited for and how things stood at
the end is in the message of the TimeoutError. Not for events that somebody signals: those have ``asyncio.Event``.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

T = TypeVar("T")

LOOK_S: Final = 0.02
Failures = tuple[type[Exception], ...]


class WaitOptions(TypedDict, total=False):
    """What a wait may be told further.

    Attributes:
        despite: exceptions of the condition that count as "not yet"; any other ends the wait.
        state: asked once, at the deadline, how things stand.
        every_s: pause between two looks.
    """

    despite: Failures
    state: Callable[[], object] | None
    every_s: float


class _Wait:
    """One wait: when it ends, and what its message says. Shared by both forms; it never sleeps itself."""

    def __init__(
        self,
        what: str,
        timeout_s: float,
        despite: Failures = (),
        state: Callable[[], object] | None = None,
        every_s: float = LOOK_S,
    ) -> None:
        self._what, self._timeout_s, self._every_s, self._state = what, timeout_s, every_s, state
        self._deadline = time.monotonic() + timeout_s
        self.despite = despite
        self.failure: Exception | None = None
        """Why the last look failed; None if it came to an answer."""

    def pause_s(self) -> float:
        """Return how long to sleep before the next look; raises TimeoutError: the deadline has passed."""
        left_s = self._deadline - time.monotonic()
        if left_s > 0:
            return min(self._every_s, left_s)
        last = "" if self.failure is None else f"; at last {type(self.failure).__name__}: {self.failure}"
        state = "" if self._state is None else f"; at last {self._state()}"
        raise TimeoutError(f"{self._what}: not within {self._timeout_s:g} s{last}{state}") from self.failure


def wait_for(condition: Callable[[], T | None], timeout_s: float, what: str, **options: Unpack[WaitOptions]) -> T:
    """Return the first true value of ``condition()``.

    Args:
        condition: what to look at.
        timeout_s: from now to the deadline; 0 looks once.
        what: names the condition in the message.
        options: see :class:`WaitOptions`.

    Raises:
        TimeoutError: not in time.
    """
    wait = _Wait(what, timeout_s, **options)
    while True:
        wait.failure = None
        try:
            if found := condition():
                return found
        except wait.despite as failure:
            wait.failure = failure
        time.sleep(wait.pause_s())


@overload
async def until(
    condition: Callable[[], Awaitable[T | None]], timeout_s: float, what: str, **options: Unpack[WaitOptions]
) -> T: ...


@overload
async def until(
    condition: Callable[[], T | None], timeout_s: float, what: str, **options: Unpack[WaitOptions]
) -> T: ...


async def until(condition: Callable[[], Any], timeout_s: float, what: str, **options: Unpack[WaitOptions]) -> Any:
    """Do as :func:`wait_for` does, without blocking the event loop; ``condition`` may be a coroutine function.

    Raises:
        TimeoutError: not in time.
    """
    import asyncio  # here, because commands that only block import this module too

    wait = _Wait(what, timeout_s, **options)
    while True:
        wait.failure = None
        try:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
        except wait.despite as failure:
            wait.failure = failure
        await asyncio.sleep(wait.pause_s())
