"""Connections between the members: sockets, reconnects, one live connection a peer.

Owns listening, dialling and closing. The node with the greater id dials, so a pair has one connection; a new one
replaces the old, which is closed before anything is read from the new (repair B4). Knows nothing of what
the messages mean. Read next: :mod:`consensus.wire`, :mod:`consensus.handshake`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import weakref
from typing import Any, Protocol, cast

from consensus.config import ReplicaConfig, TlsConfig
from consensus.errors import ProtocolError
from consensus.handshake import HANDSHAKE_FRAME_BYTES_MAX, Acceptor, Credentials, Dialler
from consensus.messages import AnyMessage, Message
from consensus.wire import FrameReader, encode_frame

logger = logging.getLogger(__name__)

_HANDSHAKE_S = 3.0
_STOP_S = 0.5
_STRANGERS_MAX = 64
_REDIAL_S_MIN = 0.03
_REDIAL_S_MAX = 0.5
_JOIN_BYTES_MAX = 32 * 1024
"""Below this one system call more costs more than copying the body."""
_SILENT_LINK_MS = 6000
"""Unacknowledged bytes for this long mean that the other machine is gone."""


class Receiver(Protocol):
    """Who the transport serves; called from the event loop."""

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection is established, and replaces an earlier one."""

    def peer_down(self, peer_id: str) -> None:
        """The connection is lost."""

    def peer_said(self, peer_id: str, epoch: int, messages: list[Message]) -> None:
        """Messages of one read, in order."""


class _Connection(asyncio.BufferedProtocol):
    """One socket, from its handshake to its end."""

    def __init__(self, owner: PeerTransport, side: Dialler | Acceptor) -> None:
        self._owner = owner
        self._side: Dialler | Acceptor | None = side
        self._opening = side.opening() if isinstance(side, Dialler) else None
        self._reader = FrameReader(HANDSHAKE_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer_id: str | None = None
        self.epoch = 0
        self.closed: asyncio.Future[None] = owner.loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_LINK_MS)
        self._timer = self._owner.loop.call_later(_HANDSHAKE_S, self.abort)
        if not self._owner.admit(self):
            self.abort()
        elif self._opening is not None:
            self._write(self._opening)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        messages: list[Message] = []
        try:
            for message in self._reader.received(nbytes):
                if self._side is None:
                    messages.append(cast(Message, message))
                else:
                    self._shake_hands(self._side, message)
        except ProtocolError as error:
            logger.warning("closing the connection to %s: %s", self.peer_id or "a stranger", error)
            self.abort()
            return
        if messages and self.peer_id is not None:
            self._owner.received(self, messages)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def write_frame(self, header: bytes, body: bytes, pending_bytes_max: int) -> bool:
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > pending_bytes_max:
            # A peer that does not read is as good as gone; holding more for it would be without bound.
            logger.warning("closing the connection to %s: it does not read", self.peer_id)
            self.abort()
            return False
        if len(body) < _JOIN_BYTES_MAX:
            transport.write(header + body)
        else:
            transport.write(header)
            transport.write(body)
        return True

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close once what is buffered has left."""
        if self._transport is not None:
            self._transport.close()

    def _write(self, message: AnyMessage) -> None:
        if self._transport is not None:
            self._transport.write(b"".join(encode_frame(message)))

    def _shake_hands(self, side: Dialler | Acceptor, message: AnyMessage) -> None:
        answer, established = side.receive(message)
        if answer is not None:
            self._write(answer)
        if established is not None:
            self._check_certificate(established.peer_id)
            self._side = None
            if self._timer is not None:
                self._timer.cancel()
            self.peer_id, self.epoch = established.peer_id, established.epoch
            self._reader.frame_bytes_max = self._owner.config.frame_bytes_max
            self._owner.established(self)

    def _check_certificate(self, peer_id: str) -> None:
        if self._owner.config.tls is None or self._transport is None:
            return
        certificate: dict[str, Any] = self._transport.get_extra_info("peercert") or {}
        names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
        names |= {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        if peer_id not in names:
            raise ProtocolError(f"the certificate does not name {peer_id}")


class PeerTransport:
    """All connections of one node."""

    def __init__(self, config: ReplicaConfig, node_uuid: str, receiver: Receiver) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._credentials = Credentials(
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            node_uuid=node_uuid,
            secret=config.secret,
            peer_ids=frozenset(config.peers),
        )
        self._server: asyncio.Server | None = None
        self._diallers: list[asyncio.Task[None]] = []
        self._strangers: set[_Connection] = set()
        self._peers: dict[str, _Connection] = {}
        self._live: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._last_message: Message | None = None
        self._last_frame = (b"", b"")

    async def start(self) -> None:
        """Listen on the configured address only, and begin to dial."""
        if not self.config.peers:
            return
        tls = self.config.tls
        self._server = await self.loop.create_server(
            lambda: self._connection(Acceptor(self._credentials)),
            *self.config.listen,
            ssl=_tls_context(tls, ssl.PROTOCOL_TLS_SERVER) if tls else None,
            ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
        )
        for peer_id in self.config.peers:
            if peer_id < self.config.node_id:
                self._diallers.append(self.loop.create_task(self._keep_connected(peer_id)))

    async def stop(self) -> None:
        """Stop listening and dialling, let written bytes leave, close everything."""
        self._closing = True
        for task in self._diallers:
            task.cancel()
        await asyncio.gather(*self._diallers, return_exceptions=True)
        connecting = list(self._connecting)
        if connecting:
            await asyncio.wait(connecting, timeout=_STOP_S)
            for task in connecting:
                task.cancel()
            await asyncio.gather(*connecting, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        # Also those that were accepted a moment ago: they are refused as soon as their turn comes.
        live = list(self._live)
        for connection in live:
            # The closing words of TLS may take long, and nothing depends on them.
            if self.config.tls is None:
                connection.close()
            else:
                connection.abort()
        for _ in range(2):
            late = [connection.closed for connection in live if not connection.closed.done()]
            if late:
                await asyncio.wait(late, timeout=_STOP_S)
            for connection in live:
                connection.abort()
        if self._server is not None:
            await self._server.wait_closed()

    def send(self, peer_id: str, message: Message) -> bool:
        """Write at once, or buffer what the socket does not take; returns False when there is no connection."""
        connection = self._peers.get(peer_id)
        if connection is None:
            return False
        if self._last_message is not message:
            # Followers mostly get the same append: it is encoded once.
            self._last_frame = encode_frame(message)
            self._last_message = message
        return connection.write_frame(*self._last_frame, 4 * self.config.frame_bytes_max)

    # -- called by connections -------------------------------------------------------------------------

    def admit(self, connection: _Connection) -> bool:
        """Count a connection whose peer is not known yet; refuse when there are too many."""
        if self._closing or len(self._strangers) >= _STRANGERS_MAX:
            return False
        self._strangers.add(connection)
        return True

    def established(self, connection: _Connection) -> None:
        """The handshake succeeded."""
        self._strangers.discard(connection)
        peer_id = cast(str, connection.peer_id)
        old = self._peers.get(peer_id)
        self._peers[peer_id] = connection
        if old is not None:
            old.abort()
        self._receiver.peer_up(peer_id, connection.epoch)

    def received(self, connection: _Connection, messages: list[Message]) -> None:
        """Messages of an established connection; those of a replaced one are dropped."""
        peer_id = cast(str, connection.peer_id)
        if self._peers.get(peer_id) is connection:
            self._receiver.peer_said(peer_id, connection.epoch, messages)

    def lost(self, connection: _Connection) -> None:
        """The socket is closed."""
        self._strangers.discard(connection)
        peer_id = connection.peer_id
        if peer_id is not None and self._peers.get(peer_id) is connection:
            del self._peers[peer_id]
            self._receiver.peer_down(peer_id)

    def _connection(self, side: Dialler | Acceptor) -> _Connection:
        connection = _Connection(self, side)
        self._live.add(connection)
        return connection

    async def _keep_connected(self, peer_id: str) -> None:
        tls = self.config.tls
        context = _tls_context(tls, ssl.PROTOCOL_TLS_CLIENT) if tls else None
        delay = _REDIAL_S_MIN
        while True:
            try:
                if await self._dial(peer_id, context):
                    delay = _REDIAL_S_MIN
            except OSError as error:
                logger.debug("no connection to %s: %s", peer_id, error)
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 1.5, _REDIAL_S_MAX)

    async def _dial(self, peer_id: str, context: ssl.SSLContext | None) -> bool:
        """Connect, and wait for the end of the connection; returns whether it was ever established."""
        connection = self._connection(Dialler(self._credentials, peer_id))
        connecting = self.loop.create_task(
            self.loop.create_connection(
                lambda: connection,
                *self.config.peers[peer_id],
                ssl=context,
                server_hostname=peer_id if context else None,
                ssl_handshake_timeout=_HANDSHAKE_S if context else None,
            )
        )
        self._connecting.add(connecting)

        def connected(task: asyncio.Task[Any]) -> None:
            self._connecting.discard(task)
            if task.cancelled() or task.exception() is not None:
                self._live.discard(connection)

        connecting.add_done_callback(connected)
        # A handshake of TLS that is cancelled half-way leaves its socket open, so it is let finish and refused.
        await asyncio.shield(connecting)
        await connection.closed
        return connection.peer_id is not None


def _tls_context(tls: TlsConfig, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The handshake compares the certificate with the peer's node id.
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.authority)
    return context
