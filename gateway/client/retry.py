"""When to try again: exponential backoff with full jitter, one deadline, a budget. Pure except for the random jitter.

Owns: the policy, expressed as tenacity's ``wait`` and ``stop``. Must not know HTTP or endpoints.
Read next: :mod:`oncegate.gateway.client.courier`, which runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tenacity import RetryCallState

from oncegate.gateway.client.settings import Tuning
from oncegate.rifl.errors import Code

LAST_ATTEMPT_S = 0.005
"""Too short for another attempt: with less left before the deadline, the call ends."""


class AttemptFailed(Exception):
    """One attempt that may be made again; never leaves the SDK.

    Attributes:
        code: the refusal, or TIMEOUT where no answer came.
        ambiguous: whether the attempt may have been applied nevertheless.
        retry_after_ms: what the node asked for.
        elsewhere: whether another node is likely to succeed at once.
    """

    def __init__(
        self, code: Code, detail: str, *, ambiguous: bool, retry_after_ms: int | None = None, elsewhere: bool = False
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.ambiguous = ambiguous
        self.retry_after_ms = retry_after_ms
        self.elsewhere = elsewhere


class RetryBudget:
    """A bucket of retries, shared by all calls of a client: a success puts a tenth back."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = float(size)
        self._left = float(size)

    def spend(self) -> bool:
        """Take one retry; False when there is none."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def refill(self) -> None:
        """Note a success."""
        if self._left < self._size:
            self._left = min(self._size, self._left + 0.1)


class RetryPolicy:
    """The ``wait`` and ``stop`` of one call.

    Args:
        tuning: bounds of the pauses.
        budget: shared with the client's other calls.
        deadline: when the call ends, on ``clock``.
        clock: monotonic seconds.
        moves_max: how many times in a row another node is asked without a pause.
    """

    __slots__ = ("_bound_s", "_budget", "_clock", "_deadline", "_moves", "_moves_max", "_tuning")

    def __init__(
        self, tuning: Tuning, budget: RetryBudget, deadline: float, clock: Callable[[], float], moves_max: int
    ) -> None:
        self._tuning = tuning
        self._budget = budget
        self._deadline = deadline
        self._clock = clock
        self._moves_max = moves_max
        self._moves = 0
        self._bound_s = min(tuning.backoff_first_s, tuning.backoff_cap_s)

    def pause_s(self, failure: AttemptFailed) -> float:
        """Return the pause before the next attempt; called once a failure."""
        tuning, remaining = self._tuning, self._deadline - self._clock()
        if not self._budget.spend():
            return self._within(tuning.backoff_cap_s, remaining)
        if failure.elsewhere and self._moves < self._moves_max:
            self._moves += 1
            return 0.0
        self._moves = 0
        # Moving to another node does not make the pauses longer.
        pause = random.uniform(0, self._bound_s)
        self._bound_s = min(2 * self._bound_s, tuning.backoff_cap_s)
        if failure.retry_after_ms is not None:
            # A node may ask for more than the jitter, up to a bound. The jitter is added to it: callers that were
            # refused together must not return together.
            pause += min(failure.retry_after_ms / 1000, tuning.retry_after_cap_s)
        return self._within(pause, remaining)

    def over(self, pause_s: float) -> bool:
        """Whether no time is left for another attempt after such a pause."""
        return self._clock() + pause_s + LAST_ATTEMPT_S >= self._deadline

    def wait(self, state: RetryCallState) -> float:
        """Be tenacity's ``wait``."""
        failure = state.outcome.exception() if state.outcome is not None else None
        return self.pause_s(failure) if isinstance(failure, AttemptFailed) else 0.0

    def stop(self, state: RetryCallState) -> bool:
        """Be tenacity's ``stop``."""
        return self.over(state.upcoming_sleep)

    @staticmethod
    def _within(pause: float, remaining: float) -> float:
        # Sleep only half of the time that is left before the deadline: one more attempt may succeed.
        return pause if pause < remaining / 2 else max(0.0, remaining / 2)
