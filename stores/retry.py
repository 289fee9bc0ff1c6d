"""Retry with exponential backoff and full jitter under one total deadline.

Owns: how long to wait, and when to give up. Must not know what is retried: callers name the exceptions to retry. Every
retried action of this package is idempotent, so an unknown outcome is retried too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")

_FIRST_WAIT_S: Final = 0.05
_repeated: ContextVar[int] = ContextVar("repeated", default=0)


def repeated() -> int:
    """Return how many times this thread has tried anything again so far: what a call took is the difference."""
    return _repeated.get()


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy; `sleep` and `clock` are replaced in tests.

    Args:
        deadline_s: seconds from the first attempt after which the last error is raised; at least one attempt is made.
        wait_s_max: upper bound of one wait.
    """

    deadline_s: float
    wait_s_max: float = 2.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def run(self, action: Callable[[], T], worth_retrying: Callable[[Exception], bool]) -> T:
        """Return what ``action`` returns, repeated while it raises something worth retrying and time is left.

        Raises:
            Exception: what the last attempt raised.
        """
        end = self.clock() + self.deadline_s
        bound_s = _FIRST_WAIT_S
        while True:
            try:
                return action()
            except Exception as error:
                left_s = end - self.clock()
                if left_s <= 0 or not worth_retrying(error):
                    raise
            # Full jitter: clients that failed together do not retry together.
            self.sleep(min(random.uniform(0, bound_s), left_s))
            bound_s = min(bound_s * 2, self.wait_s_max)
            _repeated.set(_repeated.get() + 1)
