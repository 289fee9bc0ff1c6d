"""What a client and a bare replica say to each other: msgpack arrays behind a 32-bit length, nothing checked.

Only for the tests and benches, on loopback. A :class:`Propose` is one entry of the log, whatever number of commands
it carries; a command begins with its id (u64, little-endian) and is filled up to its size.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import msgspec

from oncegate.consensus.histogram import Histogram

_LENGTH: Final = struct.Struct("<I")
ID: Final = struct.Struct("<Q")


class _Frame(msgspec.Struct, array_like=True, frozen=True, gc=False):
    pass


class Propose(_Frame, frozen=True, tag=1):
    """Put these commands into the log, as one entry."""

    number: int
    commands: list[bytes]


class Read(_Frame, frozen=True, tag=2):
    """A linearizable read: answered with an index that this node has applied."""

    number: int


class Ask(_Frame, frozen=True, tag=3):
    """Anything else, see :mod:`tests.faults.harness.replica_process`."""

    number: int
    what: str
    argument: Any = None


class Done(_Frame, frozen=True, tag=11):
    """A command's position in the log, or a read's applied index."""

    number: int
    index: int


class Refused(_Frame, frozen=True, tag=12):
    """The error of consensus."""

    number: int
    code: str
    outcome: str


class Said(_Frame, frozen=True, tag=13):
    """The answer to an :class:`Ask`."""

    number: int
    body: Any


Request: TypeAlias = Propose | Read | Ask
Answer: TypeAlias = Done | Refused | Said


def _plain(value: Any) -> list[int]:
    if isinstance(value, Histogram):
        return value.counts
    raise NotImplementedError(f"no {type(value).__name__} travels")


encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode
decode: Final = msgspec.msgpack.Decoder(Request | Answer).decode
decode_entry: Final = msgspec.msgpack.Decoder(list[bytes]).decode


def command(number: int, size: int) -> bytes:
    """Return the command with this id, ``size`` bytes long."""
    return ID.pack(number).ljust(size, b".")


class Frames(asyncio.Protocol):
    """One connection: frames out, frames in."""

    def __init__(self, on_frame: Callable[[Frames, Any], None], on_lost: Callable[[Frames], None]) -> None:
        self._on_frame, self._on_lost = on_frame, on_lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_lost(self)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if end > len(buffer):
                break
            frame = decode(bytes(memoryview(buffer)[start + _LENGTH.size : end]))
            start = end
            self._on_frame(self, frame)
        del buffer[:start]

    def send(self, frame: Request | Answer) -> None:
        """Send one frame; nothing happens on a closed connection."""
        if self._transport is not None:
            body = encode(frame)
            self._transport.write(_LENGTH.pack(len(body)) + body)

    def abort(self) -> None:
        """Close without sending what is left."""
        if self._transport is not None:
            self._transport.abort()
