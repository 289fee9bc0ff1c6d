"""Somebody on the path: frames between nodes that are changed, sent again or put in another order; no sockets.

What is changed has a right checksum again, where frames have one. A node must notice, and close the connection. Without
a secret between the nodes it could not: :class:`~oncegate.proof.check.cluster.CheckCluster` gives them one. The layouts
are those of :mod:`oncegate.consensus.net.wire`: of a frame of the handshake, and of a sealed one; or TLS records.
"""

from __future__ import annotations

import random
import struct

import google_crc32c

from oncegate.consensus.net.sealing import TAG_BYTES

_HEADER = struct.Struct("<II")
_SEALED_HEADER_BYTES = 4 + TAG_BYTES
_TLS_HEADER_BYTES = 5
_HANDSHAKE_RECORD = b"\x16\x03"
_KEPT = 32
"""Frames that may be sent again."""


def is_tls(first: bytes) -> bool:
    """Whether a connection that begins with these bytes, at least three, speaks TLS."""
    # The length of a frame of the handshake has a zero third byte.
    return first.startswith(_HANDSHAKE_RECORD) and first[2:3] not in (b"", b"\0")


class Tamperer:
    """What passes one direction of one connection, frame by frame."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._rest = b""
        self._sealed = False
        self._tls: bool | None = None
        self._seen: list[bytes] = []
        self.forged = 0
        """Frames that were changed, sent again or put in another order."""

    def passed(self, data: bytes, share: float) -> bytes:
        """Return what to pass on for these bytes, ``share`` of the frames forged; the rest of a frame comes later."""
        out: list[bytes] = []
        for frame in self._cut(data):
            self._seen = [*self._seen, frame][-_KEPT:]
            if self._rng.random() >= share:
                out.append(frame)
                continue
            self.forged += 1
            how = self._rng.choice(("changed", "again", "swapped"))
            if how == "changed" and len(frame) > self._header_bytes:
                out.append(self._changed(frame))
            elif how == "swapped" and out and out[-1] != frame:
                out.insert(len(out) - 1, frame)
            else:
                out += [frame, self._rng.choice(self._seen)]
        return b"".join(out)

    def _cut(self, data: bytes) -> list[bytes]:
        self._rest += data
        if self._tls is None and len(self._rest) >= _HEADER.size:
            self._tls = is_tls(self._rest)
        frames, at = [], 0
        while (size := self._size(at)) and len(self._rest) - at >= size:
            frames.append(self._rest[at : at + size])
            at += size
        self._rest = self._rest[at:]
        return frames

    def _size(self, at: int) -> int:
        """Return how long the frame is that begins there; 0: its header is not there yet."""
        if self._tls:
            said = self._rest[at + 3 : at + _TLS_HEADER_BYTES]
            return _TLS_HEADER_BYTES + int.from_bytes(said) if len(said) == 2 else 0
        if len(self._rest) - at < _HEADER.size:
            return 0
        length, crc = _HEADER.unpack_from(self._rest, at)
        if not self._sealed:
            end = at + _HEADER.size + length
            self._sealed = len(self._rest) >= end and google_crc32c.value(self._rest[end - length : end]) != crc
        return int(length) + (_SEALED_HEADER_BYTES if self._sealed else _HEADER.size)

    @property
    def _header_bytes(self) -> int:
        if self._tls:
            return _TLS_HEADER_BYTES
        return _SEALED_HEADER_BYTES if self._sealed else _HEADER.size

    def _changed(self, frame: bytes) -> bytes:
        at = self._header_bytes
        body = bytearray(frame[at:])
        body[self._rng.randrange(len(body))] ^= 1 << self._rng.randrange(8)
        head = frame[:at] if self._sealed or self._tls else _HEADER.pack(len(body), google_crc32c.value(bytes(body)))
        return head + bytes(body)
