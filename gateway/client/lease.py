"""Keeping a session's lease alive without asking more often than needed.

Owns: when a renewal is due. :class:`LeaseClock` is pure; :func:`keep_lease` takes clock and sleep as arguments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable


class LeaseClock:
    """How long the session's memory is known to last, on this machine's monotonic clock.

    Every answer extends it, counted from when its request was **sent**: the server's promise cannot be older.
    """

    __slots__ = ("ends_at", "lease_s")

    def __init__(self, lease_ms: int, sent_at: float) -> None:
        self.lease_s = lease_ms / 1000
        self.ends_at = sent_at + self.lease_s

    def extend(self, sent_at: float, memory_ms: int) -> None:
        """Note an answer to a request sent at ``sent_at``; never shortens the lease."""
        ends_at = sent_at + memory_ms / 1000
        if ends_at > self.ends_at:
            self.ends_at = ends_at

    def renewal_due_at(self) -> float:
        """Return when half of the lease will be over; the other half is left for retries."""
        return self.ends_at - self.lease_s / 2


async def keep_lease(
    lease: LeaseClock,
    renew: Callable[[], Awaitable[None]],
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Renew whenever half of the lease has passed without an operation that renewed it; runs until cancelled.

    ``renew`` extends the lease itself or raises what ends the loop.
    """
    while True:
        wait_s = lease.renewal_due_at() - clock()
        if wait_s > 0:
            await sleep(wait_s)
        else:
            before = lease.ends_at
            await renew()
            if lease.ends_at <= before:
                # Retry soon, but not in a busy loop: a lease of one second still has room for ten attempts.
                await sleep(lease.lease_s / 20)
