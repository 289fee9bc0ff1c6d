"""Clients: they write commands that are never repeated, and read, at whoever seems to lead.

A client waits for its answers, or gives up after a time; what it gave up on may still happen. Read next:
:mod:`oncegate.proof.sim.engine.world`.
"""

from __future__ import annotations

PATIENCE_S = (0.1, 0.3, 1.0)


class Read:
    """One read under way."""

    __slots__ = ("done", "floor")

    def __init__(self, floor, done):
        self.floor = floor
        self.done = done


class Client:
    """One client of the cluster."""

    _stopped = False

    def __init__(self, world, number, rng):
        self.world, self.number, self.rng = world, number, rng
        self._count = self._round = self._open = 0

    def stop(self):
        """Ask for nothing more."""
        self._stopped = True

    def next(self):
        """Begin the next operation."""
        if self._stopped:
            return
        world, rng = self.world, self.rng
        self._round += 1
        this = self._round
        node = self._choose()
        if node is None:
            world.scheduler.after(0.02 + rng.random() * 0.05, self.next)
            return
        world.scheduler.after(rng.choice(PATIENCE_S), self._give_up, this)
        if rng.random() < world.plan.read_share:
            self._open = 1
            node.read(Read(world.read_floor(), lambda: self._done(this)))
            return
        count = self._open = rng.randint(1, world.plan.burst)
        for _ in range(count):
            self._count += 1
            world.counts["proposed"] += 1
            command = b"c%d.%d " % (self.number, self._count) + b"." * rng.choice(world.plan.sizes)
            node.propose(command, lambda index: self._done(this))

    def _choose(self):
        nodes = [node for node in self.world.nodes.values() if node.alive]
        leaders = [node for node in nodes if node.leads]
        if not nodes or (not leaders and self.rng.random() < 0.7):
            return None
        if not leaders or self.rng.random() < 0.15:
            return self.rng.choice(nodes)
        return self.rng.choice(leaders)

    def _done(self, this):
        if this == self._round and self._open:
            self._open -= 1
            if not self._open:
                self._schedule()

    def _give_up(self, this):
        if this == self._round and self._open:
            self._open = 0
            self._schedule()

    def _schedule(self):
        self.world.scheduler.after(self.world.plan.think_s * (0.5 + self.rng.random()), self.next)


class Reader(Client):
    """Reads all the time, at whoever says that it leads and is the least likely to."""

    def __init__(self, world, rng):
        super().__init__(world, 0, rng)

    def next(self):
        """Look for a victim."""
        if self._stopped:
            return
        world = self.world
        world.scheduler.after(0.01 + self.rng.random() * 0.02, self.next)
        leaders = [node for node in world.nodes.values() if node.alive and node.leads and not node.frozen]
        if len(leaders) > 1:
            oldest = min(leaders, key=lambda node: node.term)
            world.counts["reads at deposed leaders"] += 1
            oldest.read(Read(world.read_floor(), lambda: None))
