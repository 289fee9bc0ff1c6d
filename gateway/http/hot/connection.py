"""An accepted connection: hot requests are answered here, everything else by aiohttp on the same transport.

Owns: which of the two reads the bytes that arrive. One of them reads at a time, in one of three ways:

| way | the bytes go | until |
|---|---|---|
| ours | into ``_unread``; a head that is whole decides | its request is hot: answered here; or it is not: lent |
| lent | to aiohttp, exactly those of one request | they are all there and aiohttp waits for the next one |
| given | to aiohttp, all of them | the connection ends |

A request is lent if this reader knows where it ends but not how to serve it, or if the desk refuses it: then aiohttp
asks the desk again and tells the refusal. A connection is given away when its bytes have a form that
:mod:`oncegate.gateway.http.hot.framing` does not read, when more arrives while aiohttp is at work on what was lent, and
when a head stays half-sent. A hot request whose body does not follow at once is lent at the next sweep: bodies that
trickle, their bounds and their refusals are aiohttp's side's alone (:mod:`oncegate.gateway.http.admission.bodies`).

One request of a connection is under way at a time. What was sent behind it waits unread, and while the client does not
read its answers nothing more is served.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from oncegate.gateway.http.exchange import Exchange
from oncegate.gateway.http.hot import framing
from oncegate.gateway.http.hot.framing import KNOWN_BYTES_MAX, MISSES_MIN, Head, KnownHead
from oncegate.gateway.http.hot.request import Found, HotRequest, HotRoutes
from oncegate.gateway.http.hot.shared import Shared
from oncegate.gateway.http.negotiation import bare_problem
from oncegate.rifl.errors import Code, OncegateError

BODY_BYTES_MAX: Final = 256 * 1024
"""A larger body is aiohttp's to receive; it costs more than aiohttp does."""
WAITING_BYTES_MAX: Final = 8 * 2**20
"""Requests that are not whole, in all connections; beyond it they are lent at once."""
LINGERING_S: Final = 1.0
"""How long a request that was answered before its body was there may go on sending it, and keep its place."""
_NEVER_S: Final = 10 * 365 * 86_400.0
"""aiohttp's own patience between two requests: it does not see the hot ones, so the sweep looks after that."""
log = logging.getLogger(__name__)


class AiohttpSide(web.RequestHandler):
    """Serves the requests whose bytes it is given; its transport is the connection's."""

    __slots__ = ()

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=cast(logging.Logger, None),
            keepalive_timeout=_NEVER_S,
            lingering_time=LINGERING_S,
            auto_decompress=False,  # the gate refuses encoded bodies: see oncegate.gateway.http.admission.desk
        )

    @property
    def has_asked(self) -> bool:
        """Whether the head of one request has arrived whole."""
        return self._request_count > 0

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request; also true before it has begun to."""
        return not self._messages and (self._waiter is not None or not self.has_asked)

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


class Connection(asyncio.BufferedProtocol):
    """One connection; see the module."""

    __slots__ = (
        "_answered", "_asked", "_closing", "_full", "_given", "_head", "_known", "_lent", "_like", "_misses", "_paused",
        "_request", "_shared", "_side", "_unread", "_waiting", "idle_since_s", "made_s", "transport", "unsent_bytes",
        "unsent_since_s",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._unread: bytes | bytearray = b""
        self._head: tuple[Head, int] | None = None
        """The head at the beginning of what is unread, and its bytes."""
        self._known: KnownHead | None = None
        """A head that was read before, of a hot request."""
        self._like: KnownHead | None = None
        """The known one, if the head at the beginning of what is unread is like it."""
        self._misses = MISSES_MIN - 2  # a connection's second head is the first to be kept: many have only one
        self._waiting = 0
        """Bytes of ``_unread`` that are counted as those of a request that is not whole."""
        self._request: HotRequest | None = None
        self._side: AiohttpSide | None = None
        self._lent = 0
        """Bytes that aiohttp still gets of the request lent to it."""
        self._given = shared.routes is None
        self._full = False
        """The client does not take its answers."""
        self._paused = False
        self._closing = False
        self.transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None
        """Set while somebody waits for the end of the request under way."""
        self._asked = False
        self.made_s = self.idle_since_s = self.unsent_since_s = 0.0
        self.unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place, or refuse the connection if there is none."""
        shared, self.transport = self._shared, cast(asyncio.Transport, transport)
        if not shared.places.has_room():
            # Under TLS, closing hands over what came with the handshake: it was told that it is not applied.
            self._closing, self._given = True, False
            shared.refuse(self.transport)
            return
        self.made_s = shared.loop.time()
        peer = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        shared.places.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back; an operation under way goes on, and nobody is told."""
        self._shared.places.discard(self)
        self._wait_with(0)
        self._unread, self.transport = b"", None
        if self._side is not None:
            self._side.connection_lost(exc)
        self._settle()

    def eof_received(self) -> None:
        """Close, as a client that sends no more is taken to have gone."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next read goes."""
        return self._shared.read_into

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived."""
        data = bytes(self._shared.read_into[:nbytes])
        if self._given:
            self._other().data_received(data)
            return
        if self._lent:
            piece, data = data[: self._lent], data[self._lent :]
            self._lent -= len(piece)
            self._other().data_received(piece)
            if not data:
                return
        if not self._unread:
            self._unread = data
        else:
            if type(self._unread) is bytes:
                self._unread = bytearray(self._unread)
            self._unread += data
        if self._request is None and not self._full:
            self._read()
        else:
            self._pause(paused=True)

    def _read(self) -> None:
        """Serve the first request of what is unread, if it is whole; the next one in a later turn of the loop."""
        if self._closing or not self._unread:
            return
        if self._side is not None and not self._side.is_idle:
            self._give()  # it answers in order
            return
        if self._head is None and not self._read_head():
            return
        assert self._head is not None
        head, size = self._head
        routes = self._shared.routes
        found = None if routes is None or head.length > BODY_BYTES_MAX else routes.find(head)
        if routes is None or found is None:
            self._lend()
            return
        if len(self._unread) < size + head.length:
            if not self._wait_with(len(self._unread)):
                self._lend()
            return
        try:
            exchange = self._admitted(routes, head, found, size)
        except OncegateError:
            exchange = None
        if exchange is None:
            self._lend()
            return
        body = bytes(self._take(size + head.length)[size:])
        self.idle_since_s = 0.0
        request = self._request = HotRequest(exchange, self._shared.aside, self._tell)
        request.begin(found, body)

    def _admitted(self, routes: HotRoutes, head: Head, found: Found, size: int) -> Exchange | None:
        like = self._like
        form = routes.form(head, found, None if like is None else like.form)
        if form is None:
            return None
        if like is not None:
            self._misses = 0
            like.form = form
        elif self._misses < MISSES_MIN - 1:
            self._misses += 1
        elif size <= KNOWN_BYTES_MAX:
            self._misses = 0
            self._known = KnownHead(bytes(self._unread[:size]), head)
            self._known.form = form
        return routes.admit(head, found, form)

    def _read_head(self) -> bool:
        """Read the head of what is unread; False if it is not whole, or if the connection was given away."""
        known = self._known
        if known is not None and (read := known.read(self._unread)) is not None:
            self._head, self._like = read, known
            return True
        end = self._unread.find(framing.END, 0, framing.HEAD_BYTES_MAX)
        if end < 0:
            if len(self._unread) >= framing.HEAD_BYTES_MAX or not self._wait_with(len(self._unread)):
                self._give()
            return False
        size = end + len(framing.END)
        head = framing.read(bytes(self._unread[:size]))
        if head is None:
            self._give()
            return False
        self._head, self._like, self._asked = (head, size), None, True
        return True

    def _take(self, size: int) -> bytes | bytearray:
        """Take the first bytes of what is unread."""
        taken = self._unread
        self._unread = b""
        if len(taken) > size:
            taken, self._unread = taken[:size], taken[size:]
        self._head = None
        if self._waiting:
            self._wait_with(0)
        return taken

    def _tell(self, answer: bytes) -> None:
        self._request = None
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(answer)
            if self._closing:
                transport.close()
            elif self._unread:
                self._shared.loop.call_soon(self._go_on)
        if self._answered is not None:
            self._settle()

    def _go_on(self) -> None:
        transport = self.transport
        if self._request is None and not self._full and transport is not None and not transport.is_closing():
            self._pause(paused=False)
            if not self._given:
                self._read()

    def _lend(self) -> None:
        """Let aiohttp serve the first request of what is unread, and read on behind it."""
        assert self._head is not None
        head, size = self._head
        whole = size + head.length
        data = bytes(self._take(whole))
        self._lent = whole - len(data)
        self.idle_since_s = 0.0
        self._pause(paused=False)
        self._other().data_received(data)
        if self._unread:
            self._give()

    def _give(self) -> None:
        """Let aiohttp read this connection from here to its end."""
        self._given = True
        data = bytes(self._take(len(self._unread)))
        self._pause(paused=False)
        self._other().data_received(data)

    def _other(self) -> AiohttpSide:
        side = self._side
        if side is None:
            assert self.transport is not None
            side = self._side = self._shared.other_side()
            side.connection_made(self.transport)
            if self._full:
                side.pause_writing()
        return side

    def _wait_with(self, size: int) -> bool:
        """Count the unread bytes of a request that is not whole; tell whether there is room for them."""
        bodies = self._shared.aside.bodies
        bodies.waiting_bytes += size - self._waiting
        self._waiting = size
        return bodies.waiting_bytes <= WAITING_BYTES_MAX

    def _pause(self, *, paused: bool) -> None:
        if paused == self._paused or self.transport is None:
            return
        self._paused = paused
        if paused:
            self.transport.pause_reading()
        elif not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Serve nothing more until the client has taken its answers."""
        self._full = True
        if self._side is not None:
            self._side.pause_writing()

    def resume_writing(self) -> None:
        """Serve what waits."""
        self._full = False
        if self._side is not None:
            self._side.resume_writing()
        self._go_on()

    def look(self) -> None:
        """Leave to aiohttp what has not arrived whole, soon; the sweep calls it every second."""
        if self._waiting:
            self._shared.hand_over_soon(self)

    def hand_over(self) -> None:
        """Leave to aiohttp what has not arrived whole."""
        if self._waiting and self.transport is not None and not self.transport.is_closing():
            if self._head is None:
                self._give()
            else:
                self._lend()

    @property
    def has_asked(self) -> bool:
        """Whether the head of one request has arrived whole."""
        return self._asked or (self._side is not None and self._side.has_asked)

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request, or the rest of a head; also true of one made in this turn of the loop."""
        if self._request is not None or self._lent or self._head is not None or len(self._unread) > self._waiting:
            return False
        return self._side is None or self._side.is_idle

    @property
    def pending_bytes(self) -> int:
        """Bytes of answers that its client has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def close(self) -> None:
        """End it once what was written is sent."""
        if self._side is not None:
            self._side.force_close()
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End it now and drop unsent bytes."""
        transport = self.transport
        self.close()
        if transport is not None:
            transport.abort()

    def drain(self) -> asyncio.Future[None] | None:
        """Serve nothing more; return the end of the hot request under way, if there is one."""
        self._closing = True
        if self._request is None:
            if self.is_idle or self._side is None:
                self.close()
            return None
        if self._answered is None:
            self._answered = self._shared.loop.create_future()
        return self._answered

    def _settle(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)
