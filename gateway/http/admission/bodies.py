"""Receiving bodies: each one and all together are bounded.

Owns: the received bytes of bodies that are not whole yet. If they are too many, the body that has been arriving for the
longest time is refused, so that senders that stall cannot keep out those that do not.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from oncegate.rifl.errors import Code, OncegateError, Outcome


class Pieces(Protocol):
    """The source of a body, as aiohttp's ``StreamReader``."""

    async def readany(self) -> bytes:
        """Return what has arrived, waiting for something; empty at the end."""


class _Receiver:
    __slots__ = ("gave_way", "size", "timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout
        self.size = 0
        self.gave_way = False


class BodyBudget:
    """Receives bodies, each of at most ``body_bytes_max`` and in ``body_ms_max`` once its headers have arrived.

    ``receiving_bytes_max``, at least ``body_bytes_max``, bounds all bodies together that are not whole yet.
    """

    def __init__(self, body_bytes_max: int, receiving_bytes_max: int, body_ms_max: int) -> None:
        self.body_bytes_max = body_bytes_max
        self.receiving_bytes_max = receiving_bytes_max
        self.body_ms_max = body_ms_max
        self.bytes = 0
        """Bytes held now."""
        self._receivers: dict[_Receiver, None] = {}

    async def receive(self, content: Pieces) -> bytes:
        """Read a body whole; cancelled when its connection ends.

        Raises:
            OncegateError: PAYLOAD_TOO_LARGE, TIMEOUT (not applied), or OVERLOADED when it was the one to refuse.
        """
        data = bytearray()
        receiver: _Receiver | None = None
        try:
            async with asyncio.timeout(self.body_ms_max / 1000) as timeout:
                receiver = _Receiver(timeout)
                self._receivers[receiver] = None
                while piece := await content.readany():
                    data += piece
                    if len(data) > self.body_bytes_max:
                        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {self.body_bytes_max} bytes")
                    if receiver.gave_way:
                        raise TimeoutError
                    receiver.size += len(piece)
                    self.bytes += len(piece)
                    if self.bytes > self.receiving_bytes_max:
                        self._make_room()
        except TimeoutError:
            if receiver is not None and receiver.gave_way:
                detail = "too many bodies arrive at once, and this one took longest"
                raise OncegateError(Code.OVERLOADED, detail, retry_after_ms=1_000) from None
            detail = f"the body did not arrive in {self.body_ms_max} ms"
            raise OncegateError(Code.TIMEOUT, detail, outcome=Outcome.NOT_APPLIED) from None
        finally:
            if receiver is not None:
                self._drop(receiver)
        return bytes(data)

    def _make_room(self) -> None:
        while self.bytes > self.receiving_bytes_max and self._receivers:
            oldest = next(iter(self._receivers))
            oldest.gave_way = True
            oldest.timeout.reschedule(0)
            self._drop(oldest)

    def _drop(self, receiver: _Receiver) -> None:
        if receiver in self._receivers:
            del self._receivers[receiver]
            self.bytes -= receiver.size
