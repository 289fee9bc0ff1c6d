"""Handing leadership over: which follower, when to tell it, when to give up; pure.

The leader takes no new commands, waits until the target has flushed everything and until its own commands are applied,
and then tells it to campaign (TimeoutNow, Raft thesis §3.10). So no caller is left without an outcome, and the gap is
one election without its time-out. Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

from oncegate.consensus.errors import ChangeRefused, ConsensusError, TransferFailed

Token = TypeVar("Token")


def most_up_to_date(matches: Mapping[str, int], candidates: Collection[str]) -> str:
    """Return the candidate that has the most of the log, the first by name among equals.

    Raises:
        TransferFailed: there is none.
    """
    if not candidates:
        raise TransferFailed("no other voter is connected")
    return max(sorted(candidates), key=lambda peer_id: matches.get(peer_id, 0))


class Transfers(Generic[Token]):
    """At most one transfer at a time, from its request to its outcome."""

    def __init__(
        self, on_result: Callable[[Token, object], None], on_failure: Callable[[Token, ConsensusError], None]
    ) -> None:
        self._on_result = on_result
        self._on_failure = on_failure
        self._tokens: list[Token] = []
        self.target: str | None = None
        """Who is to lead; None while no transfer is under way."""
        self.told = False
        self.deadline = float("inf")

    def begin(self, target: str, token: Token, deadline: float) -> None:
        """Start a transfer, or join the one to the same target.

        Raises:
            ChangeRefused: another one is under way.
        """
        if self.target not in (None, target):
            raise ChangeRefused(f"leadership is being handed to {self.target}")
        if self.target is None:
            self.target, self.told, self.deadline = target, False, deadline
        self._tokens.append(token)

    def tell(self, *, applied_index: int, matched_index: int, last_index: int) -> bool:
        """Whether to send the target its message now; True once."""
        if self.target is None or self.told or min(applied_index, matched_index) < last_index:
            return False
        self.told = True
        return True

    def leader_seen(self, leader_id: str) -> None:
        """This node follows now."""
        if self.target is None:
            return
        if leader_id == self.target:
            self._end(None)
        else:
            self._end(TransferFailed(f"{leader_id} leads, not {self.target}"))

    def expire(self, now: float) -> bool:
        """Give up when the target did not take over in time; the leader goes on. Returns whether it did."""
        if self.target is None or now < self.deadline:
            return False
        self._end(TransferFailed(f"{self.target} did not take over in time"))
        return True

    def stop(self, error: ConsensusError) -> None:
        """Nobody will see the outcome here."""
        if self.target is not None:
            self._end(error)

    def _end(self, error: ConsensusError | None) -> None:
        tokens, self._tokens = self._tokens, []
        target, self.target, self.deadline = self.target, None, float("inf")
        for token in tokens:
            if error is None:
                self._on_result(token, target)
            else:
                self._on_failure(token, error)
