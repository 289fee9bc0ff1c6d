"""Bodies: each one and all together are bounded, while they arrive and until their requests are answered.

Owns: the bodies that are not whole yet, their number and their bytes. If either is too much, one of the tenant that has
most of it is refused, the one that has been arriving for the longest time, so that senders that stall keep out neither
other tenants nor those of their own that do not stall. Such a request takes none of its tenant's places
(:class:`oncegate.gateway.http.admission.desk.Usage`): it has begun nothing yet. And the bytes of large bodies that are
whole, until they are answered: each tenant has its share of them
(:func:`oncegate.gateway.machine.tenant_share.share`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.errors import Code, OncegateError, Outcome

RECEIVING_MAX: Final = 1024
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


class _Receiving:
    """What arrives for one tenant."""

    __slots__ = ("receivers", "size")

    def __init__(self) -> None:
        self.receivers: dict[_Receiver, None] = {}
        """In the order in which they began."""
        self.size = 0


class BodyBudget:
    """Receives bodies, each of at most ``body_bytes_max`` and in ``body_ms_max`` once its headers have arrived.

    ``receiving_bytes_max``, at least ``body_bytes_max``, bounds the bytes of all bodies together that are not whole
    yet, ``receiving_max`` their number.
    """

    def __init__(
        self, body_bytes_max: int, receiving_bytes_max: int, body_ms_max: int, receiving_max: int = RECEIVING_MAX
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self.receiving_bytes_max = receiving_bytes_max
        self.receiving_max = receiving_max
        self.body_ms_max = body_ms_max
        self.bytes = 0
        """Bytes held now."""
        self.receiving = 0
        """Bodies that are not whole now."""
        self.waiting_bytes = 0
        """Bytes of requests that wait in their connections, for a second at most, until they are whole."""
        self._tenants: dict[str, _Receiving] = {}
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
                self._add(receiver)
                while piece := await content.readany():
                    data += piece
                    if len(data) > most:
                        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the body is over {most} bytes")
                    if receiver.gave_way:
                        raise TimeoutError
                    self._grow(receiver, len(piece))
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

    def _add(self, receiver: _Receiver) -> None:
        self._tenants.setdefault(receiver.tenant, _Receiving()).receivers[receiver] = None
        self.receiving += 1
        while self.receiving > self.receiving_max:
            self._give_way(lambda one: len(one.receivers))

    def _grow(self, receiver: _Receiver, size: int) -> None:
        receiver.size += size
        self._tenants[receiver.tenant].size += size
        self.bytes += size
        while self.bytes > self.receiving_bytes_max:
            self._give_way(lambda one: one.size)

    def _give_way(self, by: Callable[[_Receiving], int]) -> None:
        """Refuse the oldest body of the tenant that has most."""
        oldest = next(iter(max(self._tenants.values(), key=by).receivers))
        oldest.gave_way = True
        oldest.timeout.reschedule(0)
        self._drop(oldest)

    def _drop(self, receiver: _Receiver) -> None:
        of_tenant = self._tenants.get(receiver.tenant)
        if of_tenant is None or receiver not in of_tenant.receivers:
            return
        del of_tenant.receivers[receiver]
        of_tenant.size -= receiver.size
        self.receiving -= 1
        self.bytes -= receiver.size
        if not of_tenant.receivers:
            del self._tenants[receiver.tenant]
