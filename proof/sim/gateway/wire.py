"""Between clients and nodes: requests and answers are late or lost, and a dead node refuses, or says nothing.

Read next: :mod:`oncegate.proof.sim.gateway.session`.
"""

from __future__ import annotations

from oncegate.rifl.errors import Code, OncegateError


class Wire:
    """All clients' connections. A request that was sent once arrives once at most."""

    def __init__(self, world, rng):
        self.world, self._rng = world, rng
        self.lost_share = rng.choice((0.0, 0.02, 0.1))
        self.late_share = rng.choice((0.0, 0.05, 0.2))

    def send(self, name, command, answered):
        """Send a command; ``answered`` gets an Answer or an OncegateError, or is never called."""
        self._send(name, lambda node, reply: node.handle(node.serve, command, reply), answered)

    def read(self, name, table, key, answered):
        """Ask for a row, linearizable."""
        self._send(name, lambda node, reply: node.handle(node.serve_read, table, key, reply), answered)

    def _send(self, name, deliver, answered):
        self.world.counts["requests"] += 1
        if not self._lost():
            self.world.scheduler.after(self._delay_s(), self._arrive, name, deliver, answered)

    def _lost(self):
        return not self.world.quiet and self._rng.random() < self.lost_share

    def _delay_s(self):
        rng = self._rng
        if not self.world.quiet and rng.random() < self.late_share:
            return rng.choice((0.05, 0.3, 1.0)) * rng.random()
        return self.world.plan.latency_s * (0.5 + rng.random())

    def _arrive(self, name, deliver, answered):
        node = self.world.nodes[name]
        if node.alive:
            deliver(node, lambda answer: self._back(answered, answer))
        elif self._rng.random() < 0.5:
            self._back(answered, OncegateError(Code.NOT_READY, "connection refused"))

    def _back(self, answered, answer):
        if not self._lost():
            self.world.scheduler.after(self._delay_s(), answered, answer)
