"""Bodies: each one and all together are bounded, while they arrive and until their requests are answered.

Owns: the received bytes of bodies that are not whole yet. If they are too many, one of the tenant that has most of them
is refused, the one that has been arriving for the longest time, so that senders that stall keep out neither other
tenants nor those of their own that do not stall. And the bytes of large bodies that are whole, until they are answered:
each tenant has its share of them (:func:`oncegate.gateway.machine.tenant_share.share`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, Protocol

from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError, Outcome

HELD_BYTES_MAX: Final = 128 * 2**20
"""Large bodies whose requests are not answered yet, together."""


class Pieces(Protocol):
    """The source of a body, as aiohttp's ``StreamReader``."""

    async def readany(self) -> bytes:
        """Return what has arrived, waiting for something; empty at the end."""


class _Receiver:
    __slots__ = ("gave_way", "size", "tenant", "timeout")

    def __init__(self, timeout: asyncio.Timeout, tenant: str) -> None:
        self.timeout = timeout
        self.tenant = tenant
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
        self.waiting_bytes = 0
        """Bytes of requests that wait in their connections, for a second at most, until they are whole."""
        self._receivers: dict[_Receiver, None] = {}
        self._held: Counter[str] = Counter()
        self.held_bytes = 0
        """Bytes of whole large bodies held now."""

    def hold(self, tenant: str, size: int) -> None:
        """Count a large body that has arrived whole, until :meth:`release`; raises OVERLOADED over the share."""
        if self._held[tenant] + size > share(tenant, HELD_BYTES_MAX, self.held_bytes, self._held[tenant]):
            raise OncegateError(Code.OVERLOADED, "too many large bodies wait to be applied", retry_after_ms=200)
        self._held[tenant] += size
        self.held_bytes += size

    def release(self, tenant: str, size: int) -> None:
        """Count it no more: its request is answered."""
        self.held_bytes -= size
        self._held[tenant] -= size
        if not self._held[tenant]:
            del self._held[tenant]

    async def receive(self, content: Pieces, tenant: str = "", bytes_max: int | None = None) -> bytes:
        """Read a body whole, of ``bytes_max`` at most; cancelled when its connection ends.

        Raises:
            OncegateError: PAYLOAD_TOO_LARGE, TIMEOUT (not applied), or OVERLOADED when it was the one to refuse.
        """
        data = bytearray()
        most = self.body_bytes_max if bytes_max is None else bytes_max
        receiver: _Receiver | None = None
        try:
            async with asyncio.timeout(self.body_ms_max / 1000) as timeout:
                receiver = _Receiver(timeout, tenant)
                self._receivers[receiver] = None
                while piece := await content.readany():
                    data += piece
                    if len(data) > most:
                        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {most} bytes")
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
            sizes: Counter[str] = Counter()
            for receiver in self._receivers:
                sizes[receiver.tenant] += receiver.size
            most = max(sizes, key=sizes.__getitem__)
            oldest = next(receiver for receiver in self._receivers if receiver.tenant == most)
            oldest.gave_way = True
            oldest.timeout.reschedule(0)
            self._drop(oldest)

    def _drop(self, receiver: _Receiver) -> None:
        if receiver in self._receivers:
            del self._receivers[receiver]
            self.bytes -= receiver.size
