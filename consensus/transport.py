"""Connections between the members: sockets, reconnects, one live connection a peer.

Owns listening, dialling and closing. The node with the greater id dials, so a pair has one connection; the other one
does only after a while without, since a node that was removed or is new may not know its peers. A new connection
replaces the old, which is closed before anything is read from the new (repair B4). Who the peers are changes at run
time. Knows nothing of what the messages mean. Read next: :mod:`consensus.wire`, :mod:`consensus.handshake`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
import weakref
from collections.abc import Mapping
from typing import Any, Protocol, cast

from consensus.config import ReplicaConfig, TlsConfig
from consensus.configuration import Member
from consensus.errors import ProtocolError
from consensus.handshake import (
    HANDSHAKE_FRAME_BYTES_MAX,
    REFUSALS,
    Acceptor,
    Credentials,
    Dialler,
    PeerRefusedError,
    Stamp,
)
from consensus.known_peers import KnownPeers
from consensus.messages import AnyMessage, Message, Refusal, Refused
from consensus.wire import FrameReader, encode_frame

logger = logging.getLogger(__name__)

_HANDSHAKE_S = 3.0
_STOP_S = 0.5
_STRANGERS_MAX = 64
_REDIAL_S_MIN = 0.03
_REDIAL_S_MAX = 0.5
_REDIAL_REFUSED_S = 2.0
_PATIENCE_S = 3.0
"""How long the lesser of two ids waits for the greater one to dial before it does so itself."""
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
        self.refusal: Refusal | None = None
        self._reader = FrameReader(HANDSHAKE_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.peer_id: str | None = None
        self.epoch = 0
        self.closed: asyncio.Future[None] = owner.loop.create_future()

    @property
    def claimed_id(self) -> str:
        """Who the other side says it is, during the handshake; empty before it said so."""
        return self._side.peer_id if self._side is not None else ""

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
        try:
            messages = self._reader.all_received(nbytes) if self._side is None else self._received_at_first(nbytes)
        except PeerRefusedError as error:
            self.refusal = error.reason
            self._owner.refused(self)
            self.abort()
            return
        except ProtocolError as error:
            logger.warning("closing the connection to %s: %s", self.peer_id or "a stranger", error)
            self.abort()
            return
        if messages and self.peer_id is not None:
            self._owner.received(self, self.peer_id, cast("list[Message]", messages))

    def _received_at_first(self, nbytes: int) -> list[AnyMessage]:
        """Go on with the handshake; what comes behind its last message is returned."""
        messages: list[AnyMessage] = []
        for message in self._reader.received(nbytes):
            side = self._side
            if side is None:
                messages.append(message)
            else:
                self._shake_hands(side, message)
        return messages

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
        if established is not None:
            self._check_certificate(established.peer_id)
        if answer is not None:
            self._write(answer)
        if isinstance(answer, Refused):
            self._owner.refuses(self, answer.reason)
            self.close()
        if established is not None:
            self._side = None
            self._owner.remember(established.peer_id, established.stamp)
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


class _Welcome:
    """Whom the handshake lets in."""

    def __init__(self, members: Mapping[str, Member]) -> None:
        self._members = members
        self.anyone = False

    def __contains__(self, peer_id: object) -> bool:
        return self.anyone or peer_id in self._members


class PeerTransport:
    """All connections of one node."""

    def __init__(self, config: ReplicaConfig, stamp: Stamp, known_peers: KnownPeers, receiver: Receiver) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._members: dict[str, Member] = {}
        self._welcome = _Welcome(self._members)
        self._credentials = Credentials(
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            stamp=stamp,
            secret=config.secret,
            peer_ids=self._welcome,
            judge=self._judge,
        )
        self._known_peers = known_peers
        self._refused_by: dict[str, Refusal] = {}
        self._refusals: set[tuple[str, Refusal]] = set()
        self._server: asyncio.Server | None = None
        self._diallers: dict[str, asyncio.Task[None]] = {}
        self._strangers: set[_Connection] = set()
        self._peers: dict[str, _Connection] = {}
        self._live: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._connecting: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._last_message: Message | None = None
        self._last_frame = (b"", b"")

    async def start(self) -> None:
        """Listen on the configured address only, and begin to dial."""
        tls = self.config.tls
        self._server = await self.loop.create_server(
            lambda: self._connection(Acceptor(self._credentials)),
            *self.config.listen,
            ssl=_tls_context(tls, ssl.PROTOCOL_TLS_SERVER) if tls else None,
            ssl_handshake_timeout=_HANDSHAKE_S if tls else None,
        )
        self._dial_members()

    def set_members(self, members: Mapping[str, Member], *, anyone: bool = False) -> None:
        """Be connected with exactly these from now on; what was written to one that goes still leaves.

        With ``anyone`` other peers that know the secret may connect too, but are not dialled.
        """
        self._welcome.anyone = anyone
        gone = self._members.keys() - members.keys()
        if not anyone:
            gone |= self._peers.keys() - members.keys()
        # In place: the handshakes look at it.
        self._members.clear()
        self._members.update(members)
        for peer_id in gone:
            self._refused_by.pop(peer_id, None)
            dialler = self._diallers.pop(peer_id, None)
            if dialler is not None:
                dialler.cancel()
            connection = self._peers.get(peer_id)
            if connection is not None:
                logger.info("node %s closes the connection to %s: no member", self.config.node_id, peer_id)
                connection.close()
        if self._server is not None and not self._closing:
            self._dial_members()

    def _dial_members(self) -> None:
        for peer_id, member in self._members.items():
            if member.port and peer_id not in self._diallers:
                self._diallers[peer_id] = self.loop.create_task(self._keep_connected(peer_id))

    async def stop(self) -> None:
        """Stop listening and dialling, let written bytes leave, close everything."""
        self._closing = True
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

    def remember(self, peer_id: str, stamp: Stamp) -> None:
        """A peer's data directory was accepted."""
        member = self._members.get(peer_id)
        if member is not None:
            self._known_peers.remember(peer_id, member.since, stamp, self._members)
            self._refused_by.pop(peer_id, None)
            self._refusals = {said for said in self._refusals if said[0] != peer_id}

    def _judge(self, peer_id: str, stamp: Stamp) -> Refusal | None:
        member = self._members.get(peer_id)
        return None if member is None else self._known_peers.judge(peer_id, member.since, stamp)

    def refuses(self, connection: _Connection, reason: Refusal) -> None:
        """This node does not want a peer that has proved itself; said once a peer and reason."""
        said = (connection.claimed_id, reason)
        if said in self._refusals:
            return
        if len(self._refusals) >= _STRANGERS_MAX:
            self._refusals.clear()
        self._refusals.add(said)
        level = logging.INFO if reason == "unknown" else logging.ERROR
        logger.log(level, "node %s refuses %r: %s", self.config.node_id, said[0], REFUSALS[reason])

    def refused(self, connection: _Connection) -> None:
        """A peer does not want this node; said once a peer and reason."""
        peer_id, reason = connection.claimed_id, connection.refusal
        if reason is None or peer_id not in self._members or self._refused_by.get(peer_id) == reason:
            return
        self._refused_by[peer_id] = reason
        level = logging.INFO if reason == "unknown" else logging.ERROR
        logger.log(level, "node %s is refused by %s: %s", self.config.node_id, peer_id, REFUSALS[reason])

    def received(self, connection: _Connection, peer_id: str, messages: list[Message]) -> None:
        """Messages of an established connection; those of a replaced one are dropped."""
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
            if peer_id > self.config.node_id:
                await asyncio.sleep(_PATIENCE_S * random.uniform(0.7, 1.3))
                if peer_id in self._peers:
                    continue
            try:
                connection = await self._dial(peer_id, context)
                if connection.peer_id is not None:
                    delay = _REDIAL_S_MIN
                elif connection.refusal not in (None, "unknown"):
                    delay = _REDIAL_REFUSED_S
            except OSError as error:
                logger.debug("no connection to %s: %s", peer_id, error)
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 1.5, _REDIAL_S_MAX)

    async def _dial(self, peer_id: str, context: ssl.SSLContext | None) -> _Connection:
        """Connect, and wait for the end of the connection."""
        member = self._members[peer_id]
        connection = self._connection(Dialler(self._credentials, peer_id))
        connecting = self.loop.create_task(
            self.loop.create_connection(
                lambda: connection,
                member.host,
                member.port,
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
        return connection


def _tls_context(tls: TlsConfig, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The handshake compares the certificate with the peer's node id.
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.authority)
    return context
