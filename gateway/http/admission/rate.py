"""A rate as a bucket of tokens. Pure: time comes in as a value.

A request is admitted while anything is left, and what it cost is taken afterwards, into debt if need be: the cost of
a body is known only once it is decoded, and a range may hold more operations than the whole bucket. The next request
waits until the debt is paid, so that the rate holds over time and one request is all that can be ahead of it.
"""

from __future__ import annotations

import math


class TokenBucket:
    """``per_s`` operations a second, ``burst`` at once. One caller at a time."""

    __slots__ = ("_at_s", "_left", "burst", "per_s")

    def __init__(self, per_s: int, burst: int, now_s: float) -> None:
        if per_s < 1 or burst < 1:
            raise ValueError("rate and burst are at least 1")
        self.per_s = per_s
        self.burst = burst
        self._left = float(burst)
        self._at_s = now_s

    def _refill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._left = min(self.burst, self._left + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s

    def wait_ms(self, now_s: float) -> int:
        """Return 0 if a request may go now, else the milliseconds until one may."""
        self._refill(now_s)
        if self._left >= 1:
            return 0
        return max(1, math.ceil((1 - self._left) / self.per_s * 1000))

    def spend(self, operations: int) -> None:
        """Take what an admitted request costs, into debt if need be."""
        self._left -= operations

    @property
    def remaining(self) -> int:
        """Operations that may still go at once, never negative."""
        return max(0, int(self._left))

    @property
    def policy(self) -> str:
        """The policy as ``RateLimit-Policy`` has it: quota and window (IETF httpapi ratelimit-headers)."""
        return f'"operations";q={self.burst};w={max(1, math.ceil(self.burst / self.per_s))}'

    @property
    def state(self) -> str:
        """What is left as ``RateLimit`` has it: remaining operations, seconds until the bucket is full."""
        reset_s = max(0, math.ceil((self.burst - self._left) / self.per_s))
        return f'"operations";r={self.remaining};t={reset_s}'
