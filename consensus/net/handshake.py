"""Who is at the other end: identity, cluster, shared secret, protocol version; pure, no sockets.

Dialler: Hello -> <- Challenge, Proof -> <- Welcome. Both sides prove the secret by an HMAC-SHA256 over both fresh
nonces, so a recorded hello is worth nothing. Without a secret the MACs are empty, which the configuration
allows on loopback or under mutual TLS only. Both sides derive the same connection epoch from the nonces.
A peer that has proved itself and is not wanted is told so: Refused, in place of Proof or Welcome.

Of several secrets the acceptor proves its first, and the connection goes on with that one. So a secret is replaced
while nodes run: all accept the new one, then all send it, then nobody accepts the old one.

Versions: the connection speaks the highest that both do; the proofs cover what both said of them. Read next:
:mod:`oncegate.consensus.net.known_peers`, :mod:`oncegate.consensus.net.transport`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
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
    secrets: tuple[bytes, ...] = field(repr=False)
    """Those that are accepted; the first is the one that this node proves as acceptor."""
    peer_ids: Container[str]
    """Whom to talk with; may change."""
    judge: Callable[[str, Stamp], Refusal | None] = lambda peer_id, stamp: None
    """Whether this is the data directory that is known under the peer's id."""


class FrameKeys(NamedTuple):
    """The keys of the frames' MACs, one a direction."""

    sending: bytes
    receiving: bytes


@dataclass(frozen=True, slots=True)
class Established:
    """The handshake is over: who the peer is, and the epoch both sides know the connection by."""

    peer_id: str
    epoch: int
    stamp: Stamp
    version: int
    secret: bytes | None = field(repr=False)
    """The one that was proved."""
    keys: FrameKeys | None = field(repr=False)
    """None without a secret."""


def _version(hello: Hello, challenge: Challenge) -> int:
    return min(hello.version_max, challenge.version_max)


def _mac(secret: bytes, side: str, hello: Hello, challenge: Challenge) -> bytes:
    stamps = (_stamp(hello), _stamp(challenge))
    versions = hello.version, hello.version_max, challenge.version, challenge.version_max
    said = side, hello.cluster_id, hello.node_id, hello.target_id, hello.nonce, challenge.nonce, stamps, *versions
    return hmac.digest(secret, msgspec.msgpack.encode(said), "sha256")


def _proof(secret: bytes | None, side: str, hello: Hello, challenge: Challenge) -> bytes:
    return b"" if secret is None else _mac(secret, side, hello, challenge)


def _keys(secret: bytes | None, hello: Hello, challenge: Challenge) -> tuple[bytes, bytes] | None:
    """Return the keys of the dialler's frames and of the acceptor's."""
    if secret is None:
        return None
    return _mac(secret, "frames dial", hello, challenge), _mac(secret, "frames accept", hello, challenge)


def _stamp(said: Hello | Challenge) -> Stamp:
    return Stamp(said.node_uuid, said.incarnation, tuple(said.boots))


def _epoch(hello: Hello, challenge: Challenge) -> int:
    return int.from_bytes(hashlib.sha256(hello.nonce + challenge.nonce).digest()[:7], "little")


def _check(credentials: Credentials, said: Hello | Challenge) -> None:
    version = min(said.version_max, PROTOCOL_VERSION_MAX)
    if version < max(said.version, PROTOCOL_VERSION_MIN):
        raise ProtocolError(
            f"the peer speaks protocol versions {said.version} to {said.version_max}, "
            f"this node {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION_MAX}"
        )
    if said.cluster_id != credentials.cluster_id:
        raise ProtocolError("the peer belongs to another cluster")
    if len(said.nonce) != _NONCE_BYTES:
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
            PROTOCOL_VERSION_MIN,
            credentials.cluster_id,
            credentials.node_id,
            credentials.stamp.node_uuid,
            target_id,
            secrets.token_bytes(_NONCE_BYTES),
            credentials.stamp.incarnation,
            list(credentials.stamp.boots),
            PROTOCOL_VERSION_MAX,
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
        mine, hello = self._credentials, self._hello
        match message:
            case Challenge() as challenge if self._established is None:
                _check(mine, challenge)
                if challenge.node_id != self._target_id:
                    raise ProtocolError(f"the peer is {challenge.node_id!r}, not {self._target_id}")
                for secret in mine.secrets or (None,):
                    if hmac.compare_digest(challenge.mac, _proof(secret, "accept", hello, challenge)):
                        break
                else:
                    raise ProtocolError("the peer does not know the secret")
                stamp = _stamp(challenge)
                refusal = _refusal(mine, self._target_id, stamp)
                if refusal is not None:
                    return PeerRefused(refusal), None
                keys = _keys(secret, hello, challenge)
                self._established = Established(
                    self._target_id,
                    _epoch(hello, challenge),
                    stamp,
                    _version(hello, challenge),
                    secret,
                    None if keys is None else FrameKeys(sending=keys[0], receiving=keys[1]),
                )
                return Proof(_proof(secret, "dial", hello, challenge)), None
            case Welcome() if self._established is not None:
                return None, self._established
            case PeerRefused(reason) if self._established is not None:  # in place of a welcome: it knows the secret
                raise PeerRefusedError(reason)
            case _:
                raise ProtocolError("unexpected message in the handshake")


class Acceptor:
    """The side that was called."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._secret = credentials.secrets[0] if credentials.secrets else None
        self._heard: tuple[Hello, Challenge] | None = None

    @property
    def peer_id(self) -> str:
        """Who the caller says it is."""
        return self._heard[0].node_id if self._heard is not None else ""

    def receive(self, message: object) -> tuple[Handshake | None, Established | None]:
        """Take one message; returns what to answer, and the result once there is one; raises ProtocolError."""
        mine = self._credentials
        match message:
            case Hello() as hello if self._heard is None:
                _check(mine, hello)
                if hello.target_id != mine.node_id:
                    raise ProtocolError(f"the peer wants {hello.target_id!r}")
                stamp = mine.stamp
                challenge = Challenge(
                    PROTOCOL_VERSION_MIN,
                    mine.cluster_id,
                    mine.node_id,
                    stamp.node_uuid,
                    secrets.token_bytes(_NONCE_BYTES),
                    b"",
                    stamp.incarnation,
                    list(stamp.boots),
                    PROTOCOL_VERSION_MAX,
                )
                self._heard = hello, challenge
                mac = _proof(self._secret, "accept", hello, challenge)
                return msgspec.structs.replace(challenge, mac=mac), None
            case Proof(mac) if self._heard is not None:
                hello, challenge = self._heard
                if not hmac.compare_digest(mac, _proof(self._secret, "dial", hello, challenge)):
                    raise ProtocolError("the peer does not know the secret")
                stamp = _stamp(hello)
                refusal = _refusal(mine, hello.node_id, stamp)
                if refusal is not None:
                    return PeerRefused(refusal), None
                keys = _keys(self._secret, hello, challenge)
                return Welcome(), Established(
                    hello.node_id,
                    _epoch(hello, challenge),
                    stamp,
                    _version(hello, challenge),
                    self._secret,
                    None if keys is None else FrameKeys(sending=keys[1], receiving=keys[0]),
                )
            case PeerRefused(reason) if self._heard is not None:
                raise PeerRefusedError(reason)
            case _:
                raise ProtocolError("unexpected message in the handshake")
