"""Linearizable read points of one replica, as futures: its own when it leads, else the leader's.

Owns both ends of a follower's question: asking the leader, and answering as the leader.
Read next: :mod:`oncegate.consensus.core.leader_reads` for the rounds, :mod:`oncegate.consensus.replica.ticker` for
the order of asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import NoLeader, NotLeader, NotReady, Timeout
from oncegate.consensus.messages import ReadReply
from oncegate.consensus.replica.ticker import FollowerReads, resolve

_Engine: TypeAlias = Engine[asyncio.Future[object]]


class ReadPoints:
    """Read points for this node's callers and for other nodes."""

    def __init__(self, reads: FollowerReads, wake: Callable[[], None]) -> None:
        """``wake`` asks for a tick."""
        self._reads = reads
        self._wake = wake

    async def read(self, engine: _Engine, timeout_s: float) -> int:
        """See :meth:`oncegate.consensus.replica.replica.Replica.read_index`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        try:
            engine.leading.read(future)
        except NotLeader as error:
            if error.leader_id is None:
                raise NoLeader("no leader is known") from error
            self._reads.add(future)
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                index = await future
        except TimeoutError as error:
            raise Timeout("the read", timeout_s, outcome="not_applied") from error
        except NotLeader as error:
            raise NoLeader("the leader was lost") from error
        if not isinstance(index, int):
            raise NotReady("the leader is not ready")
        return index

    def serve(self, engine: _Engine, peer_id: str, number: int, tell: Callable[[ReadReply], None]) -> None:
        """A follower asks this node for a read point; ``tell`` gets the answer."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def answer(done: asyncio.Future[object]) -> None:
            index = done.result() if done.exception() is None else None
            tell(ReadReply(number, index if isinstance(index, int) else None))
            engine.show_commit(peer_id)

        try:
            engine.leading.read(future)
        except (NotLeader, NotReady):
            tell(ReadReply(number, None))
            return
        future.add_done_callback(answer)
        self._wake()

    def replied(self, engine: _Engine, peer_id: str, reply: ReadReply) -> None:
        """The leader has answered."""
        for read in self._reads.answered(peer_id, reply):
            resolve(read, reply.index)
        self._reads.ask(engine.leader_id)
