"""Connections: how many, and how long one may keep a node waiting.

Owns: accepting connections, and a sweep every second that ends connections that stall. No code here runs for each
request: a connection that behaves costs one check a second. Problems that have no request (broken HTTP, one connection
too many) are made here too.

When all places are taken, idle connections are closed first: a client that opens thousands and sends nothing displaces
its own, never those whose requests are under way.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from oncegate.gateway.http.negotiation import bare_problem
from oncegate.rifl.errors import Code, OncegateError

SWEEP_S: Final = 1.0
EVICTED_SHARE: Final = 16
"""One in so many idle connections goes when places are needed, so that a look at all of them pays for many."""
DESCRIPTORS_RESERVED: Final = 512
"""File descriptors left for journal, state, segments and peers."""
HANDSHAKE_S: Final = 5.0
SENT_BYTES_MIN: Final = 256 * 1024
"""A reader of an answer has to take so much in ``unsent_ms_max``, or all of it."""
BACKLOG: Final = 256
"""Connections that may be accepted at once; fewer than the reserved descriptors."""
log = logging.getLogger(__name__)


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


class GuardedConnection(web.RequestHandler):
    """A connection that the guard knows."""

    __slots__ = ("_guard", "made_s", "unsent_bytes", "unsent_since_s")

    def __init__(self, guard: Guard, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._guard = guard
        self.made_s = 0.0
        self.unsent_bytes = 0
        self.unsent_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or refuse the connection if there is none."""
        if not self._guard.has_room():
            _refuse(transport)
            return
        self.made_s = self._loop.time()
        self._guard.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Give the place back."""
        self._guard.discard(self)
        super().connection_lost(exc)

    @property
    def has_asked(self) -> bool:
        """Whether one whole request has arrived."""
        return self._request_count > 0

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request; also true of a connection made in this turn of the loop."""
        return not self._messages and (self._waiter is not None or not self.has_asked)

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that its client has not taken yet."""
        transport = self.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def abort(self) -> None:
        """End it now and drop unsent bytes."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer broken HTTP, or a bug outside the handlers, with a problem; the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        if isinstance(exc, HttpProcessingError):
            # Any client can send this at any rate, so it must not fill the log.
            refusal = OncegateError(Code.BAD_REQUEST, f"not HTTP as this node reads it: {(message or '')[:200]}")
        else:
            log.error("a request failed outside its handler", exc_info=exc)
            refusal = OncegateError(Code.INTERNAL, "see the node's log")
        response = bare_problem(refusal)
        response.force_close()
        return response


class Guard:
    """All connections of a node. It makes them, and ends those that keep the node waiting for too long."""

    def __init__(self, server: web.Server, patience: Patience, counts: ConnectionCounts) -> None:
        self._server = server
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.connections: dict[GuardedConnection, None] = {}
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

    def add(self, connection: GuardedConnection) -> None:
        """Give a connection its place."""
        self.connections[connection] = None
        self._counts.open = len(self.connections)

    def discard(self, connection: GuardedConnection) -> None:
        """Take a connection's place back, if it has one."""
        self.connections.pop(connection, None)
        self._counts.open = len(self.connections)

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of an accepted connection (asyncio's protocol factory)."""
        return GuardedConnection(
            self,
            self._server,
            loop=self._loop,
            access_log=None,
            keepalive_timeout=self._patience.idle_ms_max / 1000,
            auto_decompress=False,  # the gate refuses encoded bodies: see oncegate.gateway.http.admission.gate
        )

    def _make_room(self) -> bool:
        """End some idle connections: those that never asked first, the oldest first."""
        idle = [one for one in self.connections if one.is_idle]
        idle.sort(key=lambda one: one.has_asked)
        chosen = idle[: 1 + len(idle) // EVICTED_SHARE]
        for one in chosen:
            self._end(one)
        return bool(chosen)

    def _end(self, connection: GuardedConnection) -> None:
        self._counts.ended += 1
        # Free the place now: the transport reports the loss one turn of the loop later.
        self.discard(connection)
        connection.abort()

    def sweep(self) -> None:
        """End connections whose client keeps the node waiting, and schedule the next sweep."""
        now_s = self._loop.time()
        pending: list[tuple[int, GuardedConnection]] = []
        for one in list(self.connections):
            if not one.has_asked:
                if (now_s - one.made_s) * 1000 > self._patience.headers_ms_max:
                    self._end(one)
                continue
            size = one.pending_bytes
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

    def _bound_unsent(self, pending: list[tuple[int, GuardedConnection]]) -> None:
        excess = sum(size for size, _ in pending) - self._patience.unsent_bytes_max
        if excess > 0:
            for size, one in sorted(pending, key=lambda item: item[0], reverse=True):
                self._end(one)
                excess -= size
                if excess <= 0:
                    break

    def close(self) -> None:
        """Stop sweeping."""
        if self._timer is not None:
            self._timer.cancel()


def _refuse(transport: asyncio.BaseTransport) -> None:
    """Answer OVERLOADED to a new connection and close it."""
    if isinstance(transport, asyncio.WriteTransport):
        problem = bare_problem(OncegateError(Code.OVERLOADED, "no place for another connection"))
        body = problem.body if isinstance(problem.body, bytes) else b""
        problem.headers.update({"Connection": "close", "Content-Length": str(len(body))})
        head = "".join(f"{name}: {value}\r\n" for name, value in problem.headers.items())
        transport.write(f"HTTP/1.1 {problem.status} {problem.reason}\r\n{head}\r\n".encode() + body)
    transport.close()


class GuardedSite(web.BaseSite):
    """Listens on one address and hands accepted connections to a :class:`Guard`."""

    __slots__ = ("_host", "_port", "guard")

    def __init__(
        self,
        runner: web.AppRunner,
        host: str,
        port: int,
        patience: Patience,
        counts: ConnectionCounts,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        server = runner.server
        if server is None:
            raise RuntimeError("the runner is not set up")
        self._host, self._port = host, port
        self.guard = Guard(server, patience, counts)

    @property
    def name(self) -> str:
        """The address it listens on."""
        return f"{'http' if self._ssl_context is None else 'https'}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen; raises OSError when the address is taken."""
        await super().start()
        self._server = await asyncio.get_running_loop().create_server(
            self.guard,
            self._host,
            self._port,
            ssl=self._ssl_context,
            backlog=self._backlog,
            ssl_handshake_timeout=None if self._ssl_context is None else HANDSHAKE_S,
        )
        self.guard.sweep()

    async def stop(self) -> None:
        """Stop listening; the runner ends open connections."""
        self.guard.close()
        await super().stop()


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
