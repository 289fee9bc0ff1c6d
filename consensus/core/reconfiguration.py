"""The leader's side of membership changes: what may be appended now, and who waits for it; pure.

Single-server changes (Raft thesis §4.1), one at a time. A change is appended only when the last configuration is
committed *and* an entry of the leader's own term is: without the second rule, a deposed leader's uncommitted change
and a new leader's one could be in force together, with majorities that do not overlap. A new member starts as a learner
and becomes a voter once it has been caught up for an election time-out, by whoever leads then.
Read next: :mod:`oncegate.consensus.log.membership`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.errors import ChangePending, ChangeRefused, ConsensusError, LeadershipLost, NotReady, Overloaded
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.log.wal import Journal

Token = TypeVar("Token")

_WAITERS_MAX = 64


@dataclass(frozen=True, slots=True)
class _Waiter(Generic[Token]):
    node_id: str
    outcome: Literal["voter", "gone"]
    token: Token


class Reconfiguration(Generic[Token]):
    """Membership changes of one node's terms as a leader."""

    def __init__(
        self,
        membership: Membership,
        caught_up_s: float,
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
    ) -> None:
        self._membership = membership
        self._caught_up_s = caught_up_s
        self._on_result = on_result
        self._on_failure = on_failure
        self.wanted: tuple[str, RaftMember | None] | None = None
        """The change that is to be appended: a member, or None for one that is to go."""
        self._waiters: list[_Waiter[Token]] = []
        self._caught_up_since: dict[str, float] = {}

    def busy(self, connected: Collection[str]) -> bool:
        """Somebody waits, or a learner is to be promoted; one that is not there costs nothing, however long."""
        return bool(self._waiters) or any(learner in connected for learner in self._membership.learners)

    def pending(self, commit_index: int) -> bool:
        """A change is wanted or not committed yet."""
        return self.wanted is not None or self._membership.current_index > commit_index

    # -- what is asked ---------------------------------------------------------------------------------

    def add(self, node_id: str, member: RaftMember, token: Token, *, ready: bool, commit_index: int) -> None:
        """Make ``node_id`` a member: first a learner, then a voter; ``token`` is answered when it is one.

        Asking again for what is under way, or done, waits for the same outcome.

        Raises:
            NotReady, ChangePending, Overloaded: try again later.
        """
        known = self._membership.current.members.get(node_id)
        if known is None or (known.host, known.port, known.data) != (member.host, member.port, member.data):
            # Another address alone promotes nobody.
            voter = known is not None and known.voter
            wanted = msgspec.structs.replace(member, voter=voter)
            self._want(node_id, wanted, ready=ready, commit_index=commit_index)
        self._wait(_Waiter(node_id, "voter", token))

    def remove(self, node_id: str, token: Token, *, ready: bool, commit_index: int) -> None:
        """Make ``node_id`` no member; ``token`` is answered when that is committed, at once if it is none.

        Raises:
            NotReady, ChangePending, Overloaded: try again later.
            ChangeRefused: it is the only voter.
        """
        current = self._membership.current
        if node_id in current.members:
            if not current.voters - {node_id}:
                raise ChangeRefused(f"{node_id} is the only voter")
            self._want(node_id, None, ready=ready, commit_index=commit_index)
        self._wait(_Waiter(node_id, "gone", token))

    def promote(self, caught_up: Callable[[str], bool], now: float, *, ready: bool, commit_index: int) -> bool:
        """Choose a learner that has been caught up for long enough; returns whether a change is wanted now."""
        learners = self._membership.learners
        for node_id in [known for known in self._caught_up_since if known not in learners]:
            del self._caught_up_since[node_id]
        for node_id in sorted(learners):
            if not caught_up(node_id):
                self._caught_up_since.pop(node_id, None)
            elif now - self._caught_up_since.setdefault(node_id, now) >= self._caught_up_s:
                if not ready or self.pending(commit_index):
                    continue
                member = self._membership.current.members[node_id]
                self.wanted = (node_id, msgspec.structs.replace(member, voter=True))
        return self.wanted is not None

    # -- what comes of it ------------------------------------------------------------------------------

    def append_to(self, journal: Journal, term: int, node_id: str, member: RaftMember | None) -> bool:
        """Append the change that is :attr:`wanted`, in force from now on; returns whether there was room for it."""
        index = journal.last_index + 1
        entry = encode(_changed(self._membership.current, node_id, member, index))
        if not journal.has_room(RECORD_HEADER_BYTES + len(entry)):
            return False
        self.wanted = None
        journal.append(entry, index, term)
        return True

    def settle(self, commit_index: int) -> None:
        """Answer those whose change is committed."""
        if not self._waiters or self.pending(commit_index):
            return
        waiters, self._waiters = self._waiters, []
        members = self._membership.current.members
        for waiter in waiters:
            member = members.get(waiter.node_id)
            if waiter.outcome == "gone" or member is None:
                if (waiter.outcome == "gone") == (member is None):
                    self._on_result(waiter.token, self._membership.current_index)
                else:
                    self._on_failure(waiter.token, ChangeRefused(f"{waiter.node_id} was added or removed meanwhile"))
            elif member.voter:
                self._on_result(waiter.token, self._membership.current_index)
            else:
                self._waiters.append(waiter)

    def forget(self, token: Token) -> None:
        """Nobody waits for this token any more; what was appended stays."""
        self._waiters = [waiter for waiter in self._waiters if waiter.token is not token]

    def end(self) -> None:
        """Leadership is over: the next leader may complete what was appended, or truncate it."""
        self.wanted = None
        self._caught_up_since.clear()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._on_failure(waiter.token, LeadershipLost("leadership was lost before the change was committed"))

    def _want(self, node_id: str, member: RaftMember | None, *, ready: bool, commit_index: int) -> None:
        if not ready:
            raise NotReady("the leader has not committed an entry of its term yet")
        if self.pending(commit_index):
            raise ChangePending("another membership change is not committed yet")
        if len(self._waiters) >= _WAITERS_MAX:
            raise Overloaded("membership changes waiting", _WAITERS_MAX)
        self.wanted = (node_id, member)

    def _wait(self, waiter: _Waiter[Token]) -> None:
        if len(self._waiters) >= _WAITERS_MAX:
            raise Overloaded("membership changes waiting", _WAITERS_MAX)
        self._waiters.append(waiter)


def _changed(current: Configuration, node_id: str, member: RaftMember | None, index: int) -> Configuration:
    if member is None:
        return current.without(node_id)
    known = current.members.get(node_id)
    since = index if known is None else known.since
    return current.with_member(node_id, msgspec.structs.replace(member, since=since))
