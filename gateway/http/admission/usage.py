"""What one sender uses at this node: its requests under way, and its rate.

Owns: the rule by which a rate admits a request and is charged for it. Pure; time is passed in.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, MutableMapping
from typing import Final

from oncegate.consensus.snapshot.throttle import TokenBucket
from oncegate.rifl.errors import Code, OncegateError


class OperationRate(TokenBucket):
    """The rate of a tenant: ``per_s`` operations a second, ``burst`` at once. One caller at a time.

    A request is admitted while any tokens are left, and its operations are subtracted afterwards, below zero if
    necessary: the cost of a body is known only once it is decoded, and a range may hold more operations than the whole
    bucket. The next request waits until the debt is paid. So the rate holds over time, and at most one request is ahead
    of it.
    """

    __slots__ = ()

    def wait_ms(self, now_s: float) -> int:
        """Return 0 if a request may go now, else the milliseconds until one may."""
        return math.ceil((self.open_at(now_s) - now_s) * 1000)

    def is_full(self, now_s: float) -> bool:
        """Whether nothing would change if it were made anew."""
        self.wait_ms(now_s)
        return self.level >= self.burst

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


REQUESTS_NO_BOUND: Final = sys.maxsize


class Usage:
    """The requests that one sender has under way, at most ``requests_max``, and its rate.

    A request takes a place when it is admitted, and gives it back while its body is on its way: what a client sends one
    byte a second keeps out none of its tenant's requests that are there.
    """

    __slots__ = ("bucket", "requests", "requests_max")

    def __init__(self, bucket: OperationRate | None, requests_max: int = REQUESTS_NO_BOUND) -> None:
        self.requests = 0
        self.requests_max = requests_max
        self.bucket = bucket

    def no_place(self) -> OncegateError:
        """Return the refusal of a request for which no place is left."""
        detail = f"{self.requests_max} requests of this tenant are under way"
        return OncegateError(Code.OVERLOADED, detail, retry_after_ms=100)

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Give the place of a counted request back while its body arrives; raises OVERLOADED if none is left then."""
        self.requests -= 1
        try:
            yield
        finally:
            self.requests += 1  # its end takes it off again, also if it is refused now
        if self.requests > self.requests_max:
            raise self.no_place()

    def charge(self, operations: int) -> None:
        """Count a decoded request's operations against the rate; call it before they are proposed.

        Never refuses: the request was admitted, and the sender's next request waits until the debt is paid.
        """
        if self.bucket is not None:
            self.bucket.take(operations - 1)

    def describe(self, headers: MutableMapping[str, str]) -> None:
        """Tell the sender its rate in the headers of an answer, if it has one."""
        if self.bucket is not None:
            headers["RateLimit-Policy"] = self.bucket.policy
            headers["RateLimit"] = self.bucket.state
