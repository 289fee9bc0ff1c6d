"""When to ask for votes: time-outs, pre-vote, and the fast start when the leader's connection closes; pure.

Time and randomness come in as values. A node starts a real election, which raises its term, only
after a majority has said that it would vote for it (pre-vote, Raft thesis §9.6): so a node that was cut off or
asleep deposes nobody when it comes back. The closing of the leader's connection only shortens the wait before the
pre-vote: a majority that still hears the leader refuses it.
Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.messages import PreVoteRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteStanding:
    """What a node knows when it is asked for a pre-vote."""

    term: int
    last_index: int
    last_term: int
    leads: bool
    leader_reachable: bool
    """It follows a leader whose connection is open."""


class Election:
    """The election clock of one node."""

    def __init__(self, config: ReplicaConfig, rng: random.Random, now: float) -> None:
        """Belong to no configuration yet: see :meth:`set_voters`."""
        self._rng = rng
        self._timeout_s = (config.election_ms_min / 1000, config.election_ms_max / 1000)
        self._fast_s = (config.fast_election_ms_min / 1000, config.fast_election_ms_max / 1000)
        self._node_id = config.node_id
        self._voters: frozenset[str] = frozenset()
        self._attempt = 0
        self._granted: set[str] | None = None
        self._contact_at = float("-inf")
        self._excusable_s = self._timeout_s[1]
        """How much of this node's own lateness may still put its election off in the present silence."""
        self._gave_way: dict[str, int] = {}
        """The latest term for which this node let each candidate go first."""
        # A node that starts asks soon: where there is a leader, the others refuse.
        self.deadline = now + self._between(self._fast_s)

    def set_voters(self, voters: frozenset[str], now: float) -> None:
        """Another configuration is in force."""
        self._voters = voters
        self._gave_way.clear()
        if voters == {self._node_id}:
            # A lone node waits for nobody.
            self.deadline = min(self.deadline, now)
        if not self.may_campaign:
            self._granted = None

    @property
    def may_campaign(self) -> bool:
        """This node votes in its own configuration; one that does not never asks for votes."""
        return self._node_id in self._voters

    def wait(self, now: float) -> None:
        """The deadline has passed at a node that may not campaign."""
        self.deadline = now + self._timeout_s[1]

    def heard_leader(self, now: float) -> None:
        """A message of the present leader came."""
        self._contact_at = now
        self._excusable_s = self._timeout_s[1]
        self._granted = None
        self.deadline = now + self._between(self._timeout_s)

    def excuse(self, slept_s: float) -> None:
        """This node was off the processor for so long: time in which it heard nobody is not held against the leader.

        The leader's messages may wait in a socket that is read after this tick. At most one time-out of each silence is
        excused, or a node whose loop is always late would never ask for votes.
        """
        excused_s = min(slept_s, self._excusable_s)
        self._excusable_s -= excused_s
        self._contact_at += excused_s
        self.deadline += excused_s

    def voted(self, now: float) -> None:
        """This node gave its vote away, so it waits for the outcome (Raft §5.2)."""
        self._granted = None
        self.deadline = now + self._between(self._timeout_s)

    def leader_lost(self, now: float) -> None:
        """The leader's connection closed, or a leader stepped down: start soon, at a random moment."""
        self._contact_at = float("-inf")
        self.deadline = min(self.deadline, now + self._between(self._fast_s))

    def begin(self, now: float) -> int:
        """The deadline has passed: start a pre-vote; returns its attempt number, counted from 1."""
        self._attempt += 1
        self._granted = set()
        # A pre-vote disturbs nobody, so asking again need not wait for the long time-out: the others may just not
        # have seen yet that the leader is gone.
        self.deadline = now + self._between(self._fast_s) * 2
        return self._attempt

    def count(self, voter: str, attempt: int, now: float) -> bool:
        """Count one granted pre-vote; returns True once, when it completes a majority."""
        if self._granted is None or attempt != self._attempt:
            return False
        if voter in self._voters:
            self._granted.add(voter)
        return self.settle(now)

    def settle(self, now: float) -> bool:
        """Whether the pre-vote now has its majority (this node included); returns True once an attempt."""
        if self._granted is None or len(self._granted & self._voters) + 1 < len(self._voters) // 2 + 1:
            return False
        self._granted = None
        # A split vote is tried again sooner than a silent leader is given up, but not before slow voters answer.
        self.deadline = now + self._between(self._timeout_s) / 3
        return True

    def would_vote(self, candidate: str, request: PreVoteRequest, mine: PreVoteStanding, now: float) -> bool:
        """Answer a pre-vote: the term is new, no leader is near, and the candidate's log is up to date (§5.4.1)."""
        if request.term <= mine.term or mine.leads:
            return False
        if mine.leader_reachable and now - self._contact_at < self._timeout_s[0]:
            return False
        granted = (request.last_term, request.last_index) >= (mine.last_term, mine.last_index)
        if granted and self._gave_way.get(candidate, 0) < request.term:
            # Its election is about to come: ours would only split the votes. But it may not be able to win, and ask
            # again and again. So this node waits for each candidate once a term. Of five voters A is dead, and
            #
            #   B   D     B, D and E reach C only: none of them ever has three votes, and each asks C several times a
            #    \ /      second. C alone could win. Were it to wait after each request that it grants, it would hardly
            #     C---E   ever come to ask.
            self._gave_way[candidate] = request.term
            self.deadline = max(self.deadline, now + self._between(self._fast_s) + self._fast_s[1])
        return granted

    def _between(self, bounds: tuple[float, float]) -> float:
        return self._rng.uniform(*bounds)
