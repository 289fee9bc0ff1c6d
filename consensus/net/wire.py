"""Frames on a peer connection: bytes in, messages out; no sockets.

Frame, little-endian: body length u32, CRC32C of the body u32, body (one message). A frame longer than its
bound, a wrong checksum or an undecodable body is a :class:`ProtocolError`, and the connection is closed.
Read next: :mod:`oncegate.consensus.net.handshake`, :mod:`oncegate.consensus.net.transport`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import google_crc32c
import msgspec

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import AnyMessage, decode, encode

_HEADER = struct.Struct("<II")
_BUFFER_BYTES = 256 * 1024
_BUFFER_BYTES_KEPT = 4 * 1024 * 1024
"""A buffer that grew for a larger frame than this is given back; fresh memory for each frame would cost more."""


def encode_frame(message: AnyMessage) -> tuple[bytes, bytes]:
    """Header and body of one message, not joined: a large body is not copied; the same bytes serve every receiver."""
    body = encode(message)
    return _HEADER.pack(len(body), google_crc32c.value(body)), body


class FrameReader:
    """Collects received bytes in one buffer that is filled in place, and cuts it into messages."""

    __slots__ = ("_end", "_view", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        """``frame_bytes_max`` bounds a body; it may be raised once the peer is known."""
        self.frame_bytes_max = frame_bytes_max
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._end = 0

    def space(self) -> memoryview:
        """Where to put the next bytes; never empty."""
        return self._view[self._end :]

    def received(self, count: int) -> Iterator[AnyMessage]:
        """Take ``count`` bytes that were put into :meth:`space`; yield the messages they complete.

        To be read to its end before the next call. ``frame_bytes_max`` may change between two messages: the bytes
        behind the last message of the handshake are bound by the larger limit.

        Raises:
            ProtocolError: the stream cannot be read any further.
        """
        self._end += count
        view, end, start, needed = self._view, self._end, 0, _HEADER.size
        while end - start >= _HEADER.size:
            length, crc = _HEADER.unpack_from(view, start)
            if length > self.frame_bytes_max:
                raise ProtocolError(f"a frame of {length} bytes, at most {self.frame_bytes_max} are allowed")
            needed = _HEADER.size + length
            if end - start < needed:
                break
            body = bytes(view[start + _HEADER.size : start + needed])
            yield _message(body, crc)
            start += needed
            needed = _HEADER.size
        self._compact(start, needed)

    def all_received(self, count: int) -> list[AnyMessage]:
        """The same at once, for a connection whose ``frame_bytes_max`` changes no more."""
        view = self._view
        if not self._end and count >= _HEADER.size:
            length, crc = _HEADER.unpack_from(view)
            if count == _HEADER.size + length and length <= self.frame_bytes_max and len(view) == _BUFFER_BYTES:
                # Mostly one message comes, and it alone.
                return [_message(bytes(view[_HEADER.size : count]), crc)]
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


def _message(body: bytes, crc: int) -> AnyMessage:
    if google_crc32c.value(body) != crc:
        raise ProtocolError("checksum of a frame differs")
    try:
        message: AnyMessage = decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a frame does not decode: {error}") from error
    return message
