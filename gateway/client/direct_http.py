"""Connections to the nodes for requests with one answer, without what a general HTTP client does for each.

Owns: connections that wait for work, the bytes of a request, and the time that an answer may take. Every connection
carries one request at a time; how many there may be: :mod:`oncegate.gateway.client.connection_turns`. What an answer
may look like: :mod:`oncegate.gateway.client.answer_head`. Must not know what a request means, nor when it is sent
again: :mod:`oncegate.gateway.client.courier`.

A request costs one ``send``, one ``recv`` into a buffer that stays, one future and no timer. Its answer is handed over
in the callback that completes it, before the waiting task runs: whoever the answer wakes, runs first.

| what happens | the request |
|---|---|
| no connection, in time or at all: :meth:`DirectPool.dial` raises | has not left |
| :meth:`DirectConnection.ask` was called, and no answer comes: :class:`NoAnswer` | may have been executed |
| the caller is cancelled after that | may have been executed; the connection is closed |
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from aiohappyeyeballs import start_connection
from yarl import URL

from oncegate.gateway.client.answer_head import HEAD_BYTES_MAX, AnswerHead, UnusualAnswer, read_head
from oncegate.gateway.sweep import NEVER, Sweep
from oncegate.version import __version__

IDLE_S: Final = 15.0
"""How long a connection waits for work: shorter than servers and proxies wait for a request, so that they seldom close
the connection while one travels."""
BUFFER_BYTES: Final = 64 * 1024
"""What a connection reads into; a longer answer gets a buffer of its own."""
SECOND_ADDRESS_S: Final = 0.25
"""When the next address of a name is tried beside one that does not answer (RFC 8305)."""

USER_AGENT: Final = f"oncegate-python/{__version__}"
"""What every request of the SDK says of who sends it."""

Finish = Callable[[AnswerHead, bytes], Any]


class NoAnswer(Exception):
    """A request that may have been executed has no answer; ``silent``: there was none in time."""

    def __init__(self, detail: str, *, silent: bool = False) -> None:
        super().__init__(detail)
        self.silent = silent


def request_head(method: str, host: str, path: str, headers: Mapping[str, str], length: int | None) -> bytes:
    """Return the head of a request.

    Raises:
        ValueError: a part of it would begin a line of its own.
    """
    lines = [f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in headers.items()]
    lines.append("\r\n" if length is None else f"Content-Length: {length}\r\n\r\n")
    head = "".join(lines)
    ends = len(headers) + (4 if length is None else 5)
    if head.count("\n") != ends or head.count("\r") != ends or "\0" in head:
        raise ValueError("a header with the end of a line in it")
    return head.encode()


class DirectConnection(asyncio.BufferedProtocol):
    """One connection; :meth:`ask` when it is idle.

    Attributes:
        due: when the answer that it waits for is late, on the loop's clock.
        idle_until: when it has waited for work for too long.
        closed: whether it can carry no further request.
    """

    __slots__ = (
        "_answer", "_body_at", "_buffer", "_filled", "_finish", "_head", "_pool", "_transport", "_view", "_whole",
        "closed", "due", "endpoint", "idle_until",
    )  # fmt: skip

    def __init__(self, pool: DirectPool, endpoint: str) -> None:
        self._pool = pool
        self.endpoint = endpoint
        self.due = NEVER
        self.idle_until = NEVER
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._finish: Finish | None = None
        self._head: AnswerHead | None = None
        self._body_at = 0
        self._whole = 0
        self._filled = 0
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    async def ask(self, request: bytes, due: float, finish: Finish) -> Any:
        """Send a request and return what ``finish`` makes of its answer, or raise what it raises.

        Args:
            request: head and body.
            due: when an answer is too late, on the loop's clock.
            finish: called with the answer as soon as it is whole, unless the caller has gone.

        Raises:
            NoAnswer: none came.
            UnusualAnswer: one that is not read here.
        """
        pool, transport = self._pool, self._transport
        assert transport is not None
        answer = self._answer = pool.loop.create_future()
        self._finish = finish
        self.due = due
        pool.busy.add(self)
        if due < pool.sweep.at:
            pool.sweep.arm(due)
        transport.write(request)
        try:
            return await answer
        except asyncio.CancelledError:
            if self._answer is answer:
                self.abort()  # what comes now answers nobody
            elif not answer.cancelled():
                answer.exception()  # it came in the same turn; nobody else will look at it
            raise

    @property
    def usable(self) -> bool:
        """Whether a request can leave."""
        return not self.closed and self._transport is not None and not self._transport.is_closing()

    def abort(self) -> None:
        """Close the connection now; whoever waits for an answer on it is told by :meth:`connection_lost`, or gone."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def late(self) -> None:
        """Give up waiting for the answer."""
        self._fail(NoAnswer("no answer in time", silent=True))

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # of another loop, such as uvloop, it is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        """Tell whoever waits for an answer."""
        self.closed = True
        self._pool.forget(self)
        self._fail(NoAnswer("connection lost"), error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take bytes; the last one of an answer hands it over."""
        before, filled = self._filled, self._filled + nbytes
        self._filled = filled
        if self._answer is None:
            self.abort()  # nobody has asked: whatever it is, it must not answer the next request
            return
        head = self._head
        if head is None:
            end = self._buffer.find(b"\r\n\r\n", max(0, before - 3), filled)
            if end < 0:
                if filled > HEAD_BYTES_MAX:
                    self._fail(UnusualAnswer(f"its head has more than {HEAD_BYTES_MAX} bytes"))
                return
            try:
                head = self._head = read_head(bytes(self._view[:end]))
            except UnusualAnswer as unusual:
                self._fail(unusual)
                return
            self._body_at = end + 4
            self._whole = end + 4 + head.length
        whole = self._whole
        if filled < whole:
            if filled == len(self._buffer):
                self._grow(min(whole, 4 * filled))
            return
        self._hand_over(head, bytes(self._view[self._body_at : whole]), stays=head.stays and filled == whole)

    def _hand_over(self, head: AnswerHead, body: bytes, *, stays: bool) -> None:
        answer, finish = self._answer, self._finish
        assert answer is not None
        assert finish is not None
        self._reset()
        if stays and not self.closed:
            self._pool.rest(self)
        else:
            self.abort()
        if answer.done():
            return
        try:
            made = finish(head, body)
        except Exception as failure:  # noqa: BLE001 - raised in the task that waits
            answer.set_exception(failure)
        else:
            answer.set_result(made)

    def _fail(self, failure: Exception, cause: Exception | None = None) -> None:
        answer = self._answer
        self._reset()
        if not self.closed:
            self.abort()
        if answer is not None and not answer.done():
            failure.__cause__ = cause
            answer.set_exception(failure)

    def _reset(self) -> None:
        self._answer = self._finish = self._head = None
        self._filled = 0
        self.due = NEVER
        self._pool.busy.discard(self)
        if len(self._buffer) > BUFFER_BYTES:
            self._buffer = bytearray(BUFFER_BYTES)
            self._view = memoryview(self._buffer)

    def _grow(self, size: int) -> None:
        grown = bytearray(size)
        grown[: self._filled] = self._buffer[: self._filled]
        self._buffer, self._view = grown, memoryview(grown)


class DirectPool:
    """The connections of one client; :meth:`close` last.

    Args:
        loop: the client's.
        tls: for https endpoints; None: what the machine trusts.

    Attributes:
        busy: connections that wait for an answer: as many as requests are under way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tls: ssl.SSLContext | None) -> None:
        self.loop = loop
        self.busy: set[DirectConnection] = set()
        self.sweep = Sweep(loop, self._expire)
        self.closed = False
        self._tls = tls
        self._idle: dict[str, list[DirectConnection]] = {}
        self._hosts: dict[str, str] = {}
        self._resolved: dict[str, list[Any]] = {}

    def idle(self, endpoint: str) -> DirectConnection | None:
        """Take a connection to the endpoint that waits for work, the one that was used last; None if there is none."""
        idle = self._idle.get(endpoint)
        while idle:
            connection = idle.pop()
            if connection.usable:
                return connection
        return None

    async def dial(self, endpoint: str, due: float) -> DirectConnection:
        """Open a connection.

        Raises:
            TimeoutError: not before ``due``, on the loop's clock.
            ssl.SSLCertVerificationError: the endpoint's certificate is not trusted.
            OSError: there is none.
        """
        url = URL(endpoint)
        host = url.raw_host or ""
        tls: dict[str, Any] = {}
        if url.scheme == "https":
            if self._tls is None:
                self._tls = ssl.create_default_context()
                self._tls.set_alpn_protocols(["http/1.1"])
            tls = {"ssl": self._tls, "server_hostname": host.rstrip(".")}
        async with asyncio.timeout_at(due):
            infos = await self._addresses(endpoint, host, url.port)
            # asyncio's own race of addresses leaks a socket if it is cancelled at the wrong moment (Python 3.11).
            connected = await start_connection(infos, happy_eyeballs_delay=SECOND_ADDRESS_S, interleave=1)
            _, connection = await self.loop.create_connection(
                lambda: DirectConnection(self, endpoint), sock=connected, **tls
            )
        if self.closed or not connection.usable:
            connection.abort()
            raise ConnectionAbortedError("it was closed at once")
        return connection

    async def _addresses(self, endpoint: str, host: str, port: int | None) -> list[Any]:
        """Return the addresses of an endpoint; raises OSError if there are none.

        Names are looked up in a thread. As the interpreter ends, Python starts none any more, while a client that was
        not left still says goodbye: it goes to where the name led before.
        """
        try:
            found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except RuntimeError as ending:
            if endpoint not in self._resolved:
                raise ConnectionAbortedError("no name is looked up any more: the interpreter ends") from ending
        else:
            self._resolved[endpoint] = found
        return self._resolved[endpoint]

    def host(self, endpoint: str) -> str:
        """Return what the header ``Host`` says to an endpoint."""
        host = self._hosts.get(endpoint)
        if host is None:
            host = self._hosts[endpoint] = URL(endpoint).host_port_subcomponent or ""
        return host

    def rest(self, connection: DirectConnection) -> None:
        """Keep a connection that has done its work for the next request; there are as many as had work at once."""
        idle = self._idle.setdefault(connection.endpoint, [])
        if self.closed:
            connection.abort()
            return
        until = connection.idle_until = self.loop.time() + IDLE_S
        if until < self.sweep.at:
            self.sweep.arm(until)
        idle.append(connection)

    def drop(self, endpoint: str) -> None:
        """Close the connections to an endpoint that wait for work."""
        for connection in self._idle.pop(endpoint, ()):
            connection.abort()

    def forget(self, connection: DirectConnection) -> None:
        """Note that a connection is closed."""
        idle = self._idle.get(connection.endpoint)
        if idle and connection in idle:
            idle.remove(connection)

    async def close(self) -> None:
        """Close every connection; a request under way may have been executed."""
        self.closed = True
        self.sweep.cancel()
        for connection in [*self.busy, *(one for idle in self._idle.values() for one in idle)]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # each transport tells its connection in the next turn, and is closed then

    def _expire(self, now: float) -> float:
        """Give up answers that are late, close connections that have waited too long, and return when to look again."""
        following = NEVER
        for connection in list(self.busy):
            if connection.due <= now:
                connection.late()
            else:
                following = min(following, connection.due)
        for idle in self._idle.values():
            kept = [one for one in idle if one.idle_until > now]
            for connection in idle:
                if connection.idle_until <= now:
                    connection.abort()
            idle[:] = kept
            following = min([following, *(one.idle_until for one in kept)])
        return following
