"""How old the applied state is: when this node last knew that it had applied all that was committed; pure.

Owns that moment, for a follower and for a leader. Times are monotonic seconds of this node's own clock, so what counts
is when a message came here: its way through the network is not known, the sleep of this node is. A message that is
handled in the tick that ends a sleep may have come at its beginning.
Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations


class Freshness:
    """What one node knows of its own age."""

    __slots__ = ("_commit_index", "_current_at", "_heard_at", "_slept_s", "_woke_at")

    def __init__(self) -> None:
        """Nobody has been heard yet."""
        self._commit_index = 0
        self._current_at = self._heard_at = self._woke_at = float("-inf")
        self._slept_s = 0.0

    def woke(self, now: float, slept_s: float) -> None:
        """This tick is the first after the node was off the processor for ``slept_s``."""
        self._woke_at, self._slept_s = now, slept_s

    def heard(self, commit_index: int, now: float) -> None:
        """The leader of the present term said that everything up to ``commit_index`` is committed."""
        self._commit_index, self._heard_at = commit_index, self._awake(now)

    def applied(self, index: int) -> None:
        """Everything up to ``index`` is applied; call once a tick."""
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
        return at - self._slept_s if at <= self._woke_at else at
