"""What peers say to each other, and its encoding.

msgpack arrays with an integer tag in front (msgspec structs), so a message is data and nothing else. Any
message that is not one of these fails to decode. Terms, indexes and epochs are integers below 2^64.
Read next: :mod:`oncegate.consensus.net.wire`.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import msgspec

from oncegate.consensus.ports import SnapshotManifest

PROTOCOL_VERSION_MIN = 3
PROTOCOL_VERSION_MAX = 3
"""What this node speaks. 1: frames carry a checksum. 2: frames carry a MAC where there is a secret and no TLS
(:mod:`oncegate.consensus.net.sealing`), and the handshake proves what each side said of its versions."""

Refusal: TypeAlias = Literal["unknown", "wiped", "cloned"]
"""Not in the refusing node's configuration; another data directory than it remembers; not the latest copy of it."""


class _Message(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class Append(_Message, frozen=True, tag=1):
    """Entries and commit index of a leader; without entries a heartbeat (Raft §5.3)."""

    term: int
    prev_index: int
    prev_term: int
    commit: int
    entries: list[tuple[bytes, int, int]]


class Ack(_Message, frozen=True, tag=2):
    """Answer to an append: flushed up to ``index``, or, refused, send again from ``index``."""

    term: int
    epoch: int
    """Of the connection by which the append came."""
    success: bool
    index: int
    prev_index: int
    """Of the append that is answered, so that a late refusal is told from a current one."""
    full: bool = False
    """The disk has no room for the entries: none was taken, ``index`` is what matched before them."""
    wanted_from: int = 0
    """The state here is damaged: a snapshot is wanted that stands at this entry or a later one. 0: none is."""


class VoteRequest(_Message, frozen=True, tag=3):
    """Raft §5.2."""

    term: int
    last_index: int
    last_term: int


class VoteReply(_Message, frozen=True, tag=4):
    """A vote; a refusal is silence."""

    term: int


class PreVoteRequest(_Message, frozen=True, tag=5):
    """Would you vote for me in ``term``? Changes nothing at the receiver (Raft thesis §9.6)."""

    term: int
    attempt: int
    last_index: int
    last_term: int


class PreVoteReply(_Message, frozen=True, tag=6):
    """``term`` is the one the replier is in."""

    term: int
    attempt: int
    granted: bool


class ReadProbe(_Message, frozen=True, tag=7):
    """Is ``term`` still the latest you know? (ReadIndex, Raft thesis §6.4)."""

    term: int
    number: int


class ReadProbeAck(_Message, frozen=True, tag=8):
    """It is."""

    term: int
    number: int


class ReadRequest(_Message, frozen=True, tag=9):
    """A follower asks the leader for a read point."""

    number: int


class ReadReply(_Message, frozen=True, tag=10):
    """The read point, or None while the leader is not ready or no leader."""

    number: int
    index: int | None


class CallRequest(_Message, frozen=True, tag=11):
    """Opaque request to the node's owner."""

    number: int
    payload: bytes


class CallReply(_Message, frozen=True, tag=12):
    """Its answer, or why there is none."""

    number: int
    payload: bytes | None
    failure: str | None


class TimeoutNow(_Message, frozen=True, tag=13):
    """The leader of ``term`` hands over: campaign now, without pre-vote (Raft thesis §3.10)."""

    term: int


class SnapshotVerdict(enum.IntEnum):
    """What a follower says of a snapshot."""

    NEXT = 1
    """Everything before the position was written; go on there."""
    REJECTED = 2
    """A chunk did not fit or its checksum differs; nothing of it was kept. Send again from the position."""
    HAVE = 3
    """The state here is as new: entry ``index`` is committed."""
    INSTALLED = 4
    """The state and the log begin behind entry ``index`` now, durably."""
    FAILED = 5
    """It could not be written, or was not whole; nothing of it was kept."""


class SnapshotOffer(_Message, frozen=True, tag=30):
    """A leader's answer to a follower whose next entry is gone (Raft §7); also asks where to go on."""

    term: int
    transfer: int
    """Names the copy whose bytes are sent; never used for another one."""
    manifest: SnapshotManifest


class SnapshotChunk(_Message, frozen=True, tag=31):
    """The next bytes of one file of a snapshot."""

    term: int
    transfer: int
    file: int
    offset: int
    crc: int
    """CRC32C over transfer, file, offset and data, see :mod:`oncegate.consensus.snapshot.snapshot_send`."""
    data: bytes


class SnapshotAnswer(_Message, frozen=True, tag=32):
    """Answer to an offer, a chunk, or the whole."""

    term: int
    epoch: int
    """Of the connection by which the leader's message came."""
    transfer: int
    verdict: SnapshotVerdict
    file: int = 0
    offset: int = 0
    index: int = 0


class Hello(_Message, frozen=True, tag=20):
    """First frame of the dialling side."""

    version: int
    """The lowest that it speaks."""
    cluster_id: str
    node_id: str
    node_uuid: str
    target_id: str
    nonce: bytes
    incarnation: int
    boots: list[int]
    version_max: int
    """The highest that it speaks."""


class Challenge(_Message, frozen=True, tag=21):
    """Answer of the accepting side, with its own proof of the secret."""

    version: int
    cluster_id: str
    node_id: str
    node_uuid: str
    nonce: bytes
    mac: bytes
    incarnation: int
    boots: list[int]
    version_max: int


class Proof(_Message, frozen=True, tag=22):
    """The dialling side's proof of the secret, over both nonces."""

    mac: bytes


class Welcome(_Message, frozen=True, tag=23):
    """The connection is up."""


class PeerRefused(_Message, frozen=True, tag=24):
    """There will be no connection, and why: in place of a proof or a welcome, the last message."""

    reason: Refusal


Handshake: TypeAlias = Hello | Challenge | Proof | Welcome | PeerRefused
SnapshotMessage: TypeAlias = SnapshotOffer | SnapshotChunk | SnapshotAnswer
ElectionMessage: TypeAlias = VoteRequest | VoteReply | PreVoteRequest | PreVoteReply | TimeoutNow
RaftMessage: TypeAlias = Append | Ack | ElectionMessage | SnapshotMessage
ReadMessage: TypeAlias = ReadProbe | ReadProbeAck | ReadRequest | ReadReply
CallMessage: TypeAlias = CallRequest | CallReply
Message: TypeAlias = RaftMessage | ReadMessage | CallMessage
AnyMessage: TypeAlias = Message | Handshake

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyMessage).decode
