"""Connections: how many, and how long one may keep a node waiting.

Owns: accepting connections, the refusal of one too many, and a sweep every second that ends connections that stall. No
code here runs for each request: a connection that behaves costs one check a second. What a connection does with its
bytes is its own (:mod:`oncegate.gateway.http.hot.connection`).

When all places are taken, idle connections are closed first: a client that opens thousands and sends nothing displaces
its own, never those whose requests are under way.
"""

from __future__ import annotations

import asyncio
import resource
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from aiohttp import web

from oncegate.consensus.config import EVERY_ADDRESS
from oncegate.gateway.http.exchange import bare_refusal
from oncegate.gateway.node.fitness import DESCRIPTORS_RESERVED
from oncegate.rifl.errors import Code, OncegateError

SWEEP_S: Final = 1.0
EVICTED_SHARE: Final = 16
"""One in so many idle connections goes when places are needed, so that a look at all of them pays for many."""
HANDSHAKE_S: Final = 5.0
DRAIN_S: Final = 5.0
"""How long the requests under way are waited for when a node stops."""
SENT_BYTES_MIN: Final = 256 * 1024
"""A reader of an answer has to take so much in ``unsent_ms_max``, or all of it."""
REFUSED_S: Final = 1.0
"""How long a refused connection, which has no place, may take its answer: TLS alone would wait for half a minute."""
BACKLOG: Final = 256
"""Connections that may be accepted at once; fewer than the reserved descriptors."""


class Patience(NamedTuple):
    """Bounds of the connections of a node; the settings of the same names."""

    connections_max: int
    headers_ms_max: int
    idle_ms_max: int
    unsent_ms_max: int
    unsent_bytes_max: int


@dataclass(slots=True)
class ConnectionCounts:
    """Counts of refused and ended connections; for metrics."""

    open: int = 0
    refused: int = 0
    """Answered with OVERLOADED because no place was left."""
    ended: int = 0
    """Ended because their client kept the node waiting, or to make room."""


CONNECTIONS: Final = web.AppKey("connections", ConnectionCounts)


class Guarded(Protocol):
    """A connection that the guard looks after."""

    made_s: float
    idle_since_s: float
    """When a sweep first found it idle, 0 since it was at work."""
    unsent_bytes: int
    unsent_since_s: float

    @property
    def has_asked(self) -> bool:
        """Whether the head of one request has arrived whole."""

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request; also true of a connection made in this turn of the loop."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that its client has not taken yet."""

    def look(self) -> None:
        """Do what is due once a sweep."""

    def close(self) -> None:
        """End it once what was written is sent."""

    def abort(self) -> None:
        """End it now and drop unsent bytes."""

    def drain(self) -> asyncio.Future[None] | None:
        """Serve nothing more; return the end of the request under way that nobody else waits for, if there is one."""


class Guard:
    """All connections of a node. It ends those that keep the node waiting for too long."""

    def __init__(self, patience: Patience, counts: ConnectionCounts) -> None:
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.connections: dict[Guarded, None] = {}
        """In the order in which they were made."""
        self._counts = counts

    def has_room(self) -> bool:
        """Tell whether there is room for one more connection; close idle ones if necessary.

        Call it when a connection is made, not when it is accepted: asyncio accepts many before it makes the first.
        """
        if len(self.connections) < self._patience.connections_max or self._make_room():
            return True
        self._counts.refused += 1
        return False

    def add(self, connection: Guarded) -> None:
        """Give a connection its place."""
        self.connections[connection] = None
        self._counts.open = len(self.connections)

    def discard(self, connection: Guarded) -> None:
        """Take a connection's place back, if it has one."""
        self.connections.pop(connection, None)
        self._counts.open = len(self.connections)

    def _make_room(self) -> bool:
        """End some idle connections: those that never asked first, the oldest first."""
        idle = [one for one in self.connections if one.is_idle]
        idle.sort(key=lambda one: one.has_asked)
        chosen = idle[: 1 + len(idle) // EVICTED_SHARE]
        for one in chosen:
            self._end(one)
        return bool(chosen)

    def _end(self, connection: Guarded) -> None:
        self._counts.ended += 1
        # Free the place now: the transport reports the loss one turn of the loop later.
        self.discard(connection)
        connection.abort()

    def sweep(self) -> None:
        """End connections whose client keeps the node waiting, and schedule the next sweep."""
        now_s = self._loop.time()
        pending: list[tuple[int, Guarded]] = []
        for one in list(self.connections):
            one.look()
            if not one.has_asked:
                if (now_s - one.made_s) * 1000 > self._patience.headers_ms_max:
                    self._end(one)
                continue
            size = one.pending_bytes
            if not one.is_idle or size:
                one.idle_since_s = 0.0
            elif one.idle_since_s == 0.0:
                one.idle_since_s = now_s
            elif (now_s - one.idle_since_s) * 1000 > self._patience.idle_ms_max:
                one.close()
                continue
            if size == 0:
                one.unsent_bytes = 0
            elif one.unsent_bytes == 0 or size <= one.unsent_bytes - SENT_BYTES_MIN:
                one.unsent_bytes, one.unsent_since_s = size, now_s
            elif (now_s - one.unsent_since_s) * 1000 > self._patience.unsent_ms_max:
                self._end(one)
                continue
            if size:
                pending.append((size, one))
        self._bound_unsent(pending)
        self._timer = self._loop.call_later(SWEEP_S, self.sweep)

    def _bound_unsent(self, pending: list[tuple[int, Guarded]]) -> None:
        excess = sum(size for size, _ in pending) - self._patience.unsent_bytes_max
        if excess > 0:
            for size, one in sorted(pending, key=lambda item: item[0], reverse=True):
                self._end(one)
                excess -= size
                if excess <= 0:
                    break

    async def close(self) -> None:
        """Stop sweeping, and serve nothing more; wait for the requests under way, but not for long."""
        if self._timer is not None:
            self._timer.cancel()
        under_way = [last for one in list(self.connections) if (last := one.drain()) is not None]
        if under_way:
            await asyncio.wait(under_way, timeout=DRAIN_S)


def refuse(transport: asyncio.Transport) -> None:
    """Answer OVERLOADED to a new connection and close it, within ``REFUSED_S`` also if the other side does not."""
    status, headers, body = bare_refusal(OncegateError(Code.OVERLOADED, "no place for another connection"))
    headers.update({"Connection": "close", "Content-Length": str(len(body))})
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    transport.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + body)
    transport.close()
    asyncio.get_running_loop().call_later(REFUSED_S, transport.abort)


class GuardedSite(web.BaseSite):
    """Listens on one address; the connections that ``connect`` makes have their places with ``guard``."""

    __slots__ = ("_connect", "_guard", "_host", "_port")

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        guard: Guard,
        connect: Callable[[], asyncio.BaseProtocol],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port = host, port
        self._guard, self._connect = guard, connect

    @property
    def name(self) -> str:
        """The address it listens on."""
        return f"{'http' if self._ssl_context is None else 'https'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen; raises OSError when the address is taken."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self._connect,
            None if self._host == EVERY_ADDRESS else self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=None if self._ssl_context is None else HANDSHAKE_S,
        )
        self._guard.sweep()

    async def stop(self) -> None:
        """Stop listening, and wait for hot requests under way; the runner ends the connections that are left."""
        await super().stop()
        await self._guard.close()


def raise_descriptor_limit(connections_max: int) -> None:
    """Raise this process's limit of descriptors to fit so many connections, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + DESCRIPTORS_RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def connections_allowed(connections_max: int) -> int:
    """Return for how many connections there are descriptors, at most ``connections_max``.

    Without free descriptors all accepts fail, and so does opening the journal's next file.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections_max
    return max(1, min(connections_max, soft - DESCRIPTORS_RESERVED))
