"""What the connections of one replica bring: to the engine, to the reads or to the calls.

Owns the choice, whether a tick follows at once, soon or not at all, and that an answer goes back on the connection
which brought the question, or nowhere: at the other end of a new one may be a new process, whose own questions have
the same numbers.
Read next: :mod:`oncegate.consensus.core.message_handling` for what Raft's messages do,
:mod:`oncegate.consensus.replica.ticker`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import NoLeader
from oncegate.consensus.messages import (
    Ack,
    Append,
    CallReply,
    CallRequest,
    Message,
    ReadProbe,
    ReadProbeAck,
    ReadReply,
    ReadRequest,
)
from oncegate.consensus.net.calls import Calls
from oncegate.consensus.replica.read_points import ReadPoints
from oncegate.consensus.replica.ticker import FollowerReads, Ticker


class Inbound:
    """The transport's :class:`~oncegate.consensus.net.transport.Receiver`."""

    def __init__(
        self,
        engine: Engine[asyncio.Future[object]],
        calls: Calls,
        reads: FollowerReads,
        read_points: ReadPoints,
        ticker: Ticker,
        send: Callable[[str, Message], object],
    ) -> None:
        self._engine: Engine[asyncio.Future[object]] | None = engine
        self._calls = calls
        self._reads = reads
        self._read_points = read_points
        self._ticker = ticker
        self._send = send

    def stop(self) -> None:
        """The engine hears nothing any more."""
        self._engine = None

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A peer is connected; if it was before, what was asked on the old connection has no answer any more."""
        self._calls.peer_down(peer_id)
        if self._engine is not None:
            self._engine.peer_up(peer_id, epoch)
            self._reads.ask_again(peer_id)
            self._ticker.soon()

    def peer_down(self, peer_id: str) -> None:
        """A peer is gone."""
        self._calls.peer_down(peer_id)
        if self._engine is not None:
            self._engine.peer_down(peer_id)
            self._reads.lost(NoLeader("the leader was lost"), unless_leader=self._engine.leader_id)
            self._ticker.soon()

    def peer_said(self, peer_id: str, epoch: int, messages: list[Message]) -> None:
        """Messages came: those that need no flush are answered at once, the others share the next tick."""
        engine, calls = self._engine, self._calls
        if engine is None:
            return
        for message in messages:
            match message:
                case Append() | Ack():
                    engine.receive(peer_id, epoch, message)
                case ReadProbe():
                    engine.receive_probe(peer_id, message)
                case ReadProbeAck():
                    engine.receive_probe_ack(peer_id, message)
                case ReadRequest(number):
                    self._read_points.serve(engine, peer_id, number, self._way_back(engine, peer_id, epoch))
                case ReadReply():
                    self._read_points.replied(engine, peer_id, message)
                case CallRequest():
                    calls.requested(peer_id, message, self._way_back(engine, peer_id, epoch))
                case CallReply():
                    calls.replied(peer_id, message)
                case _:
                    engine.receive(peer_id, epoch, message)
        if not engine.inbox.tick_wanted:
            return
        if engine.leading.proposals.queued:
            # More commands may come in this iteration: they share the tick, and its flush.
            self._ticker.soon()
        else:
            self._ticker.tick()

    def _way_back(
        self, engine: Engine[asyncio.Future[object]], peer_id: str, epoch: int
    ) -> Callable[[CallReply | ReadReply], None]:
        def answer(message: CallReply | ReadReply) -> None:
            if engine.peers.is_connected(peer_id, epoch):
                self._send(peer_id, message)

        return answer
