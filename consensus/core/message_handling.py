"""Whose messages count, and which part of a node they go to, in the next tick after they came.

Owns the inbox. A message counts when it came by the present connection, and from somebody who may speak: a member, the
present leader, or, at a node that knows no leader, any candidate. Read next: :mod:`oncegate.consensus.core.following`,
:mod:`oncegate.consensus.core.voting`, :mod:`oncegate.consensus.core.leading`, where the messages go.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from oncegate.consensus.core.following import Following
from oncegate.consensus.core.leading import Leading
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.core.role_report import RoleReport
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.messages import (
    Ack,
    Append,
    PreVoteReply,
    PreVoteRequest,
    RaftMessage,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotOffer,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

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
