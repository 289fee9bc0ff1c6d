"""Opaque calls between nodes, over the peer connections.

Owns the table of calls that wait for their answer, the one timer of their deadlines, and the tasks that serve the
peers' calls; a call that the owner serves at once has none. Frames of calls do not wait for a flush: what they mean is
the owner's business. Numbers of calls begin anew with each process, so an answer belongs to the connection that brought
the call (:mod:`oncegate.consensus.replica.inbound`). Read next: :mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from oncegate.consensus.errors import CallFailed, ConsensusError, Overloaded, PeerUnavailable, Timeout
from oncegate.consensus.messages import CallReply, CallRequest, Message

logger = logging.getLogger(__name__)

_CALLS_MAX = 4096

Answered: TypeAlias = Callable[[bytes | ConsensusError], None]
"""Gets the answer to a call, or why there is none: once, and never before the call was sent."""
ServeAtOnce: TypeAlias = Callable[[bytes, Callable[[bytes], None]], bool]
"""Serves a call without a task: False if it is not of that kind, else the function gets the answer in its time."""


class _Open(NamedTuple):
    node_id: str
    timeout_s: float
    due_s: float
    answered: Answered


class Calls:
    """Both halves of node-to-node calls."""

    def __init__(
        self,
        send: Callable[[str, Message], bool],
        on_call: Callable[[str, bytes], Awaitable[bytes]] | None,
        payload_bytes_max: int,
        at_once: ServeAtOnce | None = None,
    ) -> None:
        self._send = send
        self._on_call = on_call
        self._at_once = at_once
        self._payload_bytes_max = payload_bytes_max
        self._number = 0
        self._open: dict[int, _Open] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._serving: dict[asyncio.Task[None], str] = {}

    def ask(self, node_id: str, payload: bytes, timeout_s: float, answered: Answered) -> int:
        """Send one call and return its number; see :meth:`oncegate.consensus.replica.replica.Replica.ask`."""
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
        if len(payload) > self._payload_bytes_max:
            raise Overloaded("frame_bytes_max", self._payload_bytes_max)
        if len(self._open) >= _CALLS_MAX:
            raise Overloaded("open calls", _CALLS_MAX)
        self._number += 1
        if not self._send(node_id, CallRequest(self._number, payload)):
            raise PeerUnavailable(node_id, "not connected", outcome="not_applied")
        loop = asyncio.get_running_loop()
        due_s = loop.time() + timeout_s
        self._open[self._number] = _Open(node_id, timeout_s, due_s, answered)
        if self._timer is None or due_s < self._timer.when():
            self._wake_at(loop, due_s)
        return self._number

    def give_up(self, number: int) -> None:
        """Nobody waits for the answer of this call any more."""
        self._open.pop(number, None)

    async def call(self, node_id: str, payload: bytes, timeout_s: float) -> bytes:
        """Send one call and wait for its answer; see :meth:`oncegate.consensus.replica.replica.Replica.call`."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        number = self.ask(node_id, payload, timeout_s, partial(_settle, answer))
        try:
            return await answer
        finally:
            self.give_up(number)

    def replied(self, peer_id: str, reply: CallReply) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        call = self._open.get(reply.number)
        if call is None or call.node_id != peer_id:
            return
        del self._open[reply.number]
        if reply.payload is not None:
            call.answered(reply.payload)
        else:
            call.answered(CallFailed(peer_id, reply.failure or "no reason given"))

    def requested(self, peer_id: str, request: CallRequest, answer: Callable[[CallReply], None]) -> None:
        """A peer calls: serve it, at once or in a task of its own, and give ``answer`` what comes of it."""
        try:
            if self._at_once is not None and self._at_once(request.payload, partial(self._answer, request, answer)):
                return
        except Exception as error:  # noqa: BLE001 - told to who asked, and logged
            self._failed(peer_id, request, error, answer)
            return
        if self._on_call is None:
            answer(CallReply(request.number, None, "this node serves no calls"))
            return
        if len(self._serving) >= _CALLS_MAX:
            answer(CallReply(request.number, None, "too many calls"))
            return
        task = asyncio.ensure_future(self._serve(peer_id, request, self._on_call, answer))
        self._serving[task] = peer_id
        task.add_done_callback(self._serving.pop)

    def peer_down(self, peer_id: str) -> None:
        """Nothing that was asked of this peer will be answered."""
        for number in [number for number, call in self._open.items() if call.node_id == peer_id]:
            call = self._open.pop(number, None)
            if call is not None:
                call.answered(PeerUnavailable(peer_id, "the connection was lost", outcome="unknown"))

    async def stop(self) -> None:
        """Give up every call, open or being served."""
        for peer_id in {call.node_id for call in self._open.values()}:
            self.peer_down(peer_id)
        if self._timer is not None:
            self._timer.cancel()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _wake_at(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._expire, due_s)

    def _expire(self, now_s: float) -> None:
        """End what is due. Most calls are answered long before: the timer fires once a time-out, not once a call."""
        self._timer = None
        for number in [number for number, call in self._open.items() if call.due_s <= now_s]:
            call = self._open.pop(number, None)
            if call is not None:
                call.answered(Timeout(f"the call to {call.node_id}", call.timeout_s, outcome="unknown"))
        if self._open:
            # Who was told may have asked again, and waked for that call only, which may be due later than others.
            self._wake_at(asyncio.get_running_loop(), min(call.due_s for call in self._open.values()))

    async def _serve(
        self,
        peer_id: str,
        request: CallRequest,
        handler: Callable[[str, bytes], Awaitable[bytes]],
        answer: Callable[[CallReply], None],
    ) -> None:
        try:
            payload = await handler(peer_id, request.payload)
            if not isinstance(payload, bytes):
                raise TypeError(f"an answer is bytes, not {type(payload).__name__}")
        except Exception as error:  # noqa: BLE001 - told to who asked, and logged
            self._failed(peer_id, request, error, answer)
            return
        self._answer(request, answer, payload)

    def _answer(self, request: CallRequest, answer: Callable[[CallReply], None], payload: bytes) -> None:
        if len(payload) > self._payload_bytes_max:
            answer(CallReply(request.number, None, "the answer is larger than a frame"))
        else:
            answer(CallReply(request.number, payload, None))

    def _failed(
        self, peer_id: str, request: CallRequest, error: Exception, answer: Callable[[CallReply], None]
    ) -> None:
        logger.error("a call from %s failed", peer_id, exc_info=error)
        answer(CallReply(request.number, None, f"{type(error).__name__}: {error}"))


def _settle(future: asyncio.Future[bytes], came: bytes | ConsensusError) -> None:
    if future.done():
        return
    if isinstance(came, bytes):
        future.set_result(came)
    else:
        future.set_exception(came)
