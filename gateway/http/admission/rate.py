"""The rate of operations of a tenant: a :class:`oncegate.consensus.snapshot.throttle.TokenBucket` in the terms of HTTP.

A request is admitted while any tokens are left, and its operations are subtracted afterwards, below zero if necessary:
the cost of a body is known only once it is decoded, and a range may hold more operations than the whole bucket. The
next request waits until the debt is paid. So the rate holds over time, and at most one request is ahead of it. Pure:
time comes in as a value.
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
        """The value of ``RateLimit-Policy``: quota and window (IETF httpapi ratelimit-headers)."""
        return f'"operations";q={self.burst};w={max(1, math.ceil(self.burst / self.per_s))}'

    @property
    def state(self) -> str:
        """The value of ``RateLimit``: remaining operations, seconds until the bucket is full."""
        reset_s = max(0, math.ceil((self.burst - self.level) / self.per_s))
        return f'"operations";r={self.remaining};t={reset_s}'
