"""A bound on bytes a second; pure: time is passed in.

Read next: :mod:`oncegate.consensus.snapshot.snapshot_send`, :mod:`oncegate.consensus.core.replication`.
"""

from __future__ import annotations

_WINDOW_S = 0.5


class TokenBucket:
    """Lets ``bytes_per_s`` through on average, and never more than ``burst_bytes`` at once plus one piece."""

    __slots__ = ("_burst", "_level", "_per_s", "_seen_at")

    def __init__(self, bytes_per_s: int, burst_bytes: int) -> None:
        """``bytes_per_s`` 0 means no bound."""
        self._per_s = bytes_per_s
        self._burst = burst_bytes
        self._level = float(burst_bytes)
        self._seen_at = float("-inf")

    def set_rate(self, bytes_per_s: int) -> None:
        """Let another number of bytes through from now on."""
        self._per_s = bytes_per_s

    def open_at(self, now: float) -> float:
        """When the next piece may go, ``now`` if at once."""
        if self._per_s == 0:
            return now
        if self._seen_at < now:
            self._level = min(self._burst, self._level + (now - self._seen_at) * self._per_s)
            self._seen_at = now
        # A piece may be larger than what is left: the debt delays the next one, so no piece is too large to go.
        return now if self._level > 0 else now + (1 - self._level) / self._per_s

    def take(self, size_bytes: int) -> None:
        """A piece went."""
        self._level -= size_bytes


class Growth:
    """How fast something grows that only grows, in units a second, over about the last second."""

    __slots__ = ("_since", "_value", "per_s")

    def __init__(self) -> None:
        self.per_s = 0
        self._value = 0
        self._since = float("-inf")

    def observe(self, value: int, now: float) -> None:
        """The thing is ``value`` large."""
        took_s = now - self._since
        if took_s < _WINDOW_S:
            return
        if took_s < 2 * _WINDOW_S:
            self.per_s = int((value - self._value) / took_s)
        self._value, self._since = value, now
