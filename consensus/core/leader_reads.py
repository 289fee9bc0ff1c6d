"""Reads at the leader: ReadIndex rounds (Raft thesis §6.4), and the messages they send and wait for.

A read that arrives before a round starts gets the commit index of that moment, once a majority has said, after
the start, that the leader's term is still the latest it knows. A leader that was deposed or cut off can
therefore never answer: a majority that elected another one is in a later term. One round at a time; reads that
arrive during a round share the next one.

Owns when a round starts, when it is asked again, and that every read ends once. Read next:
:mod:`oncegate.consensus.core.leading`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.errors import ConsensusError, NotLeader
from oncegate.consensus.messages import Message, ReadProbe, ReadProbeAck

Token = TypeVar("Token")


class ReadRounds(Generic[Token]):
    """Rounds of one leader's term, pure; ``Token`` is whatever the caller answers a read with."""

    def __init__(self) -> None:
        self._peers: frozenset[str] = frozenset()
        self._number = 0
        self._index = 0
        self.waiting: list[Token] = []
        """Reads that the next round will answer."""
        self.asking: list[Token] = []
        """Those of the open round, which waits for its majority."""
        self._confirmed: set[str] = set()
        self.asked_at = 0.0

    def set_peers(self, peer_ids: frozenset[str]) -> None:
        """The voters besides the leader, which is one itself; also while a round is open."""
        self._peers = peer_ids

    @property
    def wanted(self) -> bool:
        """Reads wait and no round is open."""
        return bool(self.waiting) and not self.asking

    def add(self, token: Token) -> None:
        """A read has arrived."""
        self.waiting.append(token)

    def start(self, commit_index: int, now: float) -> int:
        """Open a round for all reads waiting; returns its number, to be asked of every peer."""
        self._number += 1
        self._index = commit_index
        self.asking, self.waiting = self.asking + self.waiting, []
        self._confirmed.clear()
        return self.ask_again(now)

    def ask_again(self, now: float) -> int:
        """Return the number of the open round: probes get lost, and a late answer to any of them is as good."""
        self.asked_at = now
        return self._number

    def confirm(self, peer_id: str, number: int) -> None:
        """A peer knows no later term than the round's."""
        if number == self._number:
            self._confirmed.add(peer_id)

    def finish(self) -> tuple[int, list[Token]]:
        """The read point and the reads it answers; empty until a majority of the voters has confirmed."""
        if not self.asking or len(self._confirmed & self._peers) < (len(self._peers) + 1) // 2:
            return 0, []
        done, self.asking = self.asking, []
        return self._index, done

    def abort(self) -> list[Token]:
        """Leadership is over: returns every read that now has no answer."""
        tokens = self.asking + self.waiting
        self.asking, self.waiting = [], []
        return tokens


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
        if rounds.asking:
            if now - rounds.asked_at > self._again_s:
                self._probe(rounds.ask_again(now))
        elif rounds.waiting:
            self._start(now)

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
