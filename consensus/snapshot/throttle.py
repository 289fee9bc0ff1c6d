"""Bounds on a rate: bytes a second here, operations a second of a tenant in
:mod:`oncegate.gateway.http.admission.desk`.

Pure: time is passed in. Read next: :mod:`oncegate.consensus.snapshot.snapshot_send`,
:mod:`oncegate.consensus.core.replication`.
"""

from __future__ import annotations

_WINDOW_S = 0.5


class TokenBucket:
    """Lets ``per_s`` units a second through on average, and at once never more than ``burst`` plus one piece.

    ``per_s`` 0 means no bound.
    """

    __slots__ = ("_seen_at", "burst", "level", "per_s")

    def __init__(self, per_s: int, burst: int) -> None:
        if per_s < 0 or burst < 1:
            raise ValueError("a rate is not negative, a burst at least 1")
        self.per_s = per_s
        self.burst = burst
        self.level = float(burst)
        """Units that may go at once, as of the last look; negative: debt."""
        self._seen_at: float | None = None

    def set_rate(self, per_s: int) -> None:
        """Let another number of units through from now on."""
        self.per_s = per_s

    def open_at(self, now: float) -> float:
        """When the next piece may go, ``now`` if at once."""
        if self.per_s == 0:
            return now
        if self._seen_at is None:
            self._seen_at = now
        elif self._seen_at < now:
            self.level = min(self.burst, self.level + (now - self._seen_at) * self.per_s)
            self._seen_at = now
        # A piece may be larger than what is left: the debt delays the next one, so no piece is too large to go.
        return now if self.level > 0 else now + (1 - self.level) / self.per_s

    def take(self, size: int) -> None:
        """A piece went."""
        self.level -= size


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
