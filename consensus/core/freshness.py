"""How old the applied state is: when this node last knew that it had applied all that was committed; pure.

Owns that moment, for a follower and for a leader. Times are monotonic seconds of this node's own clock, so what counts
is when a message came here: its way through the network is not known, the sleep of this node is. A message that is
handled in the tick that ends a sleep may have come at its beginning.
Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections import deque


class Freshness:
    """What one node knows of its own age."""

    __slots__ = ("_applied_index", "_commit_index", "_current_at", "_heard_at", "_sleeps")

    def __init__(self, sleeps_max: int) -> None:
        """Nobody has been heard yet; ``sleeps_max``: how often a leader may sleep before it steps down unconfirmed."""
        self._commit_index = self._applied_index = 0
        self._current_at = self._heard_at = float("-inf")
        self._sleeps: deque[tuple[float, float]] = deque(maxlen=sleeps_max)
        """The latest ends of sleeps, and how long each was."""

    def woke(self, now: float, slept_s: float) -> None:
        """This tick is the first after the node was off the processor for ``slept_s``."""
        self._sleeps.append((now, slept_s))

    def heard(self, commit_index: int, now: float) -> None:
        """The leader of the present term said that everything up to ``commit_index`` is committed."""
        self._commit_index, self._heard_at = commit_index, self._awake(now)

    def applied(self, index: int) -> None:
        """Everything up to ``index`` is applied; call once a tick."""
        if index < self._applied_index:
            self._current_at = float("-inf")  # a snapshot that is older has replaced a damaged state
        self._applied_index = index
        if index >= self._commit_index:
            self._current_at = self._heard_at

    def current_at(self, confirmed_at: float | None) -> float:
        """When the state was current, ``-inf`` if that is not known.

        Args:
            confirmed_at: when a majority last confirmed this node as the leader, sleep excused; None if it does not
                lead, or is not ready to.
        """
        return self._current_at if confirmed_at is None else max(self._current_at, self._awake(confirmed_at))

    def _awake(self, at: float) -> float:
        """Take from ``at`` each sleep that it was moved on by; each sleep of a leader moved it, not the last alone."""
        for woke_at, slept_s in reversed(self._sleeps):
            if at > woke_at:
                break
            at -= slept_s
        return at
