"""One Raft node without sockets, timers or futures: messages and commands in, decisions out.

The owner (an event loop, or a simulation) calls :meth:`Engine.receive` and what its parts take (``leading.propose``) as
things arrive, then :meth:`Engine.tick` once. A tick does, in this order:

1. messages are handled; the commit index moves (all that is in the log has been flushed by earlier ticks)
2. waiting commands are appended, and appends leave for the followers at once
3. one write, one flush
4. acknowledgements and votes that waited for that flush leave
5. committed entries are applied, results handed out

Step 4 before 3 would acknowledge what a power loss forgets. Step 2 before 3 is safe (Raft thesis §10.2.1): the
leader counts itself only for what it has flushed.

The engine joins its parts and owns nothing but their order and the messages that wait for the flush::

    Inbox ──▶ Voting      elections: the Election clock, and the library's vote rules
          ──▶ Following   appends and snapshots of whoever leads
          ──▶ Leading     Replication (a Progress a follower), Proposals, LeaderReads, Reconfiguration, Transfers
    Peers                 connections, and who counts in the configuration in force
    Raft                  the library: roles, terms, votes, log matching, the commit rule
    LibraryLog            journal, ballot and the configurations in the log (Membership)
    Applier, Saving, Snapshots    the state machine

docs/raft.md tells the algorithm. Read next: :mod:`oncegate.consensus.core.message_handling`,
:mod:`oncegate.consensus.core.leading`, :mod:`oncegate.consensus.core.library`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.core.applying import Applier, Freshness, Saving, begin_at_saved
from oncegate.consensus.core.election import Election
from oncegate.consensus.core.leading import Leading
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.message_handling import Following, Inbox
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.core.role_report import RoleReport
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import ConsensusError, SafetyViolation, TransferFailed
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.messages import Message, RaftMessage, ReadProbe, ReadProbeAck, VoteReply, VoteRequest
from oncegate.consensus.ports import DurableState, PeerStatus, Role, RoleChange, StateMachine
from oncegate.consensus.worker import InlineWorker, Worker

Token = TypeVar("Token")


class Engine(Generic[Token]):
    """One node; ``Token`` is what the owner wants back with a command's or a read's result."""

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
        self.counters = counters = Counters()
        self.clock = clock
        self._send = send
        self._on_role = on_role
        self._on_peers = on_peers
        self._now = clock()
        self._tick_s_max = 2 * config.heartbeat_ms / 1000
        self._held: list[tuple[str, Message]] = []
        # A membership change or a transfer is under way, or may be.
        self._attention = True
        self.membership = log.membership
        self.membership.begin(config.initial_configuration)
        self._report = RoleReport(counters)
        self.peers = Peers(config, self.membership)
        applied_index = begin_at_saved(machine, log)
        self.applier = Applier(machine, log, clock, config.apply_slice_ms / 1000, applied_index)
        self.raft = raft = Raft(config.node_id, (), log, send_vote=self._hold_vote, on_role=self._role_changes)
        self.leading: Leading[Token] = Leading(
            config, log, raft, self.peers, self.applier, counters, send, on_result, on_failure, on_peers
        )
        self._saving: Saving | None = None
        self._snapshots: Snapshots | None = None
        if isinstance(machine, DurableState):
            self._saving = Saving(config, log, machine)
            self._snapshots = Snapshots(
                config,
                log,
                raft,
                self.leading.replication,
                self.applier,
                self._saving,
                machine,
                worker or InlineWorker(),
                wake,
                rng,
                self._hold,
            )
        self._election = election = Election(config, rng, self._now)
        # Between two late ticks lies more than the longest pause, and that much of a time-out is not excused.
        self._freshness = freshness = Freshness(config.election_ms_max // (2 * config.heartbeat_ms) + 2)
        self._voting = Voting(raft, log, election, counters, self._report, send)
        following = Following(
            config, log, raft, election, freshness, self._snapshots, counters, self._hold, self._configuration_in_force
        )
        self.inbox: Inbox[Token] = Inbox(
            raft, self.peers, self._voting, following, self.leading, self._snapshots, self._report
        )
        self._configuration_in_force()
        self.log.flush()

    # -- connections and messages ----------------------------------------------------------------------

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection to a peer is established; it replaces an earlier one."""
        self.peers.epochs[peer_id] = epoch
        self._attention = True
        self._report.settled = False
        self.raft.set_connected(peer_id, connected=True)
        self.leading.replication.reconnected(peer_id)
        if self._snapshots is not None:
            self._snapshots.reconnected(peer_id)

    def peer_down(self, peer_id: str) -> None:
        """The connection to a peer is lost."""
        self.peers.epochs.pop(peer_id, None)
        self._report.settled = False
        self.raft.set_connected(peer_id, connected=False)
        if self.raft.leader() == peer_id:
            self._report.reason = f"the connection to the leader {peer_id} closed"
            self._election.leader_lost(self.clock())
        self.leading.peer_down(peer_id)

    def receive(self, peer_id: str, epoch: int, message: RaftMessage) -> None:
        """Queue a message for the next tick."""
        self.inbox.add(peer_id, epoch, message, attention=self._attention)

    def receive_probe(self, peer_id: str, probe: ReadProbe) -> None:
        """Confirm a leader's term; needs no flush, since terms are durable before they are used."""
        if probe.term == self.raft.term():
            self._send(peer_id, ReadProbeAck(probe.term, probe.number))

    def receive_probe_ack(self, peer_id: str, ack: ReadProbeAck) -> None:
        """Count a confirmation, and answer the reads it completes."""
        self.leading.reads.confirmed(peer_id, ack, self._now)

    def show_commit(self, peer_id: str) -> None:
        """Let a follower know the commit index now: a read waits for it there."""
        if peer_id in self.peers.epochs:
            self.leading.replication.show_commit(peer_id, self._now)

    # -- what the owner wants --------------------------------------------------------------------------

    def add_member(self, node_id: str, member: RaftMember, token: Token) -> None:
        """Make a node a member; ``token`` is answered when it is a voter. See :meth:`Reconfiguration.add`.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
        """
        self._attention = True
        self.leading.add_member(node_id, member, token)

    def remove_member(self, node_id: str, token: Token) -> None:
        """Make another node no member; ``token`` is answered when that is committed.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
            ChangeRefused: the node leads, or the others that are left and answer are no majority.
        """
        self._attention = True
        self.leading.remove_member(node_id, token, self.clock())

    def transfer(self, target: str | None, token: Token, timeout_s: float) -> None:
        """Hand leadership to ``target``, or to the most up-to-date voter; ``token`` gets the id of who took it.

        Raises:
            NotLeader: nothing to hand over.
            ChangeRefused: the target does not vote, or another transfer is under way.
            TransferFailed: no other voter is connected.
        """
        self._attention = True
        self.leading.transfer(target, token, self.clock() + timeout_s)

    def stop(self) -> None:
        """Answer everybody who waits; nothing may be called afterwards but closing the log."""
        leading = self.leading
        self._flush_and_release()
        leading.proposals.refuse_queued(self.leader_id)
        leading.abandon()
        leading.changes.end()
        if self._snapshots is not None:
            self._snapshots.stop()
        leading.transfers.stop(TransferFailed("the node stops"))

    # -- what the owner asks ---------------------------------------------------------------------------

    @property
    def age_s(self) -> float:
        """How long ago the applied state was known to be all that was committed; ``inf`` if it never was."""
        confirmed_at = None
        if self.leading.ready:
            if self.lone:
                return 0.0
            quorum_until = self.leading.replication.quorum_until(self.membership.voters)
            confirmed_at = quorum_until - self.config.election_ms_max / 1000
        return max(0.0, self.clock() - self._freshness.current_at(confirmed_at))

    @property
    def leader_id(self) -> str | None:
        """The leader, if it is known and within reach."""
        return self.peers.within_reach(self.raft.leader())

    @property
    def lone(self) -> bool:
        """This node is the only voter, and needs nobody."""
        return not self.peers.voters and self._election.may_campaign

    def peer_status(self) -> dict[str, PeerStatus]:
        """What is known of the other members."""
        now = self.clock()
        return {
            peer_id: self.leading.replication.status(peer_id, now, connected=peer_id in self.peers.epochs)
            for peer_id in self.membership.current.members
            if peer_id != self.config.node_id
        }

    def wanted_peers(self) -> dict[str, RaftMember]:
        """Whom to be connected with; see :meth:`oncegate.consensus.core.peers.Peers.wanted`."""
        return self.peers.wanted(self.raft.commit_index(), self.raft.leader(), self.leading.replication.leaving)

    def deadline(self) -> float:
        """When the next tick is due even if nothing arrives."""
        if not self.raft.leads():
            # Sooner than the election: a node that does not hear its leader sees by that whether it is late itself.
            due = min(self._election.deadline, self._now + self._tick_s_max)
        elif self._snapshots is None:
            due = self.leading.replication.deadline
        else:
            due = min(self.leading.replication.deadline, self._snapshots.deadline)
        transfer = self.leading.transfers.deadline
        return due if due < transfer else transfer

    # -- the tick --------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do all that is due; returns whether there is more to do at once.

        Raises:
            OSError, SafetyViolation: the node must end (its disk or its state cannot be trusted).
        """
        now = self.clock()
        # No tick is due later than that, see deadline(): so this one is late, or the machine slept.
        slept = now - self._now - self._tick_s_max
        self._now = now
        raft, leading, peers = self.raft, self.leading, self.peers
        if slept > 0:
            # What came meanwhile may still wait in the sockets: nobody was silent for that time, neither the followers
            # of this node nor its leader.
            leading.replication.excuse(slept)
            self._freshness.woke(now, slept)
            self._election.excuse(slept)
        self.inbox.handle(now)
        more = False
        leads = raft.leads()
        if leads:
            if leading.lost_quorum(now):
                self._step_down(now)
                leads = False
        elif now >= self._election.deadline:
            self._voting.ask_for_pre_votes(peers.connected_voters(), now)
            leads = raft.leads()
        if leads:
            if leading.append():
                self._configuration_in_force()
            more = leading.replication.replicate(peers.epochs, now)
            if self._snapshots is not None:
                self._snapshots.lead(peers.epochs, now)
            rounds = leading.reads.rounds
            if rounds.asking or rounds.waiting:
                leading.reads.serve(now)
        elif leading.proposals.queued:
            leading.proposals.refuse_queued(self.leader_id)
        if self._snapshots is not None:
            if self._snapshots.receiving:
                self._snapshots.follow(now)
            self._configuration_in_force()
        self._flush_and_release()
        if not peers.voters and raft.leads():
            leading.advance_commit()
            # Learners are told in time.
            more |= self.applier.applied_index < raft.commit_index() and bool(peers.epochs) and not self.applier.damaged
        more |= self.applier.apply_to(raft.commit_index(), leading.proposals.applied)
        self._freshness.applied(self.applier.applied_index)
        if self._saving is not None and not self.applier.damaged:
            self._saving.applied(self.applier.applied_index)
        self.log.maintain(now)
        if self._attention:
            more |= self._manage(now)
        self._report_role()
        return more

    def _flush_and_release(self) -> None:
        self.log.flush()
        if self._held:
            held, self._held = self._held, []
            for peer_id, message in held:
                self._send(peer_id, message)

    def _hold(self, peer_id: str, message: Message) -> None:
        self._held.append((peer_id, message))

    def _manage(self, now: float) -> bool:
        """Do what membership changes and transfers need until none is under way."""
        if self.peers.settle(self.raft.commit_index()):
            self._on_peers()
        more = self.leading.manage(now)
        self._attention = self.leading.busy or self.peers.unsettled
        return more

    # -- roles, and the configuration in force ---------------------------------------------------------

    def _hold_vote(self, peer_id: str, message: VoteRequest | VoteReply) -> None:
        """The library votes, or asks for a vote."""
        if isinstance(message, VoteReply):
            self._election.voted(self._now)
        self._hold(peer_id, message)

    def _role_changes(self, role: Role) -> None:
        """The library takes another role."""
        if role is Role.LEADER:
            self.counters.elections_won += 1
            self._report.reason = f"election won in term {self.raft.term()}"
            self.leading.begin(self._now)
            if self._snapshots is not None:
                self._snapshots.begin_term()
            return
        if role is Role.CANDIDATE:
            self.counters.elections_started += 1
        self.leading.end()
        if self._snapshots is not None:
            self._snapshots.end_term()
        if role is Role.FOLLOWER:
            self._election.voted(self._now)

    def _step_down(self, now: float) -> None:
        self._report.reason = f"no quorum for {self.config.election_ms_max / 1000:g} s"
        self.raft.step_down()
        self._election.voted(now)

    def _configuration_in_force(self) -> None:
        """Everything that counts, sends or connects follows the log's newest configuration."""
        if self.peers.followed == self.membership.version:
            return
        self.counters.configurations_seen += 1
        voters = self.membership.voters
        if self.raft.leads() and self.config.node_id not in voters:
            raise SafetyViolation("a leader that does not vote would count itself in majorities")
        self.peers.follow(self.raft.commit_index())
        self.raft.set_voters(self.peers.voters, self.leading.replication.matches())
        self._election.set_voters(voters, self._now)
        self.leading.configuration_changed(self._now)
        self._attention = True
        self._on_peers()

    def _report_role(self) -> None:
        standing = self.raft.standing()
        report = self._report
        if report.settled and standing == report.standing:
            report.reason = ""
            return
        leader_id = self.leader_id
        change = report.change(standing, self.raft.role(), leader_id, self.raft.term(), ready=self.leading.ready)
        if change is None:
            return
        if leader_id is not None and change.role is not Role.LEADER:
            self.leading.transfers.leader_seen(leader_id)
        self._on_peers()
        self._on_role(change)
