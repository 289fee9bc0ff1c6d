"""TCP proxies between peers: what each direction of a pair does to the bytes that pass.

Owns sockets and pumps. :mod:`oncegate.proof.check.links` knows who is behind which port, and decides when a direction
misbehaves.

Each direction of a pair is a :class:`Way` with its own faults:

- ``opened`` cleared: bytes wait in the proxy and arrive when the way is opened again, late. Connections stay open.
- ``losing``: bytes vanish. Connections stay open; the ones that lost bytes are reset when the way is opened again.
- ``loss``: the share of reads that is lost; TCP would repeat them, so the connection is reset at once.
- ``forgery``: the share of frames that somebody on the path changes, sends again or swaps.
- ``delay_s``, ``jitter_s``: each read is passed on that much later, in order. ``bytes_per_s``: no faster than this.

The end of a connection travels like its bytes: it is held and lost like them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import Hello
from oncegate.consensus.net.handshake import HANDSHAKE_FRAME_BYTES_MAX
from oncegate.consensus.net.wire import FrameReader
from oncegate.proof.check.tampering import Tamperer, is_tls

Address = tuple[str, int]
READ_BYTES: Final = 64 * 1024
_QUEUE_READS: Final = 64
_HELLO_S: Final = 3.0
_ABORT: Final = struct.pack("ii", 1, 0)


@dataclass
class Way:
    """One direction of one pair."""

    source: str
    target: str
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    losing: bool = False
    loss: float = 0.0
    forgery: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    bytes_passed: int = 0
    frames_forged: int = 0


class ProxiedConnection:
    """Two sockets and the two pumps between them."""

    def __init__(self, rng: random.Random, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._rng = rng
        self.writers = (near, far)
        self.lost_bytes = False
        self.ended = asyncio.Event()

    def abort(self) -> None:
        """Reset both sockets."""
        self.ended.set()
        for writer in self.writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, first: bytes) -> None:
        """Pass on ``first`` and what comes after it, as the way allows; ends with the connection."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_READS)
        tamperer = Tamperer(self._rng) if way.forgery else None

        async def collect() -> None:
            data = first or await read()
            while data:
                await queue.put((loop.time() + self._late(way), data))
                data = await read()
            await queue.put((loop.time() + self._late(way), b""))

        async def read() -> bytes:
            try:
                return await reader.read(READ_BYTES)
            except OSError:
                return b""

        collecting = loop.create_task(collect())
        try:
            while True:
                due, data = await queue.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                if way.loss and self._rng.random() < way.loss:
                    return
                if way.losing:
                    self.lost_bytes = True
                    if data:
                        continue
                    await asyncio.Event().wait()  # The end is lost too; heal() resets this connection.
                await way.opened.wait()
                if not data:
                    return
                if way.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / way.bytes_per_s)
                if tamperer is not None:
                    before = tamperer.forged
                    data = tamperer.passed(data, way.forgery)
                    way.frames_forged += tamperer.forged - before
                elif way.forgery:
                    return  # Where its frames begin is not known: the next connection is told from its first byte.
                way.bytes_passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            collecting.cancel()
            self.abort()

    def _late(self, way: Way) -> float:
        return way.delay_s + self._rng.uniform(0, way.jitter_s)


class Proxy:
    """A listener in front of ``target``.

    ``ways`` returns both ways of a dialler's connection, or None: refuse it. ``node_of`` returns who dials from a port.
    """

    def __init__(
        self,
        target: Address,
        ways: Callable[[str], tuple[Way, Way] | None],
        node_of: Callable[[int], str | None],
        rng: random.Random,
    ) -> None:
        self._target, self._ways, self._node_of, self._rng = target, ways, node_of, rng
        self._server: asyncio.Server | None = None
        self._closing = False
        self.connections: set[ProxiedConnection] = set()

    async def serve(self) -> int:
        """Listen on a free port of the loopback, and return it."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=READ_BYTES)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Accept no more, reset all."""
        self._closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            dialler, first = await _hello(reader)
            dialler = dialler or self._node_of(writer.get_extra_info("peername")[1])
            ways = None if dialler is None else self._ways(dialler)
            if ways is None:
                raise ProtocolError(f"{dialler} is no member")
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=READ_BYTES)
        except (OSError, ProtocolError, EOFError):
            writer.transport.abort()
            return
        if self._closing:
            writer.transport.abort()
            far_writer.transport.abort()
            return
        for one in (writer, far_writer):
            with contextlib.suppress(OSError):
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ProxiedConnection(self._rng, writer, far_writer)
        self.connections.add(connection)
        out, back = ways
        pumps = [
            asyncio.ensure_future(connection.pump(reader, far_writer, out, first)),
            asyncio.ensure_future(connection.pump(far_reader, writer, back, b"")),
        ]
        try:
            await connection.ended.wait()
        finally:
            connection.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            self.connections.discard(connection)


async def _hello(reader: asyncio.StreamReader) -> tuple[str | None, bytes]:
    """Return who dials, as the first frame of the handshake says, None under TLS, and the bytes read so far."""
    frames, first = FrameReader(HANDSHAKE_FRAME_BYTES_MAX), b""
    async with asyncio.timeout(_HELLO_S):
        while True:
            data = await reader.read(HANDSHAKE_FRAME_BYTES_MAX)
            if not data:
                raise EOFError
            first += data
            if is_tls(first):
                return None, first
            frames.space()[: len(data)] = data
            for message in frames.received(len(data)):
                if not isinstance(message, Hello):
                    raise ProtocolError("a connection begins with who dials")
                return message.node_id, first
