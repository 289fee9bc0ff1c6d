"""The network between the members, in our hands: every peer link runs through a TCP proxy that can misbehave.

Either each pair has a port of its own (:meth:`Links.addresses`), for members that dial whom they were told to; or each
node has a door (:meth:`Links.door`), which tells by the handshake who dials: the address of a door may travel in the
cluster's configuration, where all members read it. Both lead to the same :class:`~oncegate.proof.check.proxy.Way` for
each direction of a pair.

The proxies run on a loop in a thread of their own; every public method may be called from any other thread and has
taken effect when it returns. Read next: :mod:`oncegate.proof.check.proxy`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Literal, TypeVar

from oncegate.gateway.local.closing import Closing
from oncegate.proof.check.proxy import Address, ProxiedConnection, Proxy, Way

How = Literal["hold", "lose"]
Ends = tuple[str, str]
T = TypeVar("T")


def _always(ways: tuple[Way, Way], _: str | None) -> tuple[Way, Way]:
    return ways


class Links(Closing):
    """All links of one cluster.

    Args:
        listening: where each node really listens for its peers.
        seed: of the jitter and the resets.
        doors: make doors instead of a port for each pair.
    """

    def __init__(self, listening: dict[str, Address], *, seed: int = 0, doors: bool = False) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._rng = random.Random(seed)
        self._proxies: list[Proxy] = []
        self._ways: dict[Ends, Way] = {}
        self._ports: dict[Ends, int] = {}
        self._doors: dict[str, int] = {}
        self._storm: asyncio.Task[None] | None = None
        self.names: list[str] = []
        if doors:
            for name, address in listening.items():
                self.add(name, address)
        else:
            asyncio.run_coroutine_threadsafe(self._start_pairs(listening), self._loop).result()

    async def _start_pairs(self, listening: dict[str, Address]) -> None:
        for name in sorted(listening):
            self._introduce(name)
        for acceptor, dialler in itertools.combinations(self.names, 2):
            ways = self._ways[dialler, acceptor], self._ways[acceptor, dialler]
            self._ports[dialler, acceptor] = await self._serve(listening[acceptor], partial(_always, ways), asks=False)

    def _introduce(self, name: str) -> None:
        for other in self.names:
            for ends in ((name, other), (other, name)):
                way = self._ways[ends] = Way(*ends)
                way.opened.set()
        self.names = sorted([*self.names, name])

    async def _serve(self, target: Address, ways: Callable[[str | None], tuple[Way, Way] | None], *, asks: bool) -> int:
        proxy = Proxy(target, ways, self._rng, asks=asks)
        self._proxies.append(proxy)
        return await proxy.serve()

    def _run(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the proxies' loop."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def add(self, name: str, address: Address) -> None:
        """Make a door for a node, and open ways between it and all others; a name that is known keeps its own."""
        if name in self._doors:
            return

        def ways(dialler: str | None) -> tuple[Way, Way] | None:
            out, back = self._ways.get((dialler or "", name)), self._ways.get((name, dialler or ""))
            return None if out is None or back is None else (out, back)

        async def start() -> None:
            self._introduce(name)
            self._doors[name] = await self._serve(address, ways, asks=True)

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    def door(self, name: str) -> int:
        """The port on which anybody reaches ``name``."""
        return self._doors[name]

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

    @property
    def troubled(self) -> list[str]:
        """Directions that do not pass everything at once, as ``a->b``."""
        return [
            f"{way.source}->{way.target}"
            for way in list(self._ways.values())
            if way.losing or way.loss or way.delay_s or way.jitter_s or way.bytes_per_s or not way.opened.is_set()
        ]

    def cut(self, ways: Iterable[Ends], *, how: How = "hold") -> None:
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
        """Cut all directions between different groups; nodes in none of them stay connected with everybody."""
        group = {name: number for number, names in enumerate(groups) for name in names}
        ways = [(a, b) for a, b in self._ways if a in group and b in group and group[a] != group[b]]
        self.cut(ways, how=how)

    def slow(
        self,
        *,
        delay_s: float = 0.0,
        jitter_s: float = 0.0,
        bytes_per_s: float | None = None,
        loss: float = 0.0,
        node: str | None = None,
    ) -> None:
        """Make every direction slow and lossy, or those that lead to or from ``node``."""

        def work() -> None:
            for ends, way in self._ways.items():
                if node is None or node in ends:
                    way.delay_s, way.jitter_s, way.bytes_per_s, way.loss = delay_s, jitter_s, bytes_per_s, loss

        self._run(work)

    def reset(self) -> None:
        """Reset every connection, once."""

        def work() -> None:
            for connection in self.connections():
                connection.abort()

        self._run(work)

    def storm(self, *, every_s: float) -> None:
        """Reset one connection after the other, at random moments, until :meth:`heal` or :meth:`calm`."""

        async def blow() -> None:
            while True:
                await asyncio.sleep(self._rng.uniform(0.5, 1.5) * every_s)
                if connections := self.connections():
                    self._rng.choice(connections).abort()

        def work() -> None:
            self._storm = self._loop.create_task(blow())

        self._run(work)

    def connections(self) -> list[ProxiedConnection]:
        """Those that are open; from any thread a moment old."""
        return [connection for proxy in self._proxies for connection in list(proxy.connections)]

    def join(self) -> None:
        """Everything passes again; connections that lost bytes are reset. Speeds stay."""

        def work() -> None:
            for way in self._ways.values():
                way.losing = False
                way.opened.set()
            for connection in self.connections():
                if connection.lost_bytes:
                    connection.abort()

        self._run(work)

    def calm(self) -> None:
        """What passes, passes at full speed again, and no connection is reset any more. Cuts stay."""

        def work() -> None:
            if self._storm is not None:
                self._storm.cancel()
                self._storm = None
            for way in self._ways.values():
                way.delay_s, way.jitter_s, way.bytes_per_s, way.loss = 0.0, 0.0, None, 0.0

        self._run(work)

    def heal(self) -> None:
        """Everything passes again, at full speed; connections that lost bytes are reset."""
        self.calm()
        self.join()

    def close(self) -> None:
        """Close every socket and end the thread; idempotent."""
        if not self._thread.is_alive():
            return

        async def stop() -> None:
            for proxy in self._proxies:
                proxy.close()
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
