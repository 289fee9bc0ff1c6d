"""Consumers of a flow: instances that replace each other, of which an older one may go on unaware.

Checked: a cursor moves for the newest instance only, and never behind what was acknowledged. Read next:
:mod:`oncegate.flows.cursor`.
"""

from __future__ import annotations

from oncegate.gateway.machine import commands as c


class Consumers:
    """All instances of one consumer."""

    def __init__(self, world, flow, name):
        self.world, self.flow, self.name = world, flow, name
        self._rng = world.stream("consumers")
        self.attached = 0
        """The newest fence that an instance has heard of."""
        self.moved = 0
        """The furthest move that was acknowledged."""
        self._instances = []

    def deliver(self, batch, then):
        """Do what a consumer does with a batch, and call ``then``: nothing, at once."""
        then()

    def begin(self):
        """Start an instance now, and others later."""
        if self.world.stopped:
            return
        _Instance(self, self._rng).attach()
        self.world.scheduler.after(self._rng.uniform(0.3, 1.2), self.begin)


class _Instance:
    def __init__(self, all_of_them, rng):
        self._all, self._world, self._rng = all_of_them, all_of_them.world, rng
        self._nonce = f"{rng.getrandbits(64):016x}"
        self._fence = self._cursor = None
        self._ends = self._world.now + rng.uniform(0.4, 2.5)

    def _send(self, command, answered):
        world = self._world
        world.wire.send(self._rng.choice(world.serving), command, answered)

    def attach(self):
        world = self._world
        if self._fence is not None or world.stopped:
            return
        floor = self._all.moved
        command = c.Attach(self._all.flow, self._all.name, self._nonce)
        self._send(command, lambda answer: self._attached(answer, floor))
        world.scheduler.after(0.2, self.attach)

    def _attached(self, answer, floor):
        if self._fence is not None or isinstance(answer, Exception):
            return
        self._fence, self._cursor = answer.body.fence, answer.body.cursor
        if self._cursor < floor:
            self._world.found("cursor", f"an instance begins behind {self._cursor}, but {floor} was acknowledged")
        self._all.attached = max(self._all.attached, self._fence)
        self._move()

    def _move(self):
        world = self._world
        if world.stopped or world.now > self._ends:
            return
        newest = max((number for flow, number in world.batches if flow == self._all.flow), default=0)
        if newest > self._cursor:
            batch = self._cursor + 1
            self._all.deliver(batch, lambda: self._delivered(batch))
        world.scheduler.after(0.03 + 0.1 * self._rng.random(), self._move)

    def _delivered(self, batch):
        newer = self._all.attached > self._fence
        command = c.MoveCursor(self._all.flow, self._all.name, batch, self._fence, replay=False)
        self._send(command, lambda answer: self._moved(answer, batch, newer=newer))

    def _moved(self, answer, batch, *, newer):
        if isinstance(answer, Exception):
            return
        world = self._world
        world.counts["cursor moves"] += 1
        if newer:
            world.found(
                "cursor", f"fence {self._fence} moves the cursor to {batch} after {self._all.attached} was given"
            )
        self._cursor = max(self._cursor, batch)
        self._all.moved = max(self._all.moved, batch)
