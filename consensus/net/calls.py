"""Opaque calls between nodes, over the peer connections.

Owns the table of calls that wait for their answer and the tasks that serve the peers' calls. Frames of calls do not
wait for a flush: what they mean is the owner's business. Numbers of calls begin anew with each process, so an answer
belongs to the connection that brought the call (:mod:`oncegate.consensus.replica.inbound`). Read next:
:mod:`oncegate.consensus.replica.replica`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from oncegate.consensus.errors import CallFailed, Overloaded, PeerUnavailable, Timeout
from oncegate.consensus.messages import CallReply, CallRequest, Message

logger = logging.getLogger(__name__)

_CALLS_MAX = 4096


class Calls:
    """Both halves of node-to-node calls."""

    def __init__(
        self,
        send: Callable[[str, Message], bool],
        on_call: Callable[[str, bytes], Awaitable[bytes]] | None,
        payload_bytes_max: int,
    ) -> None:
        self._send = send
        self._on_call = on_call
        self._payload_bytes_max = payload_bytes_max
        self._number = 0
        self._open: dict[int, tuple[str, asyncio.Future[bytes]]] = {}
        self._serving: dict[asyncio.Task[None], str] = {}

    async def call(self, node_id: str, payload: bytes, timeout_s: float) -> bytes:
        """Send one call and wait for its answer; see :meth:`oncegate.consensus.replica.replica.Replica.call`."""
        if not isinstance(payload, bytes):
            raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
        if len(payload) > self._payload_bytes_max:
            raise Overloaded("frame_bytes_max", self._payload_bytes_max)
        if len(self._open) >= _CALLS_MAX:
            raise Overloaded("open calls", _CALLS_MAX)
        self._number += 1
        number = self._number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[number] = (node_id, answer)
        try:
            if not self._send(node_id, CallRequest(number, payload)):
                raise PeerUnavailable(node_id, "not connected", outcome="not_applied")
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise Timeout(f"the call to {node_id}", timeout_s, outcome="unknown") from error
        finally:
            self._open.pop(number, None)

    def replied(self, peer_id: str, reply: CallReply) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        node_id, answer = self._open.get(reply.number, (None, None))
        if answer is None or node_id != peer_id or answer.done():
            return
        if reply.payload is not None:
            answer.set_result(reply.payload)
        else:
            answer.set_exception(CallFailed(peer_id, reply.failure or "no reason given"))

    def requested(self, peer_id: str, request: CallRequest, answer: Callable[[CallReply], None]) -> None:
        """A peer calls: serve it in a task of its own, and give ``answer`` what comes of it."""
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
        for node_id, answer in list(self._open.values()):
            if node_id == peer_id and not answer.done():
                answer.set_exception(PeerUnavailable(peer_id, "the connection was lost", outcome="unknown"))

    async def stop(self) -> None:
        """Give up every call, open or being served."""
        for peer_id in {node_id for node_id, _ in self._open.values()}:
            self.peer_down(peer_id)
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

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
            reply = CallReply(request.number, payload, None)
        except Exception as error:
            logger.exception("a call from %s failed", peer_id)
            reply = CallReply(request.number, None, f"{type(error).__name__}: {error}")
        if reply.payload is not None and len(reply.payload) > self._payload_bytes_max:
            reply = CallReply(request.number, None, "the answer is larger than a frame")
        answer(reply)
