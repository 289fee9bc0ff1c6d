"""What it entails that a node's role, its term or the configuration in force changes.

Owns the beginning and the end of leadership, when elections are asked for, who is listened to, and the report of it.
The library decides about votes, :mod:`oncegate.consensus.log.membership` about what is in force: here everybody
follows. Read next: :mod:`oncegate.consensus.core.message_handling`, the layer above;
:mod:`oncegate.consensus.core.node_state`, the one below.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oncegate.consensus.core.node_state import NodeState
from oncegate.consensus.errors import NotLeader, SafetyViolation
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.messages import VoteReply, VoteRequest
from oncegate.consensus.ports import Role

Token = TypeVar("Token")

TERM_BYTES = 4 * RECORD_HEADER_BYTES
"""Room in the log for the beginning of a term: a truncation and the leader's own entry."""


class Roles(NodeState[Token], Generic[Token]):
    """One node's roles, terms and configurations."""

    def _role_changes(self, role: Role) -> None:
        if role is Role.LEADER:
            self.counters.elections_won += 1
            self._report.reason = f"election won in term {self._raft.term()}"
            self._replication.begin(self._now)
            self._quorum_until = float("-inf")
            if self._snapshots is not None:
                self._snapshots.begin_term()
            return
        if role is Role.CANDIDATE:
            self.counters.elections_started += 1
        leaving = bool(self._replication.leaving)
        self._replication.end()
        if leaving:
            self._on_peers()
        self._changes.end()
        if self._snapshots is not None:
            self._snapshots.end_term()
        if role is Role.FOLLOWER:
            self._election.voted(self._now)
        self._abandon()

    def _abandon(self) -> None:
        self._proposals.abandon_appended()
        for token in self._rounds.abort():
            self._on_failure(token, NotLeader(None))

    def _ask_for_votes(self, now: float) -> None:
        if not self.log.has_room(TERM_BYTES):
            # A leader begins its term with an entry of its own; without room for it, others must lead.
            self._election.voted(now)
            return
        if self._election.may_campaign:
            self.counters.pre_votes_started += 1
        self._voting.ask_for_pre_votes(self._connected_voters(), now)

    def _hold_vote(self, peer_id: str, message: VoteRequest | VoteReply) -> None:
        if isinstance(message, VoteReply):
            self._election.voted(self._now)
        self._held.append((peer_id, message))

    def _check_quorum(self, now: float) -> None:
        self._quorum_until = self._replication.quorum_until(self._membership.voters)
        if self._quorum_until <= now:
            self._report.reason = f"no quorum for {self.config.election_ms_max / 1000:g} s"
            self._raft.step_down()
            self._election.voted(now)

    def _configuration_in_force(self) -> None:
        """Everything that counts, sends or connects follows the log's newest configuration."""
        membership = self._membership
        if membership.version == self._membership_seen:
            return
        self._membership_seen = membership.version
        self.counters.configurations_seen += 1
        voters = membership.voters
        if self._raft.leads() and self.config.node_id not in voters:
            raise SafetyViolation("a leader that does not vote would count itself in majorities")
        self._peer_voters = voters - {self.config.node_id}
        self._raft.set_voters(self._peer_voters, self._replication.matches())
        self._rounds.set_peers(self._peer_voters)
        self._election.set_voters(voters, self._now)
        self._replication.members_changed(self._now)
        self._quorum_until = float("-inf")
        # Fewer voters may be enough for what is acknowledged already.
        self._commit_may_move = True
        self._unsettled_index = membership.current_index
        self._attention = True
        self._know_members()

    def _know_members(self) -> None:
        """Members of the newest and of the committed configuration are heard; the two become one by the commit."""
        commit_index = self.commit_index
        self._known = (
            frozenset(self._membership.current.members) | self._membership.committed(commit_index).members.keys()
        )
        if self._unsettled_index <= commit_index:
            self._unsettled_index = 0
        self._on_peers()

    def _connected_voters(self) -> list[str]:
        """The other voters within reach, in an order that does not depend on the process."""
        return [peer_id for peer_id in self._epochs if peer_id in self._peer_voters]

    def _report_role(self) -> None:
        standing = self._raft.standing()
        report = self._report
        if report.settled and standing == report.standing:
            report.reason = ""
            return
        leader_id = self.leader_id
        change = report.change(standing, self._raft.role(), leader_id, self._raft.term(), ready=self.ready)
        if change is None:
            return
        if leader_id is not None and change.role is not Role.LEADER:
            self._transfers.leader_seen(leader_id)
        self._on_peers()
        self._on_role(change)
