"""Cluster time at the leader: how entries get their stamp.

Owns: the mapping from a node's monotonic clock to cluster time. Pure: the monotonic reading comes in. A new leader
starts from the cluster time of the last entry it applied and adds what has passed on its own monotonic clock
since, so no two machines' clocks are ever compared, a wall clock that is a day off changes nothing, and time in
which no leader could renew a lease does not pass at all: an outage expires nobody (SEMANTICS, *The apply rule*).
"""

from __future__ import annotations


class ClusterClock:
    """Gives stamps that never go back. One per node; used only while it leads."""

    __slots__ = ("_base_ms", "_base_s", "_last_ms")

    def __init__(self) -> None:
        self._base_ms = 0
        self._base_s = 0.0
        self._last_ms = 0

    def lead_from(self, applied_ms: int, monotonic_s: float) -> None:
        """Start a leadership: ``applied_ms`` is the cluster time of the newest applied entry."""
        self._base_ms = self._last_ms = applied_ms
        self._base_s = monotonic_s

    def stamp_ms(self, monotonic_s: float) -> int:
        """Return cluster time now, at least the stamp before."""
        now_ms = self._base_ms + int((monotonic_s - self._base_s) * 1000)
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms
