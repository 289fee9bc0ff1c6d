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
from consensus.configuration import Configuration, is_configuration
from consensus.configuration import encode as encode_configuration
from consensus.election import Election
from consensus.entries import Entry
from consensus.errors import (
    ConsensusError,
    NotLeader,
    NotReady,
    ProtocolError,
    SafetyViolation,
)
from consensus.library import NO_OP_BYTES, LibraryLog, Raft
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
    Verdict,
    VoteReply,
    VoteRequest,
)
from consensus.ports import DurableState, PeerStatus, Role, RoleChange, StateMachine
from consensus.proposals import Proposals
from consensus.read_index import ReadRounds
from consensus.repairs import ack_counts, admit_append, without_entries
from consensus.replication import Replication
from consensus.saving import Saving, begin_at_saved
from consensus.segment import RECORD_HEADER_BYTES, records_bytes
from consensus.snapshots import Snapshots
from consensus.voting import Voting
from consensus.worker import InlineWorker, Worker

logger = logging.getLogger(__name__)

Token = TypeVar("Token")

TERM_BYTES = 4 * RECORD_HEADER_BYTES
"""Room in the log for the beginning of a term: a truncation and the leader's own entry."""


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
    ) -> None:
        """Take over an opened log and what the machine has saved; sends nothing yet.

        ``clock`` gives monotonic seconds, so that a simulation owns all time-outs. ``send`` hands one message to a
        connected peer; it may be lost, never reordered within a connection. ``on_result`` gets the token of a command
        with what ``apply`` returned, or the token of a read with the read point; ``on_failure`` what it ended with.
        ``worker`` reads and writes snapshots (inline by default); ``wake``, called from its thread, asks for a tick.

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
        applied_index = begin_at_saved(machine, log)
        self._raft = Raft(config.node_id, config.peers, log, send_vote=self._hold_vote, on_role=self._role_changes)
        self._replication = Replication(config, log, self._raft, send)
        self._election = Election(config, rng, now)
        self._voting = Voting(self._raft, log, self._election, send)
        self._applier = Applier(machine, log, clock, config.apply_slice_ms / 1000, applied_index)
        self._saving: Saving | None = None
        self._snapshots: Snapshots | None = None
        if isinstance(machine, DurableState):
            self._saving = Saving(config, log, machine, self.configuration_at)
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
        self._rounds: ReadRounds[Token] = ReadRounds(len(config.peers))
        self._epochs: dict[str, int] = {}
        self._inbox: list[tuple[str, int, RaftMessage]] = []
        self._held: list[tuple[str, Message]] = []
        self._last_role: RoleChange | None = None
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._commit_may_move = False
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
    def has_received(self) -> bool:
        """Messages wait for the next tick."""
        return bool(self._inbox)

    def peer_status(self) -> dict[str, PeerStatus]:
        """What is known of the other members."""
        return {
            peer_id: self._replication.status(peer_id, connected=peer_id in self._epochs)
            for peer_id in self.config.peers
        }

    def deadline(self) -> float:
        """When the next tick is due even if nothing arrives."""
        if self._raft.leads():
            due = self._replication.deadline(self._epochs, self._now)
            return due if self._snapshots is None else min(due, self._snapshots.deadline(self._now))
        return self._election.deadline

    def configuration_at(self, index: int) -> bytes:
        """The encoded configuration in force at ``index``."""
        config = self.config
        return encode_configuration(Configuration.of_addresses({config.node_id: config.listen, **config.peers}))

    # -- input -----------------------------------------------------------------------------------------

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection to a peer is established; it replaces an earlier one."""
        self._epochs[peer_id] = epoch
        self._raft.set_connected(peer_id, connected=True)
        self._replication.reconnected(peer_id)
        if self._snapshots is not None:
            self._snapshots.reconnected(peer_id)

    def peer_down(self, peer_id: str) -> None:
        """The connection to a peer is lost."""
        self._epochs.pop(peer_id, None)
        self._raft.set_connected(peer_id, connected=False)
        if self._raft.leader() == peer_id:
            self._election.leader_lost(self._clock())

    def receive(self, peer_id: str, epoch: int, message: RaftMessage) -> None:
        """Queue a message for the next tick."""
        self._inbox.append((peer_id, epoch, message))

    def propose(self, command: bytes, token: Token) -> None:
        """Queue a command for the next tick; its result or failure comes with ``token``.

        Raises:
            NotLeader, Overloaded, CommandRefused: nothing was queued.
        """
        if not self._raft.leads():
            raise NotLeader(self.leader_id)
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

    def stop(self) -> None:
        """Answer everybody who waits; nothing may be called afterwards but closing the log."""
        self._flush_and_release()
        self._proposals.refuse_queued(self.leader_id)
        self._abandon()
        if self._snapshots is not None:
            self._snapshots.stop()

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
            for peer_id, epoch, message in inbox:
                if self._epochs.get(peer_id) == epoch:
                    self._handle(peer_id, epoch, message)
        more = False
        if self._raft.leads():
            self._check_quorum(now)
        elif now >= self._election.deadline and not self.log.has_room(TERM_BYTES):
            # A leader begins its term with an entry of its own; without room for it, others must lead.
            self._election.voted(now)
        elif now >= self._election.deadline:
            self._voting.ask_for_pre_votes(self._epochs, now)
        if self._raft.leads():
            if self._commit_may_move:
                self._advance_commit()
            self._proposals.append_to(self.log, self._raft.term())
            more = self._replication.replicate(self._epochs, now)
            if self._snapshots is not None:
                self._snapshots.lead(self._epochs, now)
            if self._rounds.wanted or (self._rounds.open and now - self._rounds.started_at > self._heartbeat_s):
                self._start_reads()
        elif self._proposals.queued:
            self._proposals.refuse_queued(self.leader_id)
        if self._snapshots is not None:
            self._snapshots.follow(now)
        self._flush_and_release()
        if not self.config.peers and self._raft.leads():
            self._advance_commit()
        more |= self._applier.apply_to(self._raft.commit_index(), self._proposals.applied)
        if self._saving is not None:
            self._saving.applied(self._applier.applied_index)
        self.log.maintain(now)
        self._report_role()
        return more

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
            case VoteRequest():
                self._voting.vote_requested(peer_id, message)
            case VoteReply():
                self._voting.voted_for_us(peer_id, message)
            case PreVoteRequest():
                self._voting.pre_vote_requested(peer_id, message, self._epochs, self._now)
            case PreVoteReply():
                self._voting.pre_vote_answered(peer_id, message, self._now)
            case SnapshotOffer() | SnapshotChunk() | SnapshotAnswer():
                if self._snapshots is not None:
                    self._handle_snapshot(self._snapshots, peer_id, epoch, message)

    def _handle_append(self, peer_id: str, epoch: int, append: Append) -> None:
        term = self._raft.term()
        if append.term < term:
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
        full = not self._has_room(admitted.append.entries)
        if full:
            admitted = without_entries(admitted, self.log)
        self._raft.receive_append(peer_id, admitted.append, success=admitted.success)
        ack = Ack(append.term, epoch, admitted.success, admitted.index, append.prev_index, full)
        self._held.append((peer_id, ack))

    def _has_room(self, entries: list[Entry]) -> bool:
        if not entries:
            return True
        # What a leader appends for itself may use what commands leave: or nobody could begin a term on full disks.
        own = all(len(command) <= NO_OP_BYTES or is_configuration(command) for command, _, _ in entries)
        return self.log.has_room(records_bytes(entries), reserve_bytes=0 if own else self.config.reserve_bytes)

    def _handle_ack(self, peer_id: str, ack: Ack) -> None:
        term = self._raft.term()
        if ack.term > term:
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

    def _hold_vote(self, peer_id: str, message: VoteRequest | VoteReply) -> None:
        if isinstance(message, VoteReply):
            self._election.voted(self._now)
        self._held.append((peer_id, message))

    def _check_quorum(self, now: float) -> None:
        if not self._replication.has_quorum(now):
            logger.warning("no quorum has answered for an election time-out: stepping down")
            self._raft.step_down()
            self._election.voted(now)

    def _role_changes(self, role: Role) -> None:
        if role is Role.LEADER:
            self._replication.begin(self._now)
            if self._snapshots is not None:
                self._snapshots.begin_term()
            return
        self._replication.end()
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
            self._last_role = RoleChange(role=role, leader_id=leader_id, term=self._raft.term(), ready=ready)
            self._on_role(self._last_role)

    # -- reading ---------------------------------------------------------------------------------------

    def _start_reads(self) -> None:
        number = self._rounds.start(self._raft.commit_index(), self._now)
        probe = ReadProbe(self._raft.term(), number)
        for peer_id in self._epochs:
            self._send(peer_id, probe)
        self._finish_reads()

    def _finish_reads(self) -> None:
        index, tokens = self._rounds.finish()
        for token in tokens:
            self._on_result(token, index)
