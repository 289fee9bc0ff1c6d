"""Who is at the other end: identity, cluster, shared secret; pure, no sockets.

Dialler: Hello -> <- Challenge, Proof -> <- Welcome. Both sides prove the secret by an HMAC-SHA256 over both fresh
nonces, so a recorded hello is worth nothing. Without a secret the MACs are empty, which the configuration
allows on loopback or under mutual TLS only. Both sides derive the same connection epoch from the nonces.
Read next: :mod:`consensus.transport`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Container
from dataclasses import dataclass

import msgspec

from consensus.errors import ProtocolError
from consensus.messages import PROTOCOL_VERSION, Challenge, Handshake, Hello, Proof, Welcome

HANDSHAKE_FRAME_BYTES_MAX = 2048
_NONCE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What this node says of itself and knows of the cluster."""

    cluster_id: str
    node_id: str
    node_uuid: str
    secret: bytes | None
    peer_ids: Container[str]


@dataclass(frozen=True, slots=True)
class Established:
    """The handshake is over: who the peer is, and the epoch both sides know the connection by."""

    peer_id: str
    epoch: int


def _mac(secret: bytes | None, side: str, cluster_id: str, hello: Hello, nonce: bytes) -> bytes:
    if secret is None:
        return b""
    said = msgspec.msgpack.encode((side, cluster_id, hello.node_id, hello.target_id, hello.nonce, nonce))
    return hmac.digest(secret, said, "sha256")


def _epoch(hello: Hello, nonce: bytes) -> int:
    return int.from_bytes(hashlib.sha256(hello.nonce + nonce).digest()[:7], "little")


def _check(credentials: Credentials, version: int, cluster_id: str, node_id: str, nonce: bytes) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(f"protocol version {version}, not {PROTOCOL_VERSION}")
    if cluster_id != credentials.cluster_id:
        raise ProtocolError("the peer belongs to another cluster")
    if node_id not in credentials.peer_ids:
        raise ProtocolError("the peer is not a member of this cluster")
    if len(nonce) != _NONCE_BYTES:
        raise ProtocolError("a nonce has 16 bytes")


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
            credentials.node_uuid,
            target_id,
            secrets.token_bytes(_NONCE_BYTES),
        )

    def opening(self) -> Hello:
        """What to send first."""
        return self._hello

    def receive(self, message: object) -> tuple[Handshake | None, Established | None]:
        """Take one message; returns what to answer, and the result once there is one; raises ProtocolError."""
        mine = self._credentials
        match message:
            case Challenge(version, cluster_id, node_id, _, nonce, mac) if self._established is None:
                _check(mine, version, cluster_id, node_id, nonce)
                if node_id != self._target_id:
                    raise ProtocolError(f"the peer is {node_id}, not {self._target_id}")
                if not hmac.compare_digest(mac, _mac(mine.secret, "accept", cluster_id, self._hello, nonce)):
                    raise ProtocolError("the peer does not know the secret")
                self._established = Established(node_id, _epoch(self._hello, nonce))
                return Proof(_mac(mine.secret, "dial", cluster_id, self._hello, nonce)), None
            case Welcome() if self._established is not None:
                return None, self._established
            case _:
                raise ProtocolError("unexpected message in the handshake")


class Acceptor:
    """The side that was called."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._hello: Hello | None = None
        self._nonce = secrets.token_bytes(_NONCE_BYTES)

    def receive(self, message: object) -> tuple[Handshake | None, Established | None]:
        """Take one message; returns what to answer, and the result once there is one; raises ProtocolError."""
        mine = self._credentials
        match message:
            case Hello() as hello if self._hello is None:
                _check(mine, hello.version, hello.cluster_id, hello.node_id, hello.nonce)
                if hello.target_id != mine.node_id:
                    raise ProtocolError(f"the peer wants {hello.target_id}")
                self._hello = hello
                mac = _mac(mine.secret, "accept", mine.cluster_id, hello, self._nonce)
                answer = Challenge(PROTOCOL_VERSION, mine.cluster_id, mine.node_id, mine.node_uuid, self._nonce, mac)
                return answer, None
            case Proof(mac) if self._hello is not None:
                if not hmac.compare_digest(mac, _mac(mine.secret, "dial", mine.cluster_id, self._hello, self._nonce)):
                    raise ProtocolError("the peer does not know the secret")
                return Welcome(), Established(self._hello.node_id, _epoch(self._hello, self._nonce))
            case _:
                raise ProtocolError("unexpected message in the handshake")
