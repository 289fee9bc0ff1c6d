"""Connections between nodes, as TCP gives them, on links that delay, stall and break.

Within a connection bytes come in order; when it breaks, a prefix of what was under way still arrives and the tail is
lost; each end notices in its own time. What arrives late from a broken connection carries that connection's epoch, also
when a newer one is up: so messages are duplicated and reordered across reconnects only. A blocked direction stalls: its
messages wait, and arrive after the block unless the connection broke. Read next: :mod:`oncegate.proof.sim.engine.node`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Protocol

from oncegate.proof.sim.engine.clock import Scheduler


class Endpoint(Protocol):
    """What the network must know of a node."""

    name: str
    alive: bool
    frozen: bool

    def accepts(self, peer: str) -> bool: ...
    def dials(self, peer: str) -> bool: ...
    def connected(self, peer: str, epoch: int) -> None: ...
    def disconnected(self, peer: str) -> None: ...
    def arrived(self, peer: str, epoch: int, message: object) -> None: ...


class Connection:
    """One TCP connection; ``epoch`` is what both ends agreed on when it came up."""

    __slots__ = ("arrived", "broken", "due", "ends", "epoch", "held", "kept", "lag", "noticed", "sent", "up")

    def __init__(self, ends: tuple[str, str], epoch: int) -> None:
        self.ends = ends
        self.epoch = epoch
        self.broken = False
        self.lag = 0.0
        self.up = dict.fromkeys(ends, False)
        self.noticed = dict.fromkeys(ends, False)
        self.sent = dict.fromkeys(ends, 0)
        self.arrived = dict.fromkeys(ends, 0)
        self.kept = dict.fromkeys(ends, 1 << 60)
        self.due = dict.fromkeys(ends, 0.0)
        self.held: dict[str, list[object]] = {end: [] for end in ends}

    def other(self, end: str) -> str:
        return self.ends[1] if end == self.ends[0] else self.ends[0]


class Network:
    """All connections of a world."""

    def __init__(
        self,
        scheduler: Scheduler,
        rng: random.Random,
        nodes: dict[str, Endpoint],
        *,
        latency_s: float,
        late_s: float,
        reconnect_s: float = 0.05,
        on_delivery: Callable[[str, str, int, object], None] = lambda source, target, epoch, message: None,
    ) -> None:
        self._scheduler, self._rng, self._nodes = scheduler, rng, nodes
        self._latency_s, self._late_s, self._reconnect_s = latency_s, late_s, reconnect_s
        self._on_delivery = on_delivery
        self._epoch = 0
        self._current: dict[tuple[str, str], Connection] = {}
        self._open: dict[tuple[str, str], list[Connection]] = {}
        self._blocks: dict[tuple[str, str], int] = {}
        self._extra: dict[tuple[str, str], float] = {}
        self.delivered = 0
        self.breaks = 0

    def start(self) -> None:
        """Begin to connect everybody to everybody."""
        names = sorted(self._nodes)
        for number, a in enumerate(names):
            for b in names[number + 1 :]:
                self._scheduler.after(self._rng.uniform(0, 0.01), self._dial, a, b)

    # -- what nodes do ---------------------------------------------------------------------------------

    def send(self, source: str, target: str, message: object) -> None:
        """Write to the present connection; into the void when there is none or its other end is gone."""
        connection = self._current.get((source, target))
        if connection is None or connection.broken:
            return
        rng = self._rng
        delay = self._latency_s * (0.5 + rng.random()) + self._extra.get((source, target), 0.0)
        if rng.random() < 0.02:
            delay += rng.random() * 0.03
        due = max(connection.due[source], self._scheduler.now + delay)
        connection.due[source] = due
        connection.sent[source] += 1
        self._scheduler.at(due, self._arrive, connection, source, connection.sent[source], message)

    # -- what happens to links -------------------------------------------------------------------------

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing passes in these directions until :meth:`unblock`; blocks are counted."""
        for pair in pairs:
            self._blocks[pair] = self._blocks.get(pair, 0) + 1

    def unblock(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Undo one :meth:`block`."""
        for source, target in pairs:
            left = self._blocks[source, target] - 1
            if left:
                self._blocks[source, target] = left
                continue
            del self._blocks[source, target]
            for connection in self._open.get(_pair(source, target), ()):
                self._release(connection, source)

    def delay(self, source: str, target: str, seconds: float) -> None:
        """From now on messages in this direction take that much longer."""
        if seconds:
            self._extra[source, target] = seconds
        else:
            self._extra.pop((source, target), None)

    def cut(self, a: str, b: str) -> None:
        """Break the connections of a pair."""
        for connection in list(self._open.get(_pair(a, b), ())):
            self._break(connection, None)

    def died(self, name: str, *, silent: bool) -> None:
        """A node is gone; a machine that lost power says nothing, a process that died has its connections closed."""
        for pair, connections in list(self._open.items()):
            if name in pair:
                for connection in list(connections):
                    connection.noticed[name] = True
                    self._break(connection, self._rng.uniform(0.1, 1.0) if silent else None)
        for end, peer in list(self._current):
            if end == name:
                del self._current[end, peer]

    # -- inside ----------------------------------------------------------------------------------------

    def _dial(self, a: str, b: str) -> None:
        self._scheduler.after(self._reconnect_s * (0.5 + self._rng.random()), self._dial, a, b)
        present = self._current.get((a, b))
        one, two = self._nodes[a], self._nodes[b]
        if present is not None or not (one.alive and two.alive) or one.frozen or two.frozen:
            return
        if (a, b) in self._blocks or (b, a) in self._blocks:
            return
        if not (one.accepts(b) and two.accepts(a) and (one.dials(b) or two.dials(a))):
            return
        self._epoch += 1
        connection = Connection((a, b), self._epoch)
        self._open.setdefault((a, b), []).append(connection)
        self._current[a, b] = connection
        for end in (a, b):
            self._scheduler.after(self._rng.random() * 0.002, self._come_up, connection, end)

    def _come_up(self, connection: Connection, end: str) -> None:
        peer = connection.other(end)
        if connection.broken or not self._nodes[end].alive:
            self._break(connection, 0.0)
            return
        connection.up[end] = True
        self._current[end, peer] = connection
        self._nodes[end].connected(peer, connection.epoch)
        self._release(connection, peer)

    def _break(self, connection: Connection, notice_s: float | None) -> None:
        if connection.broken:
            return
        rng = self._rng
        self.breaks += 1
        connection.broken = True
        if rng.random() < 0.5:
            connection.lag = rng.random() * self._late_s
        for end in connection.ends:
            connection.kept[end] = rng.randint(connection.arrived[end], connection.sent[end])
            delay = notice_s
            if delay is None:
                delay = rng.random() * (0.002 if rng.random() < 0.7 else 0.5)
            self._scheduler.after(delay, self._notice, connection, end)
        self._scheduler.after(10.0, self._forget, connection)

    def _notice(self, connection: Connection, end: str) -> None:
        peer = connection.other(end)
        if self._current.get((end, peer)) is connection:
            del self._current[end, peer]
            connection.noticed[end] = True
            if connection.up[end]:
                self._nodes[end].disconnected(peer)

    def _forget(self, connection: Connection) -> None:
        self._open[connection.ends].remove(connection)

    def _arrive(self, connection: Connection, source: str, number: int, message: object) -> None:
        if connection.broken:
            if number > connection.kept[source]:
                return
            if connection.lag:
                self._scheduler.after(connection.lag, self._hand_over, connection, source, message)
                return
        connection.arrived[source] += 1
        target = connection.other(source)
        if (source, target) in self._blocks or not connection.up[target] or connection.held[source]:
            connection.held[source].append(message)
        else:
            self._hand_over(connection, source, message)

    def _release(self, connection: Connection, source: str) -> None:
        target = connection.other(source)
        if (source, target) in self._blocks or not connection.up[target]:
            return
        held, connection.held[source] = connection.held[source], []
        for message in held:
            self._hand_over(connection, source, message)

    def _hand_over(self, connection: Connection, source: str, message: object) -> None:
        target = connection.other(source)
        # An end that was told of the break has closed its socket; one that was not still reads from it.
        if connection.noticed[target] or not connection.up[target]:
            return
        self.delivered += 1
        self._on_delivery(source, target, connection.epoch, message)
        self._nodes[target].arrived(source, connection.epoch, message)


def _pair(a: str, b: str) -> tuple[str, str]:
    return (a, b) if a < b else (b, a)
