"""What the messages of a node's peers do, in the next tick after they came.

Owns whose messages count: those that came by the present connection, from somebody who may speak: a member, the present
leader, or, at a node that knows no leader, any candidate. And the order in which an append is judged: its term, its fit
to the log, the room for its entries; only then the library takes it. What is promised to the leader waits for the
flush. Read next: :mod:`oncegate.consensus.core.repairs`, which decides about the fit;
:mod:`oncegate.consensus.core.voting`, :mod:`oncegate.consensus.core.leading`, :mod:`oncegate.consensus.core.snapshots`,
where the other messages go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import is_configuration
from oncegate.consensus.core.applying import Freshness
from oncegate.consensus.core.election import Election
from oncegate.consensus.core.leading import Leading
from oncegate.consensus.core.library import NO_OP_BYTES, Raft
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.core.repairs import admit_append, without_entries
from oncegate.consensus.core.role_report import RoleReport
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import ProtocolError, SafetyViolation
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import records_bytes
from oncegate.consensus.messages import (
    Ack,
    Append,
    Message,
    PreVoteReply,
    PreVoteRequest,
    RaftMessage,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotVerdict,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

logger = logging.getLogger(__name__)

Token = TypeVar("Token")

_WAITING_ACKS_MAX = 64
"""Acknowledgements that wait for the next tick, because nothing follows from them."""


class Inbox(Generic[Token]):
    """The messages of one node's peers."""

    def __init__(
        self,
        raft: Raft,
        peers: Peers,
        voting: Voting,
        following: Following,
        leading: Leading[Token],
        snapshots: Snapshots | None,
        report: RoleReport,
    ) -> None:
        self._raft = raft
        self._peers = peers
        self._voting = voting
        self._following = following
        self._leading = leading
        self._snapshots = snapshots
        self._report = report
        self._waiting: list[tuple[str, int, RaftMessage]] = []
        self.tick_wanted = False
        """Messages wait that something may follow from; without any, the next tick may come as late as it likes."""

    def add(self, peer_id: str, epoch: int, message: RaftMessage, *, attention: bool) -> None:
        """Queue a message; with ``attention``, something may follow from any of them."""
        self._waiting.append((peer_id, epoch, message))
        if (
            type(message) is not Ack
            or attention
            or len(self._waiting) > _WAITING_ACKS_MAX
            or not self._leading.replication.brings_nothing(peer_id, message)
        ):
            self.tick_wanted = True

    def handle(self, now: float) -> None:
        """Handle all that waits, in order."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self.tick_wanted = False
        epochs = self._peers.epochs
        for peer_id, epoch, message in waiting:
            if epochs.get(peer_id) == epoch:
                self._handle(peer_id, epoch, message, now)

    def _handle(self, peer_id: str, epoch: int, message: RaftMessage, now: float) -> None:
        match message:
            case Append():
                self._following.append(peer_id, epoch, message, now)
            case Ack():
                self._acknowledged(peer_id, message, now)
            case TimeoutNow():
                self._voting.told_to_campaign(peer_id, message, now)
            case SnapshotOffer() | SnapshotChunk():
                # Like appends from whoever leads: a node that joins a compacted log knows nobody before its first one.
                self._following.snapshot(peer_id, epoch, message, now)
            case VoteRequest() | PreVoteRequest() if self._peers.hears_anyone(self._raft.leader()):
                # The candidate may have been added while this node was away, and its vote be the one that is missing
                # (Raft thesis §4.1). One that was removed has a shorter log, and gets none.
                self._voting.requested(peer_id, message, self._peers.epochs, now)
            case _ if peer_id not in self._peers.known:
                # Removed, or not added yet: while there is a leader, it neither votes here nor raises terms (Raft
                # thesis §4.2.3). A learner is heard, since its promotion may not have come here yet; whose votes count
                # is the candidate's affair.
                return
            case VoteRequest() | PreVoteRequest():
                self._voting.requested(peer_id, message, self._peers.epochs, now)
            case VoteReply():
                self._voting.voted_for_us(peer_id, message)
            case PreVoteReply():
                self._voting.pre_vote_answered(peer_id, message, now)
            case SnapshotAnswer():
                self._snapshot_answered(peer_id, message, now)

    def _acknowledged(self, peer_id: str, ack: Ack, now: float) -> None:
        if ack.term <= self._raft.term():
            self._leading.acknowledged(peer_id, ack, now)
        elif peer_id in self._peers.known:
            self._report.reason = f"later term {ack.term} from {peer_id}"
            self._raft.adopt_term(peer_id, ack.term)

    def _snapshot_answered(self, peer_id: str, answer: SnapshotAnswer, now: float) -> None:
        if self._snapshots is None:
            return
        if answer.term > self._raft.term():
            self._raft.adopt_term(peer_id, answer.term)
        if self._raft.leads() and answer.term == self._raft.term() and self._peers.is_connected(peer_id, answer.epoch):
            self._snapshots.answered(peer_id, answer, now)


class Following:
    """One node's side of a leader's replication."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LibraryLog,
        raft: Raft,
        election: Election,
        freshness: Freshness,
        snapshots: Snapshots | None,
        counters: Counters,
        hold: Callable[[str, Message], None],
        on_configuration: Callable[[], None],
    ) -> None:
        """``hold`` sends a message after the next flush; ``on_configuration`` is called when entries may hold one."""
        self._log = log
        self._raft = raft
        self._election = election
        self._freshness = freshness
        self._snapshots = snapshots
        self._counters = counters
        self._hold = hold
        self._on_configuration = on_configuration
        self._reserve_bytes = config.reserve_bytes

    def append(self, peer_id: str, epoch: int, append: Append, now: float) -> None:
        """Take entries, or a heartbeat, and promise what is flushed next.

        Raises:
            SafetyViolation: two leaders in one term, or the append contradicts a committed entry.
        """
        term = self._raft.term()
        self._counters.appends_received += 1
        if append.term < term:
            self._counters.appends_refused += 1
            # Its sender is deposed and must learn it, or it would keep this node from ever catching up.
            self._hold(peer_id, Ack(term, epoch, False, 0, append.prev_index))
            return
        if append.term == term and self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(now)
        self._freshness.heard(append.commit, now)
        try:
            admitted = admit_append(append, self._log)
        except ProtocolError as error:
            logger.error("an append from %s is ignored: %s", peer_id, error)
            return
        if not admitted.success:
            self._counters.appends_refused += 1
        full = not self._has_room(admitted.append.entries)
        if full:
            admitted = without_entries(admitted, self._log)
        self._raft.receive_append(peer_id, admitted.append, success=admitted.success)
        self._on_configuration()
        wanted_from = 0 if self._snapshots is None else self._snapshots.wanted_from
        ack = Ack(append.term, epoch, admitted.success, admitted.index, append.prev_index, full, wanted_from)
        self._hold(peer_id, ack)

    def snapshot(self, peer_id: str, epoch: int, message: SnapshotOffer | SnapshotChunk, now: float) -> None:
        """Take part of a snapshot.

        Raises:
            SafetyViolation: two leaders in one term.
        """
        if self._snapshots is None:
            return
        if message.term > self._raft.term():
            self._raft.adopt_term(peer_id, message.term)
        term = self._raft.term()
        if message.term < term:
            # Its sender is deposed; the term is what it must learn.
            self._hold(peer_id, SnapshotAnswer(term, epoch, message.transfer, SnapshotVerdict.REJECTED))
            return
        if self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(now)
        if isinstance(message, SnapshotOffer):
            self._snapshots.offered(peer_id, epoch, message, now)
        else:
            self._snapshots.chunk(peer_id, epoch, message, now)

    def _has_room(self, entries: list[Entry]) -> bool:
        if not entries:
            return True
        size_bytes = records_bytes(entries)
        if self._log.has_room(size_bytes, reserve_bytes=self._reserve_bytes):
            return True
        # What a leader appends for itself may use what commands leave: or nobody could begin a term on full disks.
        own = all(len(command) <= NO_OP_BYTES or is_configuration(command) for command, _, _ in entries)
        return own and self._log.has_room(size_bytes)
