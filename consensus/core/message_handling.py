"""What a node does with each message of its peers, in the next tick after it came.

Owns the inbox and whose messages count: those of the present connection, of members, of the present term. Every answer
that promises something waits for the flush. Read next: :mod:`oncegate.consensus.core.repairs`, which filters appends
and their acknowledgements; :mod:`oncegate.consensus.core.engine`, the layer above;
:mod:`oncegate.consensus.core.roles`, the one below.
"""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

from oncegate.consensus.configuration import is_configuration
from oncegate.consensus.core.library import NO_OP_BYTES
from oncegate.consensus.core.repairs import ack_counts, admit_append, without_entries
from oncegate.consensus.core.roles import Roles
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.errors import ProtocolError, SafetyViolation
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.segment import records_bytes
from oncegate.consensus.messages import (
    Ack,
    Append,
    PreVoteReply,
    PreVoteRequest,
    RaftMessage,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotMessage,
    SnapshotOffer,
    TimeoutNow,
    Verdict,
    VoteReply,
    VoteRequest,
)

logger = logging.getLogger(__name__)

Token = TypeVar("Token")

_WAITING_ACKS_MAX = 64
"""Acknowledgements that wait for the next tick, because nothing follows from them."""


class MessageHandling(Roles[Token], Generic[Token]):
    """One node's inbox."""

    @property
    def tick_wanted(self) -> bool:
        """Messages wait that something may follow from; without any, the next tick may come as late as it likes."""
        return self._tick_wanted

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
            self._report.reason = f"later term {message.term} from {peer_id}"
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
        self._freshness.heard(append.commit, self._now)
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
                self._report.reason = f"later term {ack.term} from {peer_id}"
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

    def _handle_timeout_now(self, peer_id: str, message: TimeoutNow) -> None:
        leads = message.term == self._raft.term() and self._raft.leader() == peer_id
        if leads and self._election.may_campaign and not self._raft.leads():
            self._report.reason = f"transfer from {peer_id}"
            self._election.voted(self._now)
            self._raft.campaign()
