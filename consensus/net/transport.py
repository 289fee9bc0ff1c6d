"""All connections of one node: listening, and one live connection a peer.

Owns which connection is a peer's, and who is let in. A new connection replaces the old, which is closed before anything
is read from the new (repair B4). Who the peers are changes at run time. Knows nothing of what the messages mean.
Read next: :mod:`oncegate.consensus.net.connection` for one of them, :mod:`oncegate.consensus.net.dialling` for those
this node opens.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import Message, Refusal
from oncegate.consensus.net.connection import Connection, TlsContexts, tls_contexts
from oncegate.consensus.net.dialling import Dialling
from oncegate.consensus.net.handshake import REFUSALS, Acceptor, Credentials, Dialler, Stamp
from oncegate.consensus.net.known_peers import KnownPeers
from oncegate.consensus.net.listening import Listening
from oncegate.consensus.net.strangers import Complaints, Strangers, address_of
from oncegate.consensus.net.wire import Frame

logger = logging.getLogger(__name__)

_STOP_S = 0.5
_REFUSALS_MAX = 64


class Receiver(Protocol):
    """Who the transport serves; called from the event loop."""

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A connection is established, and replaces an earlier one."""

    def peer_down(self, peer_id: str) -> None:
        """The connection is lost."""

    def peer_said(self, peer_id: str, epoch: int, messages: list[Message]) -> None:
        """Messages of one read, in order."""


class _Welcome:
    """Whom the handshake lets in."""

    def __init__(self, members: Mapping[str, RaftMember]) -> None:
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
        self._members: dict[str, RaftMember] = {}
        self._welcome = _Welcome(self._members)
        self._credentials = Credentials(
            cluster_id=config.cluster_id,
            node_id=config.node_id,
            stamp=stamp,
            secrets=config.secrets,
            peer_ids=self._welcome,
            judge=self._judge,
        )
        self._known_peers = known_peers
        self._refused_by: set[tuple[str, Refusal, bool]] = set()
        self._refusals: set[tuple[str, Refusal]] = set()
        self._tls: TlsContexts | None = None
        self._listening: Listening | None = None
        self._strangers: Strangers[Connection] = Strangers()
        self._hosts: dict[str, str] = {}
        """Where peers that proved themselves came from, or were reached."""
        self._complaints = Complaints()
        self._peers: dict[str, Connection] = {}
        self._live: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._closing = False
        self._last_message: Message | None = None
        self._last_frame: Frame | None = None
        self._dialling = Dialling(
            config,
            self._members,
            begin=lambda peer_id: self._connection(Dialler(self._credentials, peer_id)),
            forget=self._unopened,
            connected=self._peers.__contains__,
            context=lambda: self._tls and self._tls.dialling,
        )

    async def start(self) -> None:
        """Listen on the configured address only, and begin to dial; raises OSError."""
        self._tls = tls_contexts(self.config.tls)
        listening = Listening(
            begin=self._came_in,
            forget=self._unopened,
            context=lambda: self._tls and self._tls.listening,
            clear_too=self.config.clear_too,
        )
        await listening.start(*self.config.listen)
        self._listening = listening
        self._dialling.dial()

    def renew(self, secrets: tuple[bytes, ...]) -> None:
        """Accept these secrets from now on, and read the certificates again; connections of other secrets are closed.

        Raises:
            ValueError, OSError: not usable; nothing has changed.
        """
        self.config.check_secrets(secrets)
        self._tls = tls_contexts(self.config.tls)
        self._credentials = replace(self._credentials, secrets=secrets)
        for connection in self._peers.values():
            if self._is_outdated(connection):
                connection.close()

    def _is_outdated(self, connection: Connection) -> bool:
        return connection.secret is not None and connection.secret not in self._credentials.secrets

    def set_members(self, members: Mapping[str, RaftMember], *, anyone: bool = False) -> None:
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
            self._refused_by = {said for said in self._refused_by if said[0] != peer_id}
            self._hosts.pop(peer_id, None)
            self._dialling.end(peer_id)
            connection = self._peers.get(peer_id)
            if connection is not None:
                logger.info("node %s closes the connection to %s: no member", self.config.node_id, peer_id)
                connection.close()
        if self._listening is not None and not self._closing:
            self._dialling.dial()

    async def stop(self) -> None:
        """Stop listening and dialling, let written bytes leave, close everything."""
        self._closing = True
        await self._dialling.stop()
        if self._listening is not None:
            self._listening.stop()
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
        if self._listening is not None:
            await self._listening.opened()

    def send(self, peer_id: str, message: Message) -> bool:
        """Write at once, or buffer what the socket does not take; returns False when there is no connection."""
        connection = self._peers.get(peer_id)
        if connection is None:
            return False
        frame = self._last_frame
        if frame is None or self._last_message is not message:
            # Followers mostly get the same append: it is encoded once.
            self._last_frame = frame = Frame(message)
            self._last_message = message
        return connection.write_frame(frame, 4 * self.config.frame_bytes_max)

    # -- called by connections -------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Tell whether a connection that has opened may begin its handshake."""
        return not self._closing

    def stepped(self, connection: Connection) -> None:
        """The handshake went on."""
        self._strangers.stepped(connection)

    def established(self, connection: Connection, peer_id: str) -> None:
        """The handshake succeeded."""
        self._strangers.leave(connection)
        if self._is_outdated(connection):
            connection.abort()  # It began before the secret was given up.
            return
        self._hosts[peer_id] = address_of(connection.host)
        old = self._peers.get(peer_id)
        self._peers[peer_id] = connection
        if old is not None:
            old.abort()
        logger.info("node %s is connected with %s by %s", self.config.node_id, peer_id, connection.protection)
        self._receiver.peer_up(peer_id, connection.epoch)

    def complain(self, connection: Connection, error: Exception) -> None:
        """A connection is closed, or was not opened, for this; told at a bounded rate."""
        line = self._complaints.line(connection.subject, f"{connection.host}: {error}", self.loop.time())
        if line is not None:
            logger.warning("node %s closes the connection to %s", self.config.node_id, line)

    def remember(self, peer_id: str, stamp: Stamp) -> None:
        """A peer's data directory was accepted."""
        member = self._members.get(peer_id)
        if member is not None:
            self._known_peers.remember(peer_id, member.since, stamp, self._members)
            self._refused_by = {said for said in self._refused_by if said[0] != peer_id}
            self._refusals = {said for said in self._refusals if said[0] != peer_id}

    def _judge(self, peer_id: str, stamp: Stamp) -> Refusal | None:
        member = self._members.get(peer_id)
        return None if member is None else self._known_peers.judge(peer_id, member.since, stamp)

    def refuses(self, connection: Connection, reason: Refusal) -> None:
        """This node does not want a peer that has proved itself; said once a peer and reason."""
        said = (connection.claimed_id, reason)
        if said in self._refusals:
            return
        if len(self._refusals) >= _REFUSALS_MAX:
            self._refusals.clear()
        self._refusals.add(said)
        level = logging.INFO if reason == "unknown" else logging.ERROR
        logger.log(level, "node %s refuses %r: %s", self.config.node_id, said[0], REFUSALS[reason])

    def refused(self, connection: Connection) -> None:
        """A peer does not want this node; said once a peer and reason, until that peer has been accepted.

        A dialler refuses in place of its proof, so whoever reaches the port may say this in a member's name: it is told
        with the address that it came from, and not as what the member said.
        """
        peer_id, reason = connection.claimed_id, connection.refusal
        if reason is None or peer_id not in self._members:
            return
        said = (peer_id, reason, connection.dialled)
        if said in self._refused_by:
            return
        self._refused_by.add(said)
        if connection.dialled:
            level, who = logging.INFO if reason == "unknown" else logging.ERROR, peer_id
        else:
            level, who = logging.WARNING, f"{connection.host}, which calls itself {peer_id} and has not proved it"
        logger.log(level, "node %s is refused by %s: %s", self.config.node_id, who, REFUSALS[reason])

    def received(self, connection: Connection, peer_id: str, messages: list[Message]) -> None:
        """Messages of an established connection; those of a replaced one are dropped."""
        if self._peers.get(peer_id) is connection:
            self._receiver.peer_said(peer_id, connection.epoch, messages)

    def lost(self, connection: Connection) -> None:
        """The socket is closed."""
        self._strangers.leave(connection)
        peer_id = connection.peer_id
        if peer_id is not None and self._peers.get(peer_id) is connection:
            del self._peers[peer_id]
            self._receiver.peer_down(peer_id)

    def _connection(self, side: Dialler | Acceptor, host: str = "") -> Connection:
        connection = Connection(self, side, host)
        self._live.add(connection)
        return connection

    def _unopened(self, connection: Connection, error: BaseException) -> None:
        self._live.discard(connection)
        if isinstance(error, ssl.SSLError):
            self.complain(connection, error)

    def _came_in(self, host: str) -> Connection:
        """Give a connection from ``host`` a place among those that have proved nothing."""
        connection = self._connection(Acceptor(self._credentials), host)
        members = {*self._hosts.values(), *(address_of(member.host) for member in self._members.values())}
        loser = self._strangers.enter(connection, host, members)
        if loser is not None:
            self.complain(loser, ProtocolError("others wait for its place"))
            loser.abort()
        return connection
