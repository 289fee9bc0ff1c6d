"""The operations that a tenant may ask for, as a rate: :class:`oncegate.consensus.snapshot.throttle.TokenBucket` in
HTTP's words.

A request is admitted while anything is left, and what it cost is taken afterwards, into debt if need be: the cost of
a body is known only once it is decoded, and a range may hold more operations than the whole bucket. The next request
waits until the debt is paid, so that the rate holds over time and one request is all that can be ahead of it.
Pure: time comes in as a value.
"""

from __future__ import annotations

import math

from oncegate.consensus.snapshot.throttle import TokenBucket


class OperationRate(TokenBucket):
    """``per_s`` operations a second, ``burst`` at once. One caller at a time."""

    __slots__ = ()

    def wait_ms(self, now_s: float) -> int:
        """Return 0 if a request may go now, else the milliseconds until one may."""
        return math.ceil((self.open_at(now_s) - now_s) * 1000)

    @property
    def remaining(self) -> int:
        """Operations that may still go at once, never negative."""
        return max(0, int(self.level))

    @property
    def policy(self) -> str:
        """The policy as ``RateLimit-Policy`` has it: quota and window (IETF httpapi ratelimit-headers)."""
        return f'"operations";q={self.burst};w={max(1, math.ceil(self.burst / self.per_s))}'

    @property
    def state(self) -> str:
        """What is left as ``RateLimit`` has it: remaining operations, seconds until the bucket is full."""
        reset_s = max(0, math.ceil((self.burst - self.level) / self.per_s))
        return f'"operations";r={self.remaining};t={reset_s}'
