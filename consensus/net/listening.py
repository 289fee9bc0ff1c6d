"""Where peers come in: the listening sockets, and what happens between accepting and the handshake.

Accepts by itself rather than leave it to ``create_server``: an address is counted before TLS begins, so that nobody
holds the node's memory and descriptors by a handshake of TLS which it does not go on with, and each connection is
wrapped with the certificates in force when it came. Read next: :mod:`oncegate.consensus.net.strangers`,
:mod:`oncegate.consensus.net.connection`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from oncegate.consensus.config import EVERY_ADDRESS
from oncegate.consensus.net.connection import HANDSHAKE_S, Connection
from oncegate.consensus.net.strangers import COMPLAINT_S

logger = logging.getLogger(__name__)

_BACKLOG: Final = 128
_PAUSE_S: Final = 0.5
"""How long nobody is accepted after there was no descriptor for one."""


class Listening:
    """The listening side of one node."""

    def __init__(
        self,
        *,
        begin: Callable[[str], Connection],
        forget: Callable[[Connection, BaseException], None],
        context: Callable[[], ssl.SSLContext | None],
        clear_too: bool,
    ) -> None:
        """Listen nowhere yet.

        ``begin`` makes, and counts, the connection that came from an address; ``forget`` gets one whose TLS failed.
        With ``clear_too`` connections that begin without TLS are let in beside those with it.
        """
        self._begin = begin
        self._forget = forget
        self._context = context
        self._clear_too = clear_too
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._pause: asyncio.TimerHandle | None = None
        self._complains_at = float("-inf")
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Listen on every address that ``host`` names, ``::`` for all of both families; raises OSError."""
        named = None if host == EVERY_ADDRESS else host
        found = await self._loop.getaddrinfo(named, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
                listening = socket.create_server(address, family=family, backlog=_BACKLOG)
                listening.setblocking(False)
                self._sockets.append(listening)
        except OSError:
            self.stop()
            raise
        self._resume()

    def stop(self) -> None:
        """Accept nobody any more."""
        if self._pause is not None:
            self._pause.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def opened(self) -> None:
        """Wait for the handshakes of TLS that were under way; whoever stops has aborted their connections."""
        await asyncio.gather(*self._opening, return_exceptions=True)

    def _resume(self) -> None:
        for listening in self._sockets:
            # A callback, not a task: a task that is cancelled may hold a socket that it has just accepted.
            self._loop.add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return  # it was gone before it was accepted
        except OSError as error:
            if self._loop.time() >= self._complains_at:
                self._complains_at = self._loop.time() + COMPLAINT_S
                logger.error("no peer can connect: %s", error)
            for one in self._sockets:
                self._loop.remove_reader(one)
            self._pause = self._loop.call_later(_PAUSE_S, self._resume)
            return
        accepted.setblocking(False)
        connection = self._begin(address[0])
        connection.accepted = accepted
        opening = self._loop.create_task(self._open(connection, accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: Connection, accepted: socket.socket) -> None:
        context = self._context()
        try:
            if context is not None and self._clear_too and await self._begins_clear(accepted):
                context = None
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
        except OSError as error:
            self._forget(connection, error)
            connection.connection_lost(error)  # It was never made, so nobody else says so.

    async def _begins_clear(self, accepted: socket.socket) -> bool:
        """Look at the first bytes, without taking them; raises OSError."""
        readable = asyncio.Event()
        self._loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await readable.wait()
            first = accepted.recv(3, socket.MSG_PEEK)
        except OSError:
            self._loop.remove_reader(accepted)
            accepted.close()
            raise
        self._loop.remove_reader(accepted)
        # A hello's length has a zero third byte; there TLS has its version.
        return len(first) == 3 and first[2] == 0
