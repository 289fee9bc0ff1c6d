"""One run: a plan, its nodes, its clients and its checkers, on one scheduler.

Owns the order of things: faults until the plan's end, then quiet until everybody agrees or the liveness bound passes.
Everything is drawn from the seed through named streams, so that a run repeats exactly, in any process. Read next:
:mod:`tests.sim.plan`, :mod:`tests.sim.node`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from tests.sim.checkers import EverybodyIsAnswered, LinearizableReads, Liveness, all_checkers
from tests.sim.clients import Client, Reader
from tests.sim.clock import Scheduler
from tests.sim.engine_node import EngineNode
from tests.sim.faults import LEADER, REGISTRY
from tests.sim.network import Network
from tests.sim.node import NodeKilledError
from tests.sim.observe import Observations

LIVENESS_S = 20.0


class World:
    """A simulated cluster."""

    def __init__(self, plan, *, node_type=EngineNode, checkers=None, trace=None):
        self.plan = plan
        self.scheduler = Scheduler()
        self.counts = Counter()
        self.running = False
        self.quiet = False
        self._trace = trace
        self._hash = hashlib.blake2b(digest_size=16)
        self._damaged = set()
        self.see = Observations(checkers or all_checkers(len(plan.names), liveness_s=LIVENESS_S))
        self.answers = self.see.find(EverybodyIsAnswered)
        self._reads = self.see.find(LinearizableReads)
        self._liveness = self.see.find(Liveness)
        self.nodes = {name: node_type(self, name, self.stream(f"node {name}")) for name in plan.names}
        self.network = Network(
            self.scheduler,
            self.stream("network"),
            self.nodes,
            latency_s=plan.latency_s,
            late_s=plan.late_s,
            closes_replaced=plan.closes_replaced,
            on_delivery=self._delivered,
        )
        self.clients = [Client(self, number, self.stream(f"client {number}")) for number in range(plan.clients)]
        if plan.read_share:
            self.clients.append(Reader(self, self.stream("reader")))

    def stream(self, name):
        """A source of randomness of its own, so that one part does not disturb another's."""
        return random.Random(f"{self.plan.seed}/{name}")

    # -- running ----------------------------------------------------------------------------------------

    def run(self):
        """Run to the end; raises :class:`~tests.sim.observe.Violation`, or returns what was done."""
        scheduler, plan = self.scheduler, self.plan
        for node in self.nodes.values():
            node.flush_s = plan.flush_s
            node.start()
        self.running = True
        self.network.start()
        for client in self.clients:
            scheduler.after(0.05, client.next)
        for fault in plan.faults:
            if fault.at < plan.seconds:
                scheduler.at(fault.at, self._strike, fault)
        scheduler.run(plan.seconds)
        if plan.settles:
            self._settle()
        else:
            scheduler.run(plan.seconds + 2.5)
        self.counts["steps"] += scheduler.steps
        self.counts["messages"] += self.network.delivered
        self.counts["breaks"] += self.network.breaks
        self.counts["reads checked"] += self._reads.reads
        return self.counts

    @property
    def trace_hash(self):
        """Of all that was delivered, applied and answered, in order and with its time."""
        return self._hash.hexdigest()

    def _settle(self):
        """Every fault ends by itself; then the cluster has to make progress and agree."""
        scheduler = self.scheduler
        # The longest that a fault may last after the last one was drawn.
        scheduler.run(scheduler.now + 2.5)
        self.quiet = True
        self._liveness.faults_stopped(scheduler.now)
        target = self.counts["acknowledged"] + 5
        while self.counts["acknowledged"] < target:
            scheduler.run(scheduler.now + 0.1)
            self._liveness.waiting(scheduler.now, "too little is acknowledged")
        for client in self.clients:
            client.stop()
        last = self._reads.floor
        while not all(node.alive and node.applied_index >= last for node in self._living()):
            scheduler.run(scheduler.now + 0.1)
            self._liveness.waiting(scheduler.now, "a node lacks what was acknowledged")
        scheduler.run(scheduler.now + 0.3)
        self.see.ended({node.name: node.commands for node in self._living()})
        self.counts["refused for good"] += sum(node.dead is not None for node in self.nodes.values())

    def _living(self):
        return [node for node in self.nodes.values() if node.dead is None]

    def _strike(self, fault):
        self.note("fault", fault.number, fault.kind, *fault.args)
        self.counts["faults"] += 1
        REGISTRY[fault.kind].apply(self, *fault.args)

    # -- what faults ask --------------------------------------------------------------------------------

    def node(self, target):
        """A node by name; whoever leads, for LEADER; None when nobody does."""
        if target != LEADER:
            return self.nodes[target]
        leaders = [node for node in self.nodes.values() if node.alive and node.leads]
        return max(leaders, key=lambda node: node.term, default=None)

    def killed_inside_call(self, node):
        """The kill that was planned for a system call of this node has come."""
        if isinstance(node.kill_as[0], bool):
            power, down_s = node.kill_as
            node.die(power=power, down_s=down_s)
            return
        for other, down_s in zip(self.nodes.values(), node.kill_as, strict=True):
            if other.alive:
                other.die(power=True, down_s=down_s)

    def may_lose(self, name):
        """A majority stays undamaged even without this node."""
        return name in self._damaged or len(self._damaged) < (len(self.nodes) - 1) // 2

    def damage(self, name):
        """From now on this node may refuse to start."""
        self._damaged.add(name)
        self.counts["flips"] += 1

    def compact(self, name):
        """Ask a node to compact its log now."""
        node = self.nodes[name]
        if node.alive:
            node.compact()

    def damaged(self, name):
        return name in self._damaged

    # -- what nodes and clients report ------------------------------------------------------------------

    def acknowledged(self, command, index):
        self.counts["acknowledged"] += 1
        self.note("ack", index, command[:16])
        self.see.acknowledged(command, index)

    def read_done(self, read, point, seen):
        self.note("read", point, seen)
        self.see.read(read.floor, point, seen)
        read.done()

    def read_failed(self, read):
        read.done()

    def read_floor(self):
        """What a read that begins now must reflect."""
        return self._reads.floor

    def note(self, *what):
        """Enter something into the trace."""
        line = f"{self.scheduler.now:.6f} {what}"
        self._hash.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def _delivered(self, source, target, epoch, message):
        self._hash.update(f"{self.scheduler.now:.6f} {source} {target} {epoch}".encode())
        self._hash.update(message if type(message) is bytes else repr(message).encode())
        if self._trace is not None:
            self._trace(f"{self.scheduler.now:.6f} {source} -> {target} {epoch} {message!r}")


__all__ = ["NodeKilledError", "World"]
