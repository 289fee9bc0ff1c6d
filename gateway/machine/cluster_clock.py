"""Cluster time at the leader: how entries get their stamp.

Owns: the mapping from a node's monotonic clock to cluster time. Pure: the monotonic reading comes in. A new leader
starts from the cluster time of the last entry it applied and adds what has passed on its own monotonic clock
since, so no two machines' clocks are ever compared, a wall clock that is a day off changes nothing, and time in
which no leader could renew a lease does not pass at all: neither an outage nor a leader that sleeps (a frozen process,
a paused machine) expires anybody (SEMANTICS, *The apply rule*).
"""

from __future__ import annotations

from typing import Final

SILENCE_MS_MAX: Final = 200
"""Readings further apart mean that the node slept. The node reads its clock every few milliseconds while it leads, and
consensus excuses what it slept beyond two heartbeats: a leader that stays leader has its clock held back by as much."""


class ClusterClock:
    """Gives stamps that never go back. One per node; used only while it leads."""

    __slots__ = ("_base_ms", "_base_s", "_last_ms", "_read_s", "_silence_s_max")

    def __init__(self, silence_ms_max: int = SILENCE_MS_MAX) -> None:
        """``silence_ms_max``: of a longer time between two readings, only this much counts."""
        self._silence_s_max = silence_ms_max / 1000
        self._base_ms = 0
        self._base_s = self._read_s = 0.0
        self._last_ms = 0

    def lead_from(self, applied_ms: int, monotonic_s: float) -> None:
        """Start a leadership: ``applied_ms`` is the cluster time of the newest applied entry."""
        self._base_ms = self._last_ms = applied_ms
        self._base_s = self._read_s = monotonic_s

    def stamp_ms(self, monotonic_s: float) -> int:
        """Return cluster time now, at least the stamp before."""
        slept_s = monotonic_s - self._read_s - self._silence_s_max
        if slept_s > 0:
            self._base_s += slept_s
        if monotonic_s > self._read_s:
            self._read_s = monotonic_s
        now_ms = self._base_ms + int((monotonic_s - self._base_s) * 1000)
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms
