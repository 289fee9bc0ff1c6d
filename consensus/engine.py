"""One Raft node without sockets, timers or futures: messages and commands in, decisions out.

The owner (an event loop, or a simulation) calls :meth:`Engine.receive` and :meth:`Engine.propose` as things
arrive, then :meth:`Engine.tick` once. A tick does, in this order:

1. messages are handled; the commit index moves (all that is in the log has been flushed by earlier ticks)
2. waiting commands are appended, and appends leave for the followers at once
3. one write, one flush
4. acknowledgements and votes that waited for that flush leave
5. committed entries are applied, results handed out

Step 4 before 3 would acknowledge what a power loss forgets. Step 2 before 3 is safe (Raft thesis §10.2.1): the
leader counts itself only for what it has flushed. Read next: :mod:`consensus.library`, :mod:`consensus.repairs`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Generic, TypeVar

from consensus.applier import Applier
from consensus.config import ReplicaConfig
from consensus.configuration import Member, is_configuration
from consensus.counters import Counters
from consensus.election import Election
from consensus.entries import Entry
from consensus.errors import (
    ChangeRefused,
    ConsensusError,
    NotLeader,
    NotReady,
    ProtocolError,
    SafetyViolation,
    TransferFailed,
    Transferring,
)
from consensus.library import NO_OP_BYTES, LibraryLog, Raft
from consensus.membership import Membership
from consensus.messages import (
    Ack,
    Append,
    Message,
    PreVoteReply,
    PreVoteRequest,
    RaftMessage,
    ReadProbe,
    ReadProbeAck,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMessage,
    SnapshotOffer,
    TimeoutNow,
    Verdict,
    VoteReply,
    VoteRequest,
)
from consensus.ports import DurableState, PeerStatus, Role, RoleChange, StateMachine
from consensus.proposals import Proposals
from consensus.read_index import ReadRounds
from consensus.reconfiguration import Reconfiguration
from consensus.repairs import ack_counts, admit_append, without_entries
from consensus.replication import Replication
from consensus.saving import Saving, begin_at_saved
from consensus.segment import RECORD_HEADER_BYTES, records_bytes
from consensus.snapshots import Snapshots
from consensus.transfer import Transfers, most_up_to_date
from consensus.voting import Voting
from consensus.worker import InlineWorker, Worker

logger = logging.getLogger(__name__)

Token = TypeVar("Token")

TERM_BYTES = 4 * RECORD_HEADER_BYTES
"""Room in the log for the beginning of a term: a truncation and the leader's own entry."""

_WAITING_ACKS_MAX = 64
"""Acknowledgements that wait for the next tick, because nothing follows from them."""


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
        self._reason = ""
        self._leader_seen: str | None = None
        applied_index = begin_at_saved(machine, log)
        self._raft = Raft(config.node_id, (), log, send_vote=self._hold_vote, on_role=self._role_changes)
        self._replication = Replication(config, log, self._raft, send, self.counters)
        self._election = Election(config, rng, now)
        self._voting = Voting(self._raft, log, self._election, send)
        self._applier = Applier(machine, log, clock, config.apply_slice_ms / 1000, applied_index)
        self._saving: Saving | None = None
        self._snapshots: Snapshots | None = None
        if isinstance(machine, DurableState):
            self._saving = Saving(config, log, machine, self._membership.at)
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
        self._last_role: RoleChange | None = None
        self._standing: tuple[object, ...] = ()
        # Nothing but role, leader and term could change what is reported.
        self._role_settled = False
        self._quorum_until = float("-inf")
        self._reserve_bytes = config.reserve_bytes
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._commit_may_move = False
        self._configuration_in_force()
        self.log.flush()

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

    @property
    def has_proposals(self) -> bool:
        """Commands wait for the next tick."""
        return self._proposals.queued

    @property
    def tick_wanted(self) -> bool:
        """Messages wait that something may follow from; without any, the next tick may come as late as it likes."""
        return self._tick_wanted

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
        """See :attr:`consensus.proposals.Proposals.load`."""
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

    # -- input -----------------------------------------------------------------------------------------

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection to a peer is established; it replaces an earlier one."""
        self._epochs[peer_id] = epoch
        self._role_settled = False
        self._raft.set_connected(peer_id, connected=True)
        self._replication.reconnected(peer_id)
        if self._snapshots is not None:
            self._snapshots.reconnected(peer_id)

    def peer_down(self, peer_id: str) -> None:
        """The connection to a peer is lost."""
        self._epochs.pop(peer_id, None)
        self._role_settled = False
        self._raft.set_connected(peer_id, connected=False)
        if self._raft.leader() == peer_id:
            self._reason = f"the connection to the leader {peer_id} closed"
            self._election.leader_lost(self._clock())
        if self._transfers.target == peer_id and self._raft.leads():
            self.counters.transfers_failed += 1
            self._transfers.stop(TransferFailed(f"the connection to {peer_id} closed"))

    def receive(self, peer_id: str, epoch: int, message: RaftMessage) -> None:
        """Queue a message for the next tick."""
        self._inbox.append((peer_id, epoch, message))
        if (
            type(message) is not Ack
            or self._attention
            or len(self._inbox) > _WAITING_ACKS_MAX
            or not self._replication.brings_nothing(peer_id, message)
        ):
            self._tick_wanted = True

    def propose(self, command: bytes, token: Token) -> None:
        """Queue a command for the next tick; its result or failure comes with ``token``.

        Raises:
            NotLeader, Transferring, Overloaded, CommandRefused, CommandReserved: nothing was queued.
        """
        self._must_lead()
        log = self.log
        self._proposals.add(command, token, log.bytes_used, log.room_bytes if log.disk_full else None)

    def read(self, token: Token) -> None:
        """Ask for a read point; the next tick starts a round unless one is open.

        Raises:
            NotLeader: ask the leader.
            NotReady: the leader does not know yet what is committed.
        """
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if not self.ready:
            raise NotReady("the leader has not committed an entry of its term yet")
        self._rounds.add(token)

    def receive_probe(self, peer_id: str, probe: ReadProbe) -> None:
        """Confirm a leader's term; needs no flush, since terms are durable before they are used."""
        if probe.term == self._raft.term():
            self._send(peer_id, ReadProbeAck(probe.term, probe.number))

    def receive_probe_ack(self, peer_id: str, ack: ReadProbeAck) -> None:
        """Count a confirmation, and answer the reads it completes."""
        if self._raft.leads() and ack.term == self._raft.term():
            self._rounds.confirm(peer_id, ack.number)
            self._finish_reads()
            if self._rounds.wanted:
                self._start_reads()

    def show_commit(self, peer_id: str) -> None:
        """Let a follower know the commit index now: a read waits for it there."""
        if peer_id in self._epochs:
            self._replication.show_commit(peer_id, self._now)

    def add_member(self, node_id: str, member: Member, token: Token) -> None:
        """Make a node a member; ``token`` is answered when it is a voter. See :meth:`Reconfiguration.add`.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
        """
        self._must_lead()
        self._attention = True
        self._changes.add(node_id, member, token, ready=self.ready, commit_index=self.commit_index)

    def remove_member(self, node_id: str, token: Token) -> None:
        """Make another node no member; ``token`` is answered when that is committed.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was done.
            ChangeRefused: the node leads, or the others that are left and answer are no majority.
        """
        self._must_lead()
        if node_id == self.config.node_id:
            raise ChangeRefused("a leader does not remove itself: leadership goes first")
        voters = self._membership.voters
        if node_id in voters and not self._replication.has_quorum(voters - {node_id}, self._clock()):
            raise ChangeRefused(f"without {node_id} the voters that answer would be no majority")
        self._attention = True
        self._changes.remove(node_id, token, ready=self.ready, commit_index=self.commit_index)

    def forget_change(self, token: Token) -> None:
        """Nobody waits for this change any more; what was appended goes on."""
        self._changes.forget(token)

    def transfer(self, target: str | None, token: Token, timeout_s: float) -> None:
        """Hand leadership to ``target``, or to the most up-to-date voter; ``token`` gets the id of who took it.

        Raises:
            NotLeader: nothing to hand over.
            ChangeRefused: the target does not vote, or another transfer is under way.
            TransferFailed: no other voter is connected.
        """
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if target is None:
            target = self._transfers.target or most_up_to_date(self._replication.matches(), self._connected_voters())
        if target not in self._peer_voters:
            raise ChangeRefused(f"{target} is no other voter")
        if target not in self._epochs:
            raise TransferFailed(f"{target} is not connected")
        self._attention = True
        self._transfers.begin(target, token, self._clock() + timeout_s)
        self.counters.transfers_started += 1

    def stop(self) -> None:
        """Answer everybody who waits; nothing may be called afterwards but closing the log."""
        self._flush_and_release()
        self._proposals.refuse_queued(self.leader_id)
        self._abandon()
        self._changes.end()
        if self._snapshots is not None:
            self._snapshots.stop()
        self._transfers.stop(TransferFailed("the node stops"))

    # -- the tick --------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do all that is due; returns whether there is more to do at once.

        Raises:
            OSError, SafetyViolation: the node must end (its disk or its state cannot be trusted).
        """
        now = self._clock()
        slept = now - self._now - 2 * self._heartbeat_s
        self._now = now
        if slept > 0:
            # Answers to a leader that was off the processor may still wait in its sockets.
            self._replication.excuse(slept)
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            self._tick_wanted = False
            for peer_id, epoch, message in inbox:
                if self._epochs.get(peer_id) == epoch:
                    self._handle(peer_id, epoch, message)
        more = False
        raft = self._raft
        leads = raft.leads()
        if leads:
            if now >= self._quorum_until:
                self._check_quorum(now)
                leads = raft.leads()
        elif now >= self._election.deadline:
            self._ask_for_votes(now)
            leads = raft.leads()
        if leads:
            if self._commit_may_move:
                self._advance_commit()
            self._proposals.append_to(self.log, raft.term())
            if self._changes.append_to(self.log, raft.term()):
                self._configuration_in_force()
            more = self._replication.replicate(self._epochs, now)
            if self._snapshots is not None:
                self._snapshots.lead(self._epochs, now)
            if self._rounds.wanted or (self._rounds.open and now - self._rounds.started_at > self._heartbeat_s):
                self._start_reads()
        elif self._proposals.queued:
            self._proposals.refuse_queued(self.leader_id)
        if self._snapshots is not None:
            self._snapshots.follow(now)
            if self._membership.version != self._membership_seen:
                self._configuration_in_force()
        self._flush_and_release()
        if not self._peer_voters and raft.leads():
            self._advance_commit()
            # Learners are told in time.
            more |= self.applied_index < self.commit_index and bool(self._epochs)
        more |= self._applier.apply_to(raft.commit_index(), self._proposals.applied)
        if self._saving is not None:
            self._saving.applied(self._applier.applied_index)
        self.log.maintain(now)
        if self._attention:
            more |= self._manage(now)
        self._report_role()
        return more

    def _manage(self, now: float) -> bool:
        """Do what membership changes and transfers need until none is under way."""
        more = False
        if 0 < self._unsettled_index <= self.commit_index:
            self._know_members()
        transfers = self._transfers
        if transfers.target is not None:
            if transfers.expire(now):
                self.counters.transfers_failed += 1
            elif self._raft.leads():
                matched = self._replication.matches().get(transfers.target, 0)
                if transfers.tell(
                    applied_index=self.applied_index, matched_index=matched, last_index=self.log.last_index
                ):
                    self._send(transfers.target, TimeoutNow(self._raft.term()))
        if self._raft.leads() and self._changes.busy:
            self._changes.settle(self.commit_index)
            if transfers.target is None:
                more = self._changes.promote(self._caught_up, now, ready=self.ready, commit_index=self.commit_index)
        if self._replication.leaving and self._replication.dismiss(self._epochs, now):
            self._on_peers()
        self._attention = (
            transfers.target is not None
            or self._changes.busy
            or self._unsettled_index > 0
            or bool(self._replication.leaving)
        )
        return more

    def _connected_voters(self) -> list[str]:
        """The other voters within reach, in an order that does not depend on the process."""
        return [peer_id for peer_id in self._epochs if peer_id in self._peer_voters]

    def _caught_up(self, peer_id: str) -> bool:
        return peer_id in self._epochs and self._replication.caught_up(peer_id)

    def _must_lead(self) -> None:
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
        if self._transfers.target is not None:
            raise Transferring(f"leadership is being handed to {self._transfers.target}")

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

    def _advance_commit(self) -> None:
        self._commit_may_move = False
        self._raft.advance_commit()

    def _flush_and_release(self) -> None:
        self.log.flush()
        if self._held:
            held, self._held = self._held, []
            for peer_id, message in held:
                self._send(peer_id, message)

    def _handle(self, peer_id: str, epoch: int, message: RaftMessage) -> None:
        match message:
            case Append():
                self._handle_append(peer_id, epoch, message)
            case Ack():
                self._handle_ack(peer_id, message)
            case TimeoutNow():
                self._handle_timeout_now(peer_id, message)
            case SnapshotOffer() | SnapshotChunk():
                # Like appends from whoever leads: a node that joins a compacted log knows nobody before its first one.
                if self._snapshots is not None:
                    self._handle_snapshot(self._snapshots, peer_id, epoch, message)
            case VoteRequest() | PreVoteRequest() if self.hears_anyone:
                # The candidate may have been added while this node was away, and its vote be the one that is missing
                # (Raft thesis §4.1). One that was removed has a shorter log, and gets none.
                self._handle_candidate(peer_id, message)
            case _ if peer_id not in self._known:
                # Removed, or not added yet: while there is a leader, it neither votes here nor raises terms (Raft
                # thesis §4.2.3). A learner is heard, since its promotion may not have come here yet; whose votes count
                # is the candidate's affair.
                return
            case VoteRequest() | PreVoteRequest():
                self._handle_candidate(peer_id, message)
            case VoteReply():
                self._voting.voted_for_us(peer_id, message)
            case PreVoteReply():
                self._voting.pre_vote_answered(peer_id, message, self._now)
            case SnapshotAnswer():
                if self._snapshots is not None:
                    self._handle_snapshot(self._snapshots, peer_id, epoch, message)

    def _handle_candidate(self, peer_id: str, message: VoteRequest | PreVoteRequest) -> None:
        if isinstance(message, PreVoteRequest):
            self._voting.pre_vote_requested(peer_id, message, self._epochs, self._now)
            return
        if message.term > self._raft.term():
            self._reason = f"later term {message.term} from {peer_id}"
        self._voting.vote_requested(peer_id, message)

    def _handle_append(self, peer_id: str, epoch: int, append: Append) -> None:
        term = self._raft.term()
        self.counters.appends_received += 1
        if append.term < term:
            self.counters.appends_refused += 1
            # Its sender is deposed and must learn it, or it would keep this node from ever catching up.
            self._held.append((peer_id, Ack(term, epoch, False, 0, append.prev_index)))
            return
        if append.term == term and self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(self._now)
        try:
            admitted = admit_append(append, self.log)
        except ProtocolError as error:
            logger.error("an append from %s is ignored: %s", peer_id, error)
            return
        if not admitted.success:
            self.counters.appends_refused += 1
        full = not self._has_room(admitted.append.entries)
        if full:
            admitted = without_entries(admitted, self.log)
        self._raft.receive_append(peer_id, admitted.append, success=admitted.success)
        if self._membership.version != self._membership_seen:
            self._configuration_in_force()
        ack = Ack(append.term, epoch, admitted.success, admitted.index, append.prev_index, full)
        self._held.append((peer_id, ack))

    def _has_room(self, entries: list[Entry]) -> bool:
        if not entries:
            return True
        size_bytes = records_bytes(entries)
        if self.log.has_room(size_bytes, reserve_bytes=self._reserve_bytes):
            return True
        # What a leader appends for itself may use what commands leave: or nobody could begin a term on full disks.
        own = all(len(command) <= NO_OP_BYTES or is_configuration(command) for command, _, _ in entries)
        return own and self.log.has_room(size_bytes)

    def _handle_ack(self, peer_id: str, ack: Ack) -> None:
        term = self._raft.term()
        if ack.term > term:
            if peer_id in self._known:
                self._reason = f"later term {ack.term} from {peer_id}"
                self._raft.adopt_term(peer_id, ack.term)
            return
        if not self._raft.leads() or not ack_counts(ack, term=term, epoch=self._epochs.get(peer_id)):
            return
        if self._replication.acknowledged(peer_id, ack, self._now):
            self._commit_may_move = True

    def _handle_snapshot(self, snapshots: Snapshots, peer_id: str, epoch: int, message: SnapshotMessage) -> None:
        if message.term > self._raft.term():
            self._raft.adopt_term(peer_id, message.term)
        term = self._raft.term()
        if isinstance(message, SnapshotAnswer):
            if self._raft.leads() and message.term == term and message.epoch == self._epochs.get(peer_id):
                snapshots.answered(peer_id, message, self._now)
            return
        if message.term < term:
            # Its sender is deposed; the term is what it must learn.
            self._held.append((peer_id, SnapshotAnswer(term, epoch, message.transfer, Verdict.REJECTED)))
            return
        if self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(self._now)
        if isinstance(message, SnapshotOffer):
            snapshots.offered(peer_id, epoch, message, self._now)
        else:
            snapshots.chunk(peer_id, epoch, message, self._now)

    # -- elections -------------------------------------------------------------------------------------

    def _ask_for_votes(self, now: float) -> None:
        if not self.log.has_room(TERM_BYTES):
            # A leader begins its term with an entry of its own; without room for it, others must lead.
            self._election.voted(now)
            return
        if self._election.may_campaign:
            self.counters.pre_votes_started += 1
        self._voting.ask_for_pre_votes(self._connected_voters(), now)

    def _handle_timeout_now(self, peer_id: str, message: TimeoutNow) -> None:
        leads = message.term == self._raft.term() and self._raft.leader() == peer_id
        if leads and self._election.may_campaign and not self._raft.leads():
            self._reason = f"transfer from {peer_id}"
            self._election.voted(self._now)
            self._raft.campaign()

    def _hold_vote(self, peer_id: str, message: VoteRequest | VoteReply) -> None:
        if isinstance(message, VoteReply):
            self._election.voted(self._now)
        self._held.append((peer_id, message))

    def _check_quorum(self, now: float) -> None:
        self._quorum_until = self._replication.quorum_until(self._membership.voters)
        if self._quorum_until <= now:
            self._reason = f"no quorum for {self.config.election_ms_max / 1000:g} s"
            self._raft.step_down()
            self._election.voted(now)

    def _role_changes(self, role: Role) -> None:
        if role is Role.LEADER:
            self.counters.elections_won += 1
            self._reason = f"election won in term {self._raft.term()}"
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

    def _report_role(self) -> None:
        standing = self._raft.standing()
        if self._role_settled and standing == self._standing:
            self._reason = ""
            return
        role = self._raft.role()
        leader_id = self.leader_id
        ready = self.ready
        last = self._last_role
        if last is None or (last.role, last.leader_id, last.term, last.ready) != (
            role,
            leader_id,
            self._raft.term(),
            ready,
        ):
            self._last_role = RoleChange(
                role=role,
                leader_id=leader_id,
                term=self._raft.term(),
                ready=ready,
                reason=self._reason or _reason(last, role, leader_id, self._raft.term(), ready=ready),
            )
            if leader_id is not None and leader_id != self._leader_seen:
                self._leader_seen = leader_id
                self.counters.leader_changes += 1
            if leader_id is not None and role is not Role.LEADER:
                self._transfers.leader_seen(leader_id)
            self._on_peers()
            self._on_role(self._last_role)
        self._reason = ""
        self._standing, self._role_settled = standing, ready or role is not Role.LEADER

    # -- reading ---------------------------------------------------------------------------------------

    def _start_reads(self) -> None:
        number = self._rounds.start(self._raft.commit_index(), self._now)
        probe = ReadProbe(self._raft.term(), number)
        for peer_id in self._connected_voters():
            self._send(peer_id, probe)
        self._finish_reads()

    def _finish_reads(self) -> None:
        index, tokens = self._rounds.finish()
        for token in tokens:
            self._on_result(token, index)


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
