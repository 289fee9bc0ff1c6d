"""The network between the members: every peer link runs through a TCP proxy that can misbehave.

Each node has one port on which all others reach it (:meth:`Links.port`). The first frame of the handshake says who
dials, or under TLS the kernel, so the address may stand in the cluster's configuration, which all members read. Each
direction of a pair is a
:class:`~oncegate.proof.check.proxy.Way`.

The proxies run on a loop in a thread of their own; every public method may be called from any other thread and has
taken effect when it returns. Read next: :mod:`oncegate.proof.check.proxy`.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from oncegate.gateway.local.processes import Closing
from oncegate.proof.check.proxy import Address, ProxiedConnection, Proxy, Way

How = Literal["hold", "lose"]
Ends = tuple[str, str]
T = TypeVar("T")


class Links(Closing):
    """All links of one cluster.

    Args:
        listening: where each node really listens for its peers.
        node_of: returns whose connection comes from a port; for those that begin with TLS.
        seed: of the jitter and the resets.
    """

    def __init__(
        self,
        listening: Mapping[str, Address],
        node_of: Callable[[int], str | None] = lambda port: None,
        *,
        seed: int = 0,
    ) -> None:
        self._node_of = node_of
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._rng = random.Random(seed)
        self._proxies: list[Proxy] = []
        self._ways: dict[Ends, Way] = {}
        self._ports: dict[str, int] = {}
        self._storm: asyncio.Task[None] | None = None
        for name, address in listening.items():
            self.add(name, address)

    def _run(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the proxies' loop."""

        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def add(self, name: str, address: Address) -> None:
        """Make a port for a node, and open ways between it and all others; a name that is known keeps its own."""
        if name in self._ports:
            return

        def ways(dialler: str) -> tuple[Way, Way] | None:
            out, back = self._ways.get((dialler, name)), self._ways.get((name, dialler))
            return None if out is None or back is None else (out, back)

        async def start() -> None:
            for other in self._ports:
                for ends in ((name, other), (other, name)):
                    way = self._ways[ends] = Way(*ends)
                    way.opened.set()
            proxy = Proxy(address, ways, self._node_of, self._rng)
            self._proxies.append(proxy)
            self._ports[name] = await proxy.serve()

        asyncio.run_coroutine_threadsafe(start(), self._loop).result()

    @property
    def names(self) -> list[str]:
        """The nodes, sorted."""
        return sorted(self._ports)

    def port(self, name: str) -> int:
        """Return the loopback port on which the others reach ``name``."""
        return self._ports[name]

    def way(self, source: str, target: str) -> Way:
        """Return one direction; its fields say what it does now."""
        return self._ways[source, target]

    @property
    def troubled(self) -> list[str]:
        """Return the directions that do not pass everything at once, as ``a->b``."""
        return [
            f"{way.source}->{way.target}"
            for way in list(self._ways.values())
            if way.losing
            or way.loss
            or way.forgery
            or way.delay_s
            or way.jitter_s
            or way.bytes_per_s
            or not way.opened.is_set()
        ]

    def cut(self, ways: Iterable[Ends], *, how: How = "hold") -> None:
        """Let nothing pass these directions from now on."""

        def work() -> None:
            for ends in ways:
                way = self._ways[ends]
                way.losing = how == "lose"
                if how == "hold":
                    way.opened.clear()

        self._run(work)

    def isolate(self, node: str, *, how: How = "hold") -> None:
        """Cut ``node`` off from all others, both ways."""
        self.cut([ends for ends in self._ways if node in ends], how=how)

    def mute(self, node: str, *, how: How = "hold") -> None:
        """Let ``node`` hear the others, but not be heard."""
        self.cut([ends for ends in self._ways if ends[0] == node], how=how)

    def deafen(self, node: str, *, how: How = "hold") -> None:
        """Let the others hear ``node``, but ``node`` not hear them."""
        self.cut([ends for ends in self._ways if ends[1] == node], how=how)

    def split(self, *groups: Sequence[str], how: How = "hold") -> None:
        """Cut all directions between different groups; nodes in none of them stay connected with all."""
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
        forgery: float = 0.0,
        node: str | None = None,
    ) -> None:
        """Make every direction slow, lossy and unsafe, or those that lead to or from ``node``."""

        def work() -> None:
            for ends, way in self._ways.items():
                if node is None or node in ends:
                    way.delay_s, way.jitter_s, way.bytes_per_s = delay_s, jitter_s, bytes_per_s
                    way.loss, way.forgery = loss, forgery

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
        """Return the open connections; from any thread, as of a moment ago."""
        return [connection for proxy in self._proxies for connection in list(proxy.connections)]

    def join(self) -> None:
        """Let everything pass again, and reset connections that lost bytes. Speeds stay."""

        def work() -> None:
            for way in self._ways.values():
                way.losing = False
                way.opened.set()
            for connection in self.connections():
                if connection.lost_bytes:
                    connection.abort()

        self._run(work)

    def calm(self) -> None:
        """Let bytes pass at full speed again, and reset no more connections. Cuts stay."""

        def work() -> None:
            if self._storm is not None:
                self._storm.cancel()
                self._storm = None
            for way in self._ways.values():
                way.delay_s, way.jitter_s, way.bytes_per_s = 0.0, 0.0, None
                way.loss = way.forgery = 0.0

        self._run(work)

    def heal(self) -> None:
        """Let everything pass again, at full speed, and reset connections that lost bytes."""
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
