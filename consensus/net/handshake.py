"""Who is at the other end: identity, cluster, shared secret; pure, no sockets.

Dialler: Hello -> <- Challenge, Proof -> <- Welcome. Both sides prove the secret by an HMAC-SHA256 over both fresh
nonces, so a recorded hello is worth nothing. Without a secret the MACs are empty, which the configuration
allows on loopback or under mutual TLS only. Both sides derive the same connection epoch from the nonces.
A peer that has proved itself and is not wanted is told so: Refused, in place of Proof or Welcome.
Read next: :mod:`oncegate.consensus.net.known_peers`, :mod:`oncegate.consensus.net.transport`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Final

import msgspec

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import (
    PROTOCOL_VERSION,
    Challenge,
    Handshake,
    Hello,
    PeerRefused,
    Proof,
    Refusal,
    Welcome,
)

HANDSHAKE_FRAME_BYTES_MAX = 2048
_NONCE_BYTES = 16

REFUSALS: Final[dict[Refusal, str]] = {
    "unknown": "it is no member of the configuration: it was removed, or is still to be added",
    "wiped": "its data directory is not the one known under its id: remove the member, then add it again",
    "cloned": "its data directory is a copy, or an old one restored: remove the member, then add it with an empty one",
}


class PeerRefusedError(ProtocolError):
    """The peer does not want this node; ``reason`` says why."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"the peer refuses this node: {REFUSALS[reason]}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a node says of its data directory; see :class:`oncegate.consensus.log.identity.DirectoryIdentity`."""

    node_uuid: str
    incarnation: int
    boots: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What this node says of itself and knows of the cluster."""

    cluster_id: str
    node_id: str
    stamp: Stamp
    secret: bytes | None
    peer_ids: Container[str]
    """Whom to talk with; may change."""
    judge: Callable[[str, Stamp], Refusal | None] = lambda peer_id, stamp: None
    """Whether this is the data directory that is known under the peer's id."""


@dataclass(frozen=True, slots=True)
class Established:
    """The handshake is over: who the peer is, and the epoch both sides know the connection by."""

    peer_id: str
    epoch: int
    stamp: Stamp


def _mac(secret: bytes | None, side: str, cluster_id: str, hello: Hello, nonce: bytes, acceptor: Stamp) -> bytes:
    if secret is None:
        return b""
    stamps = (_stamp(hello), acceptor)
    said = msgspec.msgpack.encode((side, cluster_id, hello.node_id, hello.target_id, hello.nonce, nonce, stamps))
    return hmac.digest(secret, said, "sha256")


def _stamp(said: Hello | Challenge) -> Stamp:
    return Stamp(said.node_uuid, said.incarnation, tuple(said.boots))


def _epoch(hello: Hello, nonce: bytes) -> int:
    return int.from_bytes(hashlib.sha256(hello.nonce + nonce).digest()[:7], "little")


def _check(credentials: Credentials, version: int, cluster_id: str, nonce: bytes) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, not {PROTOCOL_VERSION}")
    if cluster_id != credentials.cluster_id:
        raise ProtocolError("the peer belongs to another cluster")
    if len(nonce) != _NONCE_BYTES:
        raise ProtocolError("a nonce has 16 bytes")


def _refusal(credentials: Credentials, peer_id: str, stamp: Stamp) -> Refusal | None:
    if peer_id not in credentials.peer_ids:
        return "unknown"
    return credentials.judge(peer_id, stamp)


class Dialler:
    """The side that opened the connection."""

    def __init__(self, credentials: Credentials, target_id: str) -> None:
        self._credentials = credentials
        self._target_id = target_id
        self._established: Established | None = None
        self._hello = Hello(
            PROTOCOL_VERSION,
            credentials.cluster_id,
            credentials.node_id,
            credentials.stamp.node_uuid,
            target_id,
            secrets.token_bytes(_NONCE_BYTES),
            credentials.stamp.incarnation,
            list(credentials.stamp.boots),
        )

    @property
    def peer_id(self) -> str:
        """Who was called."""
        return self._target_id

    def opening(self) -> Hello:
        """What to send first."""
        return self._hello

    def receive(self, message: object) -> tuple[Handshake | None, Established | None]:
        """Take one message; returns what to answer, and the result once there is one; raises ProtocolError."""
        mine = self._credentials
        match message:
            case Challenge(version, cluster_id, node_id, _, nonce, mac) as challenge if self._established is None:
                _check(mine, version, cluster_id, nonce)
                stamp = _stamp(challenge)
                if node_id != self._target_id:
                    raise ProtocolError(f"the peer is {node_id}, not {self._target_id}")
                if not hmac.compare_digest(mac, _mac(mine.secret, "accept", cluster_id, self._hello, nonce, stamp)):
                    raise ProtocolError("the peer does not know the secret")
                refusal = _refusal(mine, node_id, stamp)
                if refusal is not None:
                    return PeerRefused(refusal), None
                self._established = Established(node_id, _epoch(self._hello, nonce), stamp)
                return Proof(_mac(mine.secret, "dial", cluster_id, self._hello, nonce, stamp)), None
            case Welcome() if self._established is not None:
                return None, self._established
            case PeerRefused(reason):
                raise PeerRefusedError(reason)
            case _:
                raise ProtocolError("unexpected message in the handshake")


class Acceptor:
    """The side that was called."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._hello: Hello | None = None
        self._nonce = secrets.token_bytes(_NONCE_BYTES)

    @property
    def peer_id(self) -> str:
        """Who the caller says it is."""
        return self._hello.node_id if self._hello is not None else ""

    def receive(self, message: object) -> tuple[Handshake | None, Established | None]:
        """Take one message; returns what to answer, and the result once there is one; raises ProtocolError."""
        mine = self._credentials
        match message:
            case Hello() as hello if self._hello is None:
                _check(mine, hello.version, hello.cluster_id, hello.nonce)
                if hello.target_id != mine.node_id:
                    raise ProtocolError(f"the peer wants {hello.target_id}")
                self._hello = hello
                stamp = mine.stamp
                mac = _mac(mine.secret, "accept", mine.cluster_id, hello, self._nonce, stamp)
                answer = Challenge(
                    PROTOCOL_VERSION,
                    mine.cluster_id,
                    mine.node_id,
                    stamp.node_uuid,
                    self._nonce,
                    mac,
                    stamp.incarnation,
                    list(stamp.boots),
                )
                return answer, None
            case Proof(mac) if self._hello is not None:
                hello, stamp = self._hello, _stamp(self._hello)
                expected = _mac(mine.secret, "dial", mine.cluster_id, hello, self._nonce, mine.stamp)
                if not hmac.compare_digest(mac, expected):
                    raise ProtocolError("the peer does not know the secret")
                refusal = _refusal(mine, hello.node_id, stamp)
                if refusal is not None:
                    return PeerRefused(refusal), None
                return Welcome(), Established(hello.node_id, _epoch(hello, self._nonce), stamp)
            case PeerRefused(reason) if self._hello is not None:
                raise PeerRefusedError(reason)
            case _:
                raise ProtocolError("unexpected message in the handshake")
