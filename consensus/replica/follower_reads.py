"""Reads that arrive at a node that does not lead: it asks the leader for a read point.

Owns the reads that wait for the leader's answer, and the order of asking: one request is open at a time, and reads that
come meanwhile share the next. Read next: :mod:`oncegate.consensus.core.read_index`,
:mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncegate.consensus.errors import ConsensusError, NoLeader
from oncegate.consensus.messages import Message, ReadReply, ReadRequest

Read = asyncio.Future[object]


class FollowerReads:
    """Read points on behalf of a follower."""

    def __init__(self, send: Callable[[str, Message], None], fail: Callable[[Read, ConsensusError], None]) -> None:
        self._send = send
        self._fail = fail
        self.waiting: list[Read] = []
        """Reads that no request was sent for yet."""
        self._asked: list[Read] = []
        self._leader_id: str | None = None
        self._number = 0

    def add(self, read: Read) -> None:
        """A read waits for the next request."""
        self.waiting.append(read)

    def ask(self, leader_id: str | None) -> None:
        """Send one request for all reads waiting, unless one is open; fail them when nobody can be asked."""
        if self._asked or not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        if leader_id is None:
            for read in waiting:
                self._fail(read, NoLeader("the leader has changed"))
            return
        self._number += 1
        self._asked, self._leader_id = waiting, leader_id
        self._send(leader_id, ReadRequest(self._number))

    def answered(self, peer_id: str, reply: ReadReply) -> list[Read]:
        """The reads that this reply answers; none for a reply to a request that was given up."""
        if reply.number != self._number or peer_id != self._leader_id:
            return []
        asked, self._asked = self._asked, []
        return asked

    def ask_again(self, peer_id: str) -> None:
        """The connection to ``peer_id`` is a new one: it will not answer what was asked before."""
        if self._leader_id == peer_id:
            self.waiting, self._asked = self._asked + self.waiting, []

    def lost(self, error: ConsensusError, *, unless_leader: str | None) -> None:
        """Whoever was asked will not answer, unless it is ``unless_leader``."""
        if self._asked and self._leader_id != unless_leader:
            asked, self._asked = self._asked, []
            for read in asked:
                self._fail(read, error)

    def stop(self, error: ConsensusError) -> None:
        """Fail everything."""
        asked, self._asked = self._asked + self.waiting, []
        self.waiting = []
        for read in asked:
            self._fail(read, error)
