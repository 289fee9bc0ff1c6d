"""One connection to a peer: a socket from its handshake to its end.

Owns the bytes in both directions and the certificate's check. Whether the connection is wanted, and what becomes of its
messages, its owner says. Read next: :mod:`oncegate.consensus.net.handshake`, :mod:`oncegate.consensus.net.wire`,
:mod:`oncegate.consensus.net.transport`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any, Final, NamedTuple, Protocol, cast

from oncegate.consensus.config import ReplicaConfig, TlsConfig
from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import AnyMessage, Message, PeerRefused, Refusal
from oncegate.consensus.net.handshake import HANDSHAKE_FRAME_BYTES_MAX, Acceptor, Dialler, PeerRefusedError, Stamp
from oncegate.consensus.net.sealing import Seal
from oncegate.consensus.net.wire import Frame, FrameReader, encode_frame

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 3.0
"""How long a handshake may take."""

_JOIN_BYTES_MAX = 32 * 1024
"""Below this one system call more costs more than copying the body."""
_SILENT_LINK_MS = 6000
"""Unacknowledged bytes for this long mean that the other machine is gone."""


class Owner(Protocol):
    """Who has all connections of this node."""

    config: ReplicaConfig
    loop: asyncio.AbstractEventLoop

    def admit(self, connection: Connection) -> bool:
        """Tell whether a connection that has opened may begin its handshake."""

    def stepped(self, connection: Connection) -> None:
        """The handshake went on."""

    def remember(self, peer_id: str, stamp: Stamp) -> None:
        """A peer's data directory was accepted."""

    def established(self, connection: Connection, peer_id: str) -> None:
        """The handshake succeeded."""

    def complain(self, connection: Connection, error: Exception) -> None:
        """The connection is closed, or was not opened, for this."""

    def refuses(self, connection: Connection, reason: Refusal) -> None:
        """This node does not want a peer that has proved itself."""

    def refused(self, connection: Connection) -> None:
        """A peer does not want this node."""

    def received(self, connection: Connection, peer_id: str, messages: list[Message]) -> None:
        """Messages came by an established connection."""

    def lost(self, connection: Connection) -> None:
        """The socket is closed."""


class Connection(asyncio.BufferedProtocol):
    """One socket, from its handshake to its end."""

    def __init__(self, owner: Owner, side: Dialler | Acceptor, host: str = "") -> None:
        """``host`` is where it came from; of one that this node opens, the socket says it."""
        self._owner = owner
        self._side: Dialler | Acceptor | None = side
        self.host = host
        self._opening = side.opening() if isinstance(side, Dialler) else None
        self.refusal: Refusal | None = None
        self.accepted: socket.socket | None = None
        """Of one that came in; there is no transport before TLS is agreed."""
        self.secret: bytes | None = None
        """The one that was proved."""
        self._seal: Seal | None = None
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

    @property
    def dialled(self) -> bool:
        """Whether this node opened it."""
        return self._opening is not None

    @property
    def subject(self) -> str:
        """Whose connection it is, for the log."""
        return self.peer_id or (self.claimed_id if self.dialled else "a stranger")

    @property
    def protection(self) -> str:
        """What keeps others from changing what is said here, for the log."""
        if self._has_tls:
            return "TLS"
        return "a MAC on each frame" if self._seal is not None else "nothing but checksums"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open: set it up and begin the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        self.host = self.host or str((transport.get_extra_info("peername") or ("",))[0])
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 2)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_LINK_MS)
        self._timer = self._owner.loop.call_later(HANDSHAKE_S, self.abort)
        if not self._owner.admit(self):
            self.abort()
        elif self._opening is not None:
            self._write(self._opening)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._reader.space()

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came: go on with the handshake, or hand whole messages to the owner."""
        try:
            messages = self._reader.all_received(nbytes) if self._side is None else self._received_at_first(nbytes)
        except PeerRefusedError as error:
            self.refusal = error.reason
            self._owner.refused(self)
            self.abort()
            return
        except ProtocolError as error:
            self._owner.complain(self, error)
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
        """The socket is closed, whoever closed it."""
        self._transport = self.accepted = None
        if self._timer is not None:
            self._timer.cancel()
        self._owner.lost(self)
        if not self.closed.done():
            self.closed.set_result(None)

    def write_frame(self, frame: Frame, pending_bytes_max: int) -> bool:
        """Write at once, or buffer; False when the connection is closed, or is closed for having more buffered."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > pending_bytes_max:
            # A peer that does not read is as good as gone; holding more for it would be without bound.
            logger.warning("closing the connection to %s: it does not read", self.peer_id)
            self.abort()
            return False
        header, body = frame.header(self._seal), frame.body
        if len(body) < _JOIN_BYTES_MAX:
            transport.write(header + body)
        else:
            transport.write(header)
            transport.write(body)
        return True

    def abort(self) -> None:
        """Close at once; what is buffered is lost."""
        if self._transport is not None:
            self._transport.abort()
        elif self.accepted is not None:
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close once what is buffered has left."""
        if self._transport is not None:
            self._transport.close()

    def _write(self, message: AnyMessage) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def _shake_hands(self, side: Dialler | Acceptor, message: AnyMessage) -> None:
        answer, established = side.receive(message)
        self._owner.stepped(self)
        if established is not None:
            self._check_certificate(established.peer_id)
        if answer is not None:
            self._write(answer)
        if isinstance(answer, PeerRefused):
            self._owner.refuses(self, answer.reason)
            self.close()
        if established is not None:
            self._side = None
            self._owner.remember(established.peer_id, established.stamp)
            if self._timer is not None:
                self._timer.cancel()
            self.peer_id, self.epoch = established.peer_id, established.epoch
            self.secret = established.secret
            self._reader.frame_bytes_max = self._owner.config.frame_bytes_max
            if established.keys is not None and not self._has_tls:
                self._seal = Seal(established.keys.sending)
                self._reader.seal = Seal(established.keys.receiving)
            self._owner.established(self, established.peer_id)

    @property
    def _has_tls(self) -> bool:
        return self._transport is not None and self._transport.get_extra_info("ssl_object") is not None

    def _check_certificate(self, peer_id: str) -> None:
        if self._transport is None or not self._has_tls:
            return
        certificate: dict[str, Any] = self._transport.get_extra_info("peercert") or {}
        names = {value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"}
        names |= {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
        if peer_id not in names:
            raise ProtocolError(f"the certificate does not name {peer_id}")


class TlsContexts(NamedTuple):
    """What sockets are wrapped with, by who opened them."""

    dialling: ssl.SSLContext
    listening: ssl.SSLContext


def tls_contexts(tls: TlsConfig | None) -> TlsContexts | None:
    """Read certificate, key and authority; raises OSError (:class:`ssl.SSLError` is one)."""
    if tls is None:
        return None
    return TlsContexts(_context(tls, ssl.PROTOCOL_TLS_CLIENT), _context(tls, ssl.PROTOCOL_TLS_SERVER))


def _context(tls: TlsConfig, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The handshake compares the certificate with the peer's node id.
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        # A key that needs a password is refused; without one given here OpenSSL would ask the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password="")
        context.load_verify_locations(tls.authority)
    except OSError as error:
        files = f"{tls.certificate}, {tls.key} and {tls.authority}"
        raise OSError(f"peers cannot be met with {files}: {error}") from error
    return context
