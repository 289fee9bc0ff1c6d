"""Reads at the leader: the rounds of :mod:`oncegate.consensus.core.read_index`, and the messages they send and wait
for.

Owns when a round starts, when it is asked again, and that every read ends once. Read next:
:mod:`oncegate.consensus.core.leading`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.core.read_index import ReadRounds
from oncegate.consensus.errors import ConsensusError, NotLeader
from oncegate.consensus.messages import Message, ReadProbe, ReadProbeAck

Token = TypeVar("Token")


class LeaderReads(Generic[Token]):
    """The reads of one node's terms as a leader; ``Token`` is what a caller wants back with the read point."""

    def __init__(
        self,
        raft: Raft,
        peers: Peers,
        again_s: float,
        send: Callable[[str, Message], None],
        on_result: Callable[[Token, object], None],
        on_failure: Callable[[Token, ConsensusError], None],
    ) -> None:
        """A round without its majority is asked again after ``again_s``: probes get lost."""
        self._raft = raft
        self._peers = peers
        self._again_s = again_s
        self._send = send
        self._on_result = on_result
        self._on_failure = on_failure
        self.rounds: ReadRounds[Token] = ReadRounds()

    def configuration_changed(self) -> None:
        """Another configuration is in force: its voters confirm, also in the round that is open."""
        self.rounds.set_peers(self._peers.voters)

    def add(self, token: Token) -> None:
        """A read waits for the next round."""
        self.rounds.add(token)

    def serve(self, now: float) -> None:
        """Start a round if reads wait for one, or ask again for the open one."""
        rounds = self.rounds
        if rounds.idle:
            return
        if rounds.wanted:
            self._start(now)
        elif rounds.open and now - rounds.asked_at > self._again_s:
            self._probe(rounds.ask_again(now))

    def confirmed(self, peer_id: str, ack: ReadProbeAck, now: float) -> None:
        """Count a confirmation, and answer the reads it completes; reads that came meanwhile start the next round.

        A late answer confirms nothing of the open round, since each round has a number of its own::

            round 7   asked of n2 and n3; n2 confirms: a majority, answered
            round 8   asked of n2 and n3; now n3 confirms 7: before 8 began, so n3 may know a later term by now
        """
        if self._raft.leads() and ack.term == self._raft.term():
            self.rounds.confirm(peer_id, ack.number)
            self._finish()
            if self.rounds.wanted:
                self._start(now)

    def end(self) -> None:
        """Leadership is over, and no round of it will be answered."""
        for token in self.rounds.abort():
            self._on_failure(token, NotLeader(None))

    def _start(self, now: float) -> None:
        self._probe(self.rounds.start(self._raft.commit_index(), now))
        self._finish()

    def _probe(self, number: int) -> None:
        probe = ReadProbe(self._raft.term(), number)
        for peer_id in self._peers.connected_voters():
            self._send(peer_id, probe)

    def _finish(self) -> None:
        index, tokens = self.rounds.finish()
        for token in tokens:
            self._on_result(token, index)
