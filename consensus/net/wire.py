"""Frames on a peer connection: bytes in, messages out; no sockets.

Frame, little-endian: body length u32, CRC32C of the body u32, body (one message). Sealed frame: body length u32, tag of
16 bytes (:mod:`oncegate.consensus.net.sealing`), body; all frames behind a handshake that agreed on it are sealed. A
frame longer than its bound, a wrong checksum or tag, or an undecodable body is a :class:`ProtocolError`, and the
connection is closed. Read next: :mod:`oncegate.consensus.net.handshake`, :mod:`oncegate.consensus.net.transport`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import msgspec

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import AnyMessage, decode, encode
from oncegate.consensus.net.sealing import TAG_BYTES, Seal

_HEADER = struct.Struct("<II")
_SEALED_HEADER = struct.Struct(f"<I{TAG_BYTES}s")
_BUFFER_BYTES = 256 * 1024
_BUFFER_BYTES_KEPT = 4 * 1024 * 1024
"""A buffer that grew for a larger frame than this is given back; fresh memory for each frame would cost more."""


class Frame:
    """One encoded message; the same bytes serve every receiver, and a large body is not copied to join a header."""

    __slots__ = ("_header", "body")

    def __init__(self, message: AnyMessage) -> None:
        self.body: bytes = encode(message)
        self._header: bytes | None = None

    def header(self, seal: Seal | None) -> bytes:
        """What goes before the body; a sealed one is of one connection, and the next that connection must send."""
        if seal is not None:
            return _SEALED_HEADER.pack(len(self.body), seal.tag(self.body))
        if self._header is None:
            self._header = _HEADER.pack(len(self.body), google_crc32c.value(self.body))
        return self._header


def encode_frame(message: AnyMessage, seal: Seal | None = None) -> bytes:
    """Header and body of one message, joined."""
    frame = Frame(message)
    return frame.header(seal) + frame.body


class FrameReader:
    """Collects received bytes in one buffer that is filled in place, and cuts it into messages."""

    __slots__ = ("_end", "_view", "frame_bytes_max", "seal")

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max`` bounds a body; it may be raised, and ``seal`` be set, once the peer is known."""
        self.frame_bytes_max = frame_bytes_max
        self.seal: Seal | None = None
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._end = 0

    def space(self) -> memoryview:
        """Where to put the next bytes; never empty."""
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[AnyMessage]:
        """Take ``count`` bytes that were put into :meth:`space`; yield the messages they complete.

        To be read to its end before the next call. ``frame_bytes_max`` and ``seal`` may change between two messages:
        they hold for the bytes behind the last message of the handshake.

        Raises:
            ProtocolError: the stream cannot be read any further.
        """
        self._end += count
        view, end, start = self._view, self._end, 0
        while True:
            seal = self.seal
            header = _HEADER if seal is None else _SEALED_HEADER
            needed = header.size
            if end - start < needed:
                break
            length, proof = header.unpack_from(view, start)
            if length > self.frame_bytes_max:
                raise ProtocolError(f"a frame of {length} bytes, at most {self.frame_bytes_max} are allowed")
            needed += length
            if end - start < needed:
                break
            yield _message(view[start + header.size : start + needed], proof, seal)
            start += needed
        self._compact(start, needed)

    def all_received(self, count: int) -> list[AnyMessage]:
        """The same at once, for a connection whose ``frame_bytes_max`` and ``seal`` change no more."""
        view, seal = self._view, self.seal
        header = _HEADER if seal is None else _SEALED_HEADER
        if not self._end and count >= header.size:
            length, proof = header.unpack_from(view)
            if count == header.size + length and length <= self.frame_bytes_max and len(view) == _BUFFER_BYTES:
                # Mostly one message comes, and it alone.
                return [_message(view[header.size : count], proof, seal)]
        return list(self.received(count))

    def _compact(self, start: int, needed: int) -> None:
        rest = self._end - start
        capacity = len(self._view)
        if needed > capacity or (capacity > _BUFFER_BYTES_KEPT and max(needed, rest) <= _BUFFER_BYTES):
            fresh = memoryview(bytearray(max(needed, _BUFFER_BYTES)))
            fresh[:rest] = self._view[start : self._end]
            self._view = fresh
        elif start and rest:
            self._view[:rest] = bytes(self._view[start : self._end])
        self._end = rest


def _message(received: memoryview, proof: Any, seal: Seal | None) -> AnyMessage:
    # A message holds copies of what is in it, and nothing of the buffer: a sealed frame is not copied as a whole first.
    body: bytes | memoryview = received
    if seal is not None:
        seal.check(body, proof)
    else:
        body = bytes(received)
        if google_crc32c.value(body) != proof:
            raise ProtocolError("checksum of a frame differs")
    try:
        message: AnyMessage = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame does not decode: {error}") from error
    return message
