"""The parts of one Raft node, how they are joined, and what they can be asked.

Owns the state that the layers above work on: the log, the library, the followers, what waits to be handled and what
waits for a flush. Changes none of it after its construction. Read next: :mod:`oncegate.consensus.core.roles`, the layer
above.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import Member
from oncegate.consensus.core.applier import Applier
from oncegate.consensus.core.election import Election
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.proposals import Proposals
from oncegate.consensus.core.read_index import ReadRounds
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.core.replication import Replication
from oncegate.consensus.core.role_report import RoleReport
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.core.transfer import Transfers
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.freshness import Freshness
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.messages import Message, RaftMessage, VoteReply, VoteRequest
from oncegate.consensus.ports import DurableState, PeerStatus, Role, RoleChange, StateMachine
from oncegate.consensus.snapshot.saving import Saving, begin_at_saved
from oncegate.consensus.worker import InlineWorker, Worker

Token = TypeVar("Token")


class NodeState(ABC, Generic[Token]):
    """One node's parts; ``Token`` is what the owner wants back with a command's or a read's result."""

    def __init__(
        self,
        config: ReplicaConfig,
        machine: StateMachine,
        log: LibraryLog,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        send: Callable[[str, Message], None],
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
        on_role: Callable[[RoleChange], None],
        worker: Worker | None = None,
        wake: Callable[[], None] = lambda: None,
        on_peers: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over an opened log and what the machine has saved; sends nothing yet.

        ``clock`` gives monotonic seconds, so that a simulation owns all time-outs. ``send`` hands one message to a
        connected peer; it may be lost, never reordered within a connection. ``on_result`` gets the token of a command
        with what ``apply`` returned, or the token of a read with the read point; ``on_failure`` what it ended with.
        ``worker`` reads and writes snapshots (inline by default); ``wake``, called from its thread, asks for a tick.
        ``on_peers`` is called when :meth:`wanted_peers` has changed.

        Raises:
            StorageError: the saved state and the log do not belong together.
        """
        self.config = config
        self.log = log
        self._clock = clock
        self._send = send
        self._on_result = on_result
        self._on_failure = on_failure
        self._proposals = Proposals(config, on_result, on_failure)
        self._on_role = on_role
        now = clock()
        self._now = now
        self._on_peers = on_peers
        self._membership = log.membership
        self._membership.begin(config.initial_configuration)
        self._membership_seen = -1
        self._peer_voters: frozenset[str] = frozenset()
        self._known: frozenset[str] = frozenset()
        self._unsettled_index = 0
        # A membership change or a transfer is under way, or may be.
        self._attention = True
        self.counters = Counters()
        self._report = RoleReport(self.counters)
        applied_index = begin_at_saved(machine, log)
        self._raft = Raft(config.node_id, (), log, send_vote=self._hold_vote, on_role=self._role_changes)
        self._replication = Replication(config, log, self._raft, send, self.counters)
        self._election = Election(config, rng, now)
        self._freshness = Freshness()
        self._voting = Voting(self._raft, log, self._election, send)
        self._applier = Applier(machine, log, clock, config.apply_slice_ms / 1000, applied_index)
        self._saving: Saving | None = None
        self._snapshots: Snapshots | None = None
        if isinstance(machine, DurableState):
            self._saving = Saving(config, log, machine)
            self._snapshots = Snapshots(
                config,
                log,
                self._raft,
                self._replication,
                self._applier,
                self._saving,
                machine,
                worker or InlineWorker(),
                wake,
                rng,
                lambda peer_id, message: self._held.append((peer_id, message)),
            )
        self._rounds: ReadRounds[Token] = ReadRounds()
        self._changes: Reconfiguration[Token] = Reconfiguration(
            self._membership, config.election_ms_min / 1000, on_result, on_failure
        )
        self._transfers: Transfers[Token] = Transfers(on_result, on_failure)
        self._epochs: dict[str, int] = {}
        self._inbox: list[tuple[str, int, RaftMessage]] = []
        self._tick_wanted = False
        self._held: list[tuple[str, Message]] = []
        self._quorum_until = float("-inf")
        self._reserve_bytes = config.reserve_bytes
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._commit_may_move = False
        self._configuration_in_force()
        self.log.flush()

    @abstractmethod
    def _hold_vote(self, peer_id: str, message: VoteRequest | VoteReply) -> None:
        """The library votes, or asks for a vote."""

    @abstractmethod
    def _role_changes(self, role: Role) -> None:
        """The library takes another role."""

    @abstractmethod
    def _configuration_in_force(self) -> None:
        """See to it that everybody follows the log's newest configuration."""

    # -- what the owner asks ---------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """Role of this node."""
        return self._raft.role()

    @property
    def term(self) -> int:
        """Current term."""
        return self._raft.term()

    @property
    def commit_index(self) -> int:
        """Last entry known to be committed."""
        return self._raft.commit_index()

    @property
    def applied_index(self) -> int:
        """Last entry applied on this node."""
        return self._applier.applied_index

    @property
    def age_s(self) -> float:
        """How long ago the applied state was known to be all that was committed; ``inf`` if it never was."""
        confirmed_at = None
        if self.ready:
            if self.lone:
                return 0.0
            confirmed_at = self._replication.quorum_until(self._membership.voters) - self.config.election_ms_max / 1000
        return max(0.0, self._clock() - self._freshness.current_at(confirmed_at))

    @property
    def leader_id(self) -> str | None:
        """The leader, if it is known and within reach."""
        leader = self._raft.leader()
        if leader == self.config.node_id or leader in self._epochs:
            return leader
        return None

    @property
    def ready(self) -> bool:
        """This node leads and has applied the no-op of its term (Raft §8)."""
        if not self._raft.leads():
            return False
        no_op = self._raft.no_op_index()
        return no_op is not None and self.applied_index >= no_op

    def peer_status(self) -> dict[str, PeerStatus]:
        """What is known of the other members."""
        return {
            peer_id: self._replication.status(peer_id, connected=peer_id in self._epochs)
            for peer_id in self._membership.current.members
            if peer_id != self.config.node_id
        }

    @property
    def lone(self) -> bool:
        """This node is the only voter, and needs nobody."""
        return not self._peer_voters and self._election.may_campaign

    @property
    def membership(self) -> Membership:
        """The configurations of the log."""
        return self._membership

    @property
    def change_pending(self) -> bool:
        """A membership change waits, or is not known to be committed."""
        return self._changes.pending(self.commit_index)

    @property
    def transfer_target(self) -> str | None:
        """Who is about to lead."""
        return self._transfers.target

    @property
    def load(self) -> tuple[int, int, int, int]:
        """See :attr:`oncegate.consensus.core.proposals.Proposals.load`."""
        return self._proposals.load

    @property
    def awaits_membership(self) -> bool:
        """The node joins, and its log does not name it yet: whoever leads may be somebody it never heard of."""
        return self.config.joining and self.config.node_id not in self._membership.current.members

    @property
    def hears_anyone(self) -> bool:
        """Whoever leads may be a member that the log here does not name yet: who joins, or was away, listens to all."""
        return self.awaits_membership or self.leader_id is None

    def wanted_peers(self) -> dict[str, Member]:
        """Whom to be connected with: the other members, those removed that are still to be told, seeds of a joiner."""
        mine = self.config.node_id
        members = self._membership.current.members
        # A removal that is not committed may be taken back, by a leader that is among those removed.
        known = {**self._membership.committed(self.commit_index).members, **members}
        wanted = {peer_id: member for peer_id, member in known.items() if peer_id != mine}
        if self.awaits_membership:
            # The log may begin with members that are gone: until it names this node, the given ones stay in reach.
            wanted = {peer_id: Member(*address) for peer_id, address in self.config.peers.items()} | wanted
        for peer_id in self._replication.leaving:
            wanted.setdefault(peer_id, Member("", 0))
        leader = self._raft.leader()
        if leader is not None and leader != mine:
            # Added while this node was away; what it says of itself is on its way.
            wanted.setdefault(leader, Member("", 0))
        return wanted

    @property
    def has_proposals(self) -> bool:
        """Commands wait for the next tick."""
        return self._proposals.queued

    def deadline(self) -> float:
        """When the next tick is due even if nothing arrives."""
        if not self._raft.leads():
            due = self._election.deadline
        elif self._snapshots is None:
            due = self._replication.deadline
        else:
            due = min(self._replication.deadline, self._snapshots.deadline(self._now))
        transfer = self._transfers.deadline
        return due if due < transfer else transfer
