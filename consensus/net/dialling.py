"""Dialling the members: who is called, how often, and how soon again.

A name is looked up for each attempt, and an address that does not answer is left in time for the next look: a member
may come back at another address under its name. The node with the greater id dials, so a pair has one connection; the
other one does only after a while without, since a node that was removed or is new may not know its peers. Owns one task
a member and the connections being made.
Read next: :mod:`oncegate.consensus.net.transport`, :mod:`oncegate.consensus.net.connection`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from aiohappyeyeballs import start_connection

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.net.connection import HANDSHAKE_S, Connection

logger = logging.getLogger(__name__)

_REDIAL_S_MIN = 0.03
_REDIAL_S_MAX = 0.5
_REDIAL_REFUSED_S = 2.0
_PATIENCE_S = 3.0
"""How long the lesser of two ids waits for the greater one to dial before it does so itself."""
_CONNECT_S = 3.0
"""How long a dialled address may take to answer. The kernel goes on for two minutes: a machine that is gone refuses
nothing, and its successor may have another address by then."""
_SECOND_ADDRESS_S = 0.25
"""When the next address of a name is tried beside one that does not answer (RFC 8305)."""
_STOP_S = 0.5


class Dialling:
    """Keeps one node connected with the members of which it knows the address."""

    def __init__(
        self,
        config: ReplicaConfig,
        members: Mapping[str, RaftMember],
        *,
        begin: Callable[[str], Connection],
        forget: Callable[[Connection, BaseException], None],
        connected: Callable[[str], bool],
        context: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """Dial nobody yet. ``members`` is looked at whenever somebody is dialled.

        ``begin`` makes a connection to be opened to a peer, ``forget`` gets one that could not be opened and why,
        ``connected`` says whether a peer has a connection, whoever dialled; ``context`` is asked for each connection.
        """
        self._config = config
        self._members = members
        self._begin = begin
        self._forget = forget
        self._connected = connected
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._diallers: dict[str, asyncio.Task[None]] = {}
        self._connecting: set[asyncio.Task[Any]] = set()

    def dial(self) -> None:
        """Begin with every member that is not dialled yet."""
        for peer_id, member in self._members.items():
            if member.port and peer_id not in self._diallers:
                self._diallers[peer_id] = self._loop.create_task(self._keep_connected(peer_id))

    def end(self, peer_id: str) -> None:
        """Do not dial this one any more; a connection that is open stays."""
        dialler = self._diallers.pop(peer_id, None)
        if dialler is not None:
            dialler.cancel()

    async def stop(self) -> None:
        """End all dialling; connections being made are let finish for a moment."""
        diallers = list(self._diallers.values())
        for task in diallers:
            task.cancel()
        await asyncio.gather(*diallers, return_exceptions=True)
        connecting = list(self._connecting)
        if connecting:
            await asyncio.wait(connecting, timeout=_STOP_S)
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)

    async def _keep_connected(self, peer_id: str) -> None:
        delay = _REDIAL_S_MIN
        clear = False
        while True:
            if peer_id > self._config.node_id:
                await asyncio.sleep(_PATIENCE_S * random.uniform(0.7, 1.3))
                if self._connected(peer_id):
                    continue
            try:
                connection = await self._dial(peer_id, None if clear else self._context())
                if connection.peer_id is not None:
                    delay, clear = _REDIAL_S_MIN, self._config.clear_too
                elif connection.refusal not in (None, "unknown"):
                    delay = _REDIAL_REFUSED_S
            except (OSError, UnicodeError) as error:  # the latter of a host that no look-up takes
                logger.debug("no connection to %s: %s", peer_id, error)
            if self._config.clear_too:
                clear = not clear  # A peer that does not speak the one may speak the other; TLS is tried first.
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 1.5, _REDIAL_S_MAX)

    async def _dial(self, peer_id: str, context: ssl.SSLContext | None) -> Connection:
        """Connect, and wait for the end of the connection."""
        member = self._members[peer_id]
        # Not within the bound: a look-up cannot be cut short, and those given up would fill the pool of threads.
        found = await self._loop.getaddrinfo(member.host, member.port, type=socket.SOCK_STREAM)
        async with asyncio.timeout(_CONNECT_S):
            connected_socket = await start_connection(found, happy_eyeballs_delay=_SECOND_ADDRESS_S, interleave=1)
        connection = self._begin(peer_id)
        connecting = self._loop.create_task(
            self._loop.create_connection(
                lambda: connection,
                sock=connected_socket,
                ssl=context,
                server_hostname=peer_id if context else None,
                ssl_handshake_timeout=HANDSHAKE_S if context else None,
            )
        )
        self._connecting.add(connecting)

        def connected(task: asyncio.Task[Any]) -> None:
            self._connecting.discard(task)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                self._forget(connection, error)

        connecting.add_done_callback(connected)
        # A handshake of TLS that is cancelled half-way leaves its socket open, so it is let finish and refused.
        await asyncio.shield(connecting)
        await connection.closed
        return connection
