"""Votes and pre-votes of one node: who is asked, who is granted, when an election begins.

Joins the election clock to the library's vote rules. A vote leaves only after the flush that covers it, so votes are
handed to a function that holds them. Read next: :mod:`oncegate.consensus.core.election`,
:mod:`oncegate.consensus.core.library`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from oncegate.consensus.core.election import Election, PreVoteStanding
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.role_report import RoleReport
from oncegate.consensus.counters import Counters
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.messages import Message, PreVoteReply, PreVoteRequest, TimeoutNow, VoteReply, VoteRequest

TERM_BYTES = 4 * RECORD_HEADER_BYTES
"""Room in the log for the beginning of a term: a truncation and the leader's own entry."""


class Voting:
    """The election messages, in and out."""

    def __init__(
        self,
        raft: Raft,
        log: LibraryLog,
        election: Election,
        counters: Counters,
        report: RoleReport,
        send: Callable[[str, Message], None],
    ) -> None:
        self._raft = raft
        self._log = log
        self._election = election
        self._counters = counters
        self._report = report
        self._send = send
        self._voters: set[str] = set()
        self._voters_term = 0

    def ask_for_pre_votes(self, peer_ids: Collection[str], now: float) -> None:
        """The time-out has passed: find out whether an election could be won.

        A node that does not vote itself asks nobody; ``peer_ids`` are the other voters that are connected.
        """
        if not self._log.has_room(TERM_BYTES):
            # A leader begins its term with an entry of its own; without room for it, others must lead.
            self._election.voted(now)
            return
        if not self._election.may_campaign:
            self._election.wait(now)
            return
        self._counters.pre_votes_started += 1
        attempt = self._election.begin(now)
        request = PreVoteRequest(self._raft.term() + 1, attempt, self._log.last_index, self._log.last_term)
        for peer_id in peer_ids:
            self._send(peer_id, request)
        if self._election.settle(now):
            self._raft.campaign()

    def requested(
        self, peer_id: str, request: VoteRequest | PreVoteRequest, connected: Collection[str], now: float
    ) -> None:
        """Somebody asks for a vote, or whether there would be one."""
        if isinstance(request, PreVoteRequest):
            self._pre_vote_requested(peer_id, request, connected, now)
            return
        if request.term > self._raft.term():
            self._report.reason = f"later term {request.term} from {peer_id}"
        # The library decides (Raft §5.2, §5.4.1).
        self._raft.receive_vote_request(peer_id, request)

    def _pre_vote_requested(
        self, peer_id: str, request: PreVoteRequest, connected: Collection[str], now: float
    ) -> None:
        # Answered at once: a pre-vote changes nothing here, so it waits for no flush.
        leader = self._raft.leader()
        standing = PreVoteStanding(
            term=self._raft.term(),
            last_index=self._log.last_index,
            last_term=self._log.last_term,
            leads=self._raft.leads(),
            leader_reachable=leader is not None and leader in connected,
        )
        granted = self._election.would_vote(peer_id, request, standing, now)
        self._send(peer_id, PreVoteReply(self._raft.term(), request.attempt, granted))

    def pre_vote_answered(self, peer_id: str, reply: PreVoteReply, now: float) -> None:
        """Begin the election when a majority would vote for this node."""
        if reply.term > self._raft.term():
            self._raft.adopt_term(peer_id, reply.term)
        elif reply.granted and self._election.count(peer_id, reply.attempt, now):
            self._raft.campaign()

    def told_to_campaign(self, peer_id: str, message: TimeoutNow, now: float) -> None:
        """The leader hands over: begin an election at once, without a pre-vote, which its followers would refuse."""
        leads = message.term == self._raft.term() and self._raft.leader() == peer_id
        if leads and self._election.may_campaign and not self._raft.leads():
            self._report.reason = f"transfer from {peer_id}"
            self._election.voted(now)
            self._raft.campaign()

    def voted_for_us(self, peer_id: str, reply: VoteReply) -> None:
        """Count a voter's vote; the library counts replies, so each voter's second one is dropped here."""
        if self._voters_term != reply.term:
            self._voters_term = reply.term
            self._voters.clear()
        if peer_id not in self._voters:
            self._voters.add(peer_id)
            self._raft.receive_vote(peer_id, reply)
