"""What was last told of a node's role, leader, term and readiness, and why they change; pure.

Owns the comparison with what was told before, so that every change is told once and in order, with its reason.
Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from oncegate.consensus.counters import Counters
from oncegate.consensus.ports import Role, RoleChange


class RoleReport:
    """The changes of role of one node."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._last: RoleChange | None = None
        self._leader_seen: str | None = None
        self.reason = ""
        """Why the next change comes, where somebody knows it."""
        self.standing: object = None
        """What the library said of role, leader and term when they were last compared."""
        self.settled = False
        """While :attr:`standing` stays, so does what is to be told."""

    def change(
        self, standing: object, role: Role, leader_id: str | None, term: int, *, ready: bool
    ) -> RoleChange | None:
        """Return what is to be told now, None when that was told already."""
        self.standing, self.settled = standing, ready or role is not Role.LEADER
        reason, self.reason = self.reason, ""
        last = self._last
        if last is not None and (last.role, last.leader_id, last.term, last.ready) == (role, leader_id, term, ready):
            return None
        self._last = RoleChange(
            role=role,
            leader_id=leader_id,
            term=term,
            ready=ready,
            reason=reason or _reason(last, role, leader_id, term, ready=ready),
        )
        if leader_id is not None and leader_id != self._leader_seen:
            self._leader_seen = leader_id
            self._counters.leader_changes += 1
        return self._last


def _reason(before: RoleChange | None, role: Role, leader_id: str | None, term: int, *, ready: bool) -> str:
    """Say why a role changes where nothing more telling happened."""
    if before is None:
        return "start"
    if role is Role.LEADER:
        return f"the first entry of term {term} is applied" if ready else f"election won in term {term}"
    if role is Role.CANDIDATE:
        if before.leader_id is not None:
            return f"time-out: nothing was heard of {before.leader_id}"
        return "a majority would vote for this node"
    if leader_id is not None:
        return f"{leader_id} leads term {term}"
    return "the leader is out of reach" if before.term == term else f"later term {term}"
