"""The network between the members, in our hands: every peer link runs through a TCP proxy that can misbehave.

The node with the greater id dials (:mod:`consensus.dialling`), so a pair has one connection, and one proxy with a
port of its own. Each direction of a pair is a :class:`Way` with its own faults:

- ``hold``: bytes wait in the proxy and arrive when the way is opened again, late. Connections stay open.
- ``lose``: bytes vanish. Connections stay open; the ones that lost bytes are reset when the way is opened again.
- ``delay_s``, ``jitter_s``: each read is passed on that much later, in order. ``bytes_per_s``: no faster than this.

The end of a connection travels like its bytes: it is held and lost like them. The proxies run on a loop in a thread
of their own; every public method may be called from any other thread and has taken effect when it returns.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

Address = tuple[str, int]
How = Literal["hold", "lose"]
T = TypeVar("T")

_READ_BYTES: Final = 64 * 1024
_QUEUE_READS: Final = 64
_ABORT: Final = struct.pack("ii", 1, 0)


@dataclass
class Way:
    """One direction of one pair."""

    source: str
    target: str
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    losing: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    bytes_passed: int = 0


class _Connection:
    """Two sockets and the two pumps between them."""

    def __init__(self, proxy: _Proxy, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.writers = (near, far)
        self.lost_bytes = False
        self.ended = asyncio.Event()

    def abort(self) -> None:
        self.ended.set()
        for writer in self.writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            writer.transport.abort()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way) -> None:
        """Pass on what comes, as the way allows; ends with the connection."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUE_READS)

        async def collect() -> None:
            data = b"?"
            while data:
                try:
                    data = await reader.read(_READ_BYTES)
                except OSError:
                    data = b""
                late = way.delay_s + self.proxy.rng.uniform(0, way.jitter_s)
                await queue.put((loop.time() + late, data))

        collecting = loop.create_task(collect())
        try:
            while True:
                due, data = await queue.get()
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
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
                way.bytes_passed += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            return
        finally:
            collecting.cancel()
            self.abort()


class _Proxy:
    """The listener of one pair."""

    def __init__(self, target: Address, out: Way, back: Way, rng: random.Random) -> None:
        self.target, self.out, self.back, self.rng = target, out, back, rng
        self.connections: set[_Connection] = set()
        self.server: asyncio.Server | None = None
        self.closing = False

    async def serve(self) -> int:
        self.server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=_READ_BYTES)
        port: int = self.server.sockets[0].getsockname()[1]
        return port

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self.target, limit=_READ_BYTES)
        except OSError:
            writer.transport.abort()
            return
        if self.closing:
            writer.transport.abort()
            far_writer.transport.abort()
            return
        for one in (writer, far_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(self, writer, far_writer)
        self.connections.add(connection)
        pumps = [
            asyncio.ensure_future(connection.pump(reader, far_writer, self.out)),
            asyncio.ensure_future(connection.pump(far_reader, writer, self.back)),
        ]
        try:
            await connection.ended.wait()
        finally:
            connection.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            self.connections.discard(connection)


class Links:
    """All links of one cluster.

    Args:
        listening: where each node really listens for its peers.
        seed: of the jitter and the resets.
    """

    def __init__(self, listening: dict[str, Address], *, seed: int = 0) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._rng = random.Random(seed)
        self._proxies: dict[frozenset[str], _Proxy] = {}
        self._ways: dict[tuple[str, str], Way] = {}
        self._ports: dict[tuple[str, str], int] = {}
        self._storm: asyncio.Task[None] | None = None
        self.names = sorted(listening)
        asyncio.run_coroutine_threadsafe(self._start(listening), self._loop).result()

    async def _start(self, listening: dict[str, Address]) -> None:
        for acceptor, dialler in itertools.combinations(self.names, 2):
            out, back = Way(dialler, acceptor), Way(acceptor, dialler)
            proxy = _Proxy(listening[acceptor], out, back, self._rng)
            for way in (out, back):
                way.opened.set()
                self._ways[way.source, way.target] = way
            self._proxies[frozenset((acceptor, dialler))] = proxy
            self._ports[dialler, acceptor] = await proxy.serve()

    def _run(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the proxies' loop."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def addresses(self, node: str, listening: dict[str, Address]) -> dict[str, Address]:
        """Where ``node`` is to dial each of its peers. A peer it never dials is named by its own address."""
        return {
            peer: ("127.0.0.1", self._ports[node, peer]) if (node, peer) in self._ports else listening[peer]
            for peer in self.names
            if peer != node
        }

    def way(self, source: str, target: str) -> Way:
        """One direction; its fields tell what it does now."""
        return self._ways[source, target]

    def cut(self, ways: Iterable[tuple[str, str]], *, how: How = "hold") -> None:
        """From now on nothing passes these directions."""

        def work() -> None:
            for ends in ways:
                way = self._ways[ends]
                way.losing = how == "lose"
                if how == "hold":
                    way.opened.clear()

        self._run(work)

    def isolate(self, node: str, *, how: How = "hold") -> None:
        """Cut ``node`` off from everybody, both ways."""
        self.cut([ends for ends in self._ways if node in ends], how=how)

    def mute(self, node: str, *, how: How = "hold") -> None:
        """``node`` hears, and is not heard."""
        self.cut([ends for ends in self._ways if ends[0] == node], how=how)

    def deafen(self, node: str, *, how: How = "hold") -> None:
        """``node`` is heard, and does not hear."""
        self.cut([ends for ends in self._ways if ends[1] == node], how=how)

    def split(self, *groups: Sequence[str], how: How = "hold") -> None:
        """Cut all directions between different groups."""
        group = {name: number for number, names in enumerate(groups) for name in names}
        self.cut([(a, b) for a, b in self._ways if group[a] != group[b]], how=how)

    def slow(self, *, delay_s: float = 0.0, jitter_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """Make every direction slow."""

        def work() -> None:
            for way in self._ways.values():
                way.delay_s, way.jitter_s, way.bytes_per_s = delay_s, jitter_s, bytes_per_s

        self._run(work)

    def reset(self) -> None:
        """Reset every connection, once."""

        def work() -> None:
            for proxy in self._proxies.values():
                for connection in list(proxy.connections):
                    connection.abort()

        self._run(work)

    def storm(self, *, every_s: float) -> None:
        """Reset one connection after the other, at random moments, until :meth:`heal`."""

        async def blow() -> None:
            while True:
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * every_s)
                connections = [one for proxy in self._proxies.values() for one in proxy.connections]
                if connections:
                    self._rng.choice(connections).abort()

        def work() -> None:
            self._storm = self._loop.create_task(blow())

        self._run(work)

    def heal(self) -> None:
        """Everything passes again, at full speed; connections that lost bytes are reset."""

        def work() -> None:
            if self._storm is not None:
                self._storm.cancel()
                self._storm = None
            for way in self._ways.values():
                way.losing, way.delay_s, way.jitter_s, way.bytes_per_s = False, 0.0, 0.0, None
                way.opened.set()
            for proxy in self._proxies.values():
                for connection in list(proxy.connections):
                    if connection.lost_bytes:
                        connection.abort()

        self._run(work)

    def close(self) -> None:
        """Close every socket and end the thread; idempotent."""
        if not self._thread.is_alive():
            return

        async def stop() -> None:
            for proxy in self._proxies.values():
                proxy.closing = True
                if proxy.server is not None:
                    proxy.server.close()
                for connection in list(proxy.connections):
                    connection.abort()
            if self._storm is not None:
                self._storm.cancel()
            mine = {asyncio.current_task()}
            # A connection that was accepted a moment ago gets its task only now.
            while others := asyncio.all_tasks() - mine:
                await asyncio.wait(others)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
