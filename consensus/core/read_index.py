"""ReadIndex rounds of a leader (Raft thesis §6.4); pure.

A read that arrives before a round starts gets the commit index of that moment, once a majority has said, after
the start, that the leader's term is still the latest it knows. A leader that was deposed or cut off can
therefore never answer: a majority that elected another one is in a later term. One round at a time; reads that
arrive during a round share the next one. Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Token = TypeVar("Token")


class ReadRounds(Generic[Token]):
    """Rounds of one leader's term; ``Token`` is whatever the caller answers a read with."""

    def __init__(self) -> None:
        self._peers: frozenset[str] = frozenset()
        self._number = 0
        self._index = 0
        self._waiting: list[Token] = []
        self._asking: list[Token] = []
        self._confirmed: set[str] = set()
        self.asked_at = 0.0

    def set_peers(self, peer_ids: frozenset[str]) -> None:
        """The voters besides the leader, which is one itself; also while a round is open."""
        self._peers = peer_ids

    @property
    def idle(self) -> bool:
        """No read waits."""
        return not self._asking and not self._waiting

    @property
    def open(self) -> bool:
        """A round waits for its majority."""
        return bool(self._asking)

    @property
    def wanted(self) -> bool:
        """Reads wait and no round is open."""
        return bool(self._waiting) and not self._asking

    def add(self, token: Token) -> None:
        """A read has arrived."""
        self._waiting.append(token)

    def start(self, commit_index: int, now: float) -> int:
        """Open a round for all reads waiting; returns its number, to be asked of every peer."""
        self._number += 1
        self._index = commit_index
        self._asking, self._waiting = self._asking + self._waiting, []
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
        if not self._asking or len(self._confirmed & self._peers) < (len(self._peers) + 1) // 2:
            return 0, []
        done, self._asking = self._asking, []
        return self._index, done

    def abort(self) -> list[Token]:
        """Leadership is over: returns every read that now has no answer."""
        tokens = self._asking + self._waiting
        self._asking, self._waiting = [], []
        return tokens
