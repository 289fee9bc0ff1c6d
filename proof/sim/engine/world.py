"""One run: a plan, its nodes, its clients and its checkers, on one scheduler.

Owns the order of things: faults until the plan's end, then quiet until everybody agrees or the liveness bound passes.
Everything is drawn from the seed through named streams, so that a run repeats exactly, in any process. Read next:
:mod:`oncegate.proof.sim.engine.plan`, :mod:`oncegate.proof.sim.engine.node`.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from oncegate.consensus.configuration import decode
from oncegate.proof.sim.engine.checkers import (
    ConfigurationsAgree,
    EverybodyIsAnswered,
    LinearizableReads,
    Liveness,
    all_checkers,
)
from oncegate.proof.sim.engine.clients import Client, Reader
from oncegate.proof.sim.engine.clock import Scheduler
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.faults import LEADER, REGISTRY
from oncegate.proof.sim.engine.network import Network
from oncegate.proof.sim.engine.node import NodeKilledError
from oncegate.proof.sim.engine.observe import Logs, Observations

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
        self.see = Observations(checkers or all_checkers(plan.names, liveness_s=LIVENESS_S))
        self.answers = self.see.find(EverybodyIsAnswered)
        self._reads = self.see.find(LinearizableReads)
        self._liveness = self.see.find(Liveness)
        self._configurations = self.see.find(ConfigurationsAgree)
        self._logs = self.see.find(Logs)
        self.nodes = {name: node_type(self, name, self.stream(f"node {name}")) for name in plan.machines}
        self.network = Network(
            self.scheduler,
            self.stream("network"),
            self.nodes,
            latency_s=plan.latency_s,
            late_s=plan.late_s,
            on_delivery=self._delivered,
        )
        self.clients = self.new_clients()

    def new_clients(self):
        """Whoever writes and reads."""
        plan = self.plan
        clients = [Client(self, number, self.stream(f"client {number}")) for number in range(plan.clients)]
        if plan.read_share:
            clients.append(Reader(self, self.stream("reader")))
        return clients

    def stream(self, name):
        """A source of randomness of its own, so that one part does not disturb another's."""
        return random.Random(f"{self.plan.seed}/{name}")

    # -- running ----------------------------------------------------------------------------------------

    @property
    def now(self):
        return self.scheduler.now

    def begin(self):
        """Start nodes, links and clients; from then on all that happens is a matter of time."""
        scheduler, plan = self.scheduler, self.plan
        for node in self.nodes.values():
            node.flush_s = plan.flush_s
            if node.name in plan.names:
                node.start()
        self.running = True
        self.network.start()
        for client in self.clients:
            scheduler.after(0.05, client.next)
        for fault in plan.faults:
            if fault.at < plan.seconds:
                scheduler.at(fault.at, self._strike, fault)

    def run(self):
        """Run to the end; raises :class:`~oncegate.proof.sim.engine.observe.Violation`, or returns what was done."""
        scheduler, plan = self.scheduler, self.plan
        self.begin()
        scheduler.run(plan.seconds)
        if plan.settles:
            self.settle()
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

    def settle(self):
        """Every fault ends by itself; then the cluster has to make progress and agree."""
        scheduler = self.scheduler
        self._end_faults()
        target = self.counts["acknowledged"] + 5
        self._wait("too little is acknowledged", lambda: self.counts["acknowledged"] >= target)
        for client in self.clients:
            client.stop()
        last = self._reads.floor
        self._wait("a node lacks what was acknowledged", lambda: self._all_have(last))
        # Their askers give up by themselves.
        self._wait(
            "somebody still waits for a change of members",
            lambda: not any(node.alive and node.changes_wait for node in self.nodes.values()),
        )
        scheduler.run(scheduler.now + 0.3)
        self.see.ended({node.name: node.commands for node in self._living()})
        self.counts["refused for good"] += sum(node.dead is not None for node in self.nodes.values())

    def _end_faults(self):
        # The longest that a fault may last after the last one was drawn.
        self.scheduler.run(self.scheduler.now + 2.5)
        self.quiet = True
        self._liveness.faults_stopped(self.scheduler.now)

    def _wait(self, otherwise, done, step_s=0.1):
        """Let time pass until something is so; the liveness bound fails with what is ``otherwise``."""
        while not done():
            self.scheduler.run(self.scheduler.now + step_s)
            self._liveness.waiting(self.scheduler.now, otherwise)

    def _all_have(self, index):
        if all(node.alive and node.applied_index >= index for node in self._living()):
            return True
        self._reach_everybody()
        return False

    def _reach_everybody(self):
        """Move leadership to one whom all accept.

        A voter that missed the addition of a member refuses its connections, and cannot learn of it while that one
        leads: known, and an operator's business until then.
        """
        leader = self.node(LEADER)
        for node in self._living() if leader is not None and leader.engine.leading.transfers.target is None else ():
            if node is not leader and node.alive and not node.accepts(leader.name):
                known = [other.name for other in self._living() if node.accepts(other.name) and other is not node]
                if known:
                    self.counts["leaders out of reach"] += 1
                    leader.transfer(known[0])
                    return

    def _living(self):
        members = self.members()
        return [node for node in self.nodes.values() if node.dead is None and node.name in members]

    def members(self):
        """Of the newest configuration that is known to be committed."""
        known = self._configurations.at
        return decode(known[max(known)]).members if known else self.plan.names

    def _strike(self, fault):
        self.note("fault", fault.number, fault.kind, *fault.args)
        self.counts["faults"] += 1
        REGISTRY[fault.kind].strike(self, *fault.args)

    # -- what faults ask --------------------------------------------------------------------------------

    def node(self, target):
        """A node by name; whoever leads, for LEADER; None when nobody does."""
        if target != LEADER:
            return self.nodes[target]
        leaders = [node for node in self.nodes.values() if node.alive and node.leads]
        return max(leaders, key=lambda node: node.term, default=None)

    def last_index(self, name):
        """The end of a node's log, as it was seen to write it."""
        return len(self._logs.terms.get(name, ()))

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
        """A majority stays undamaged even without this node, whichever configuration comes to be in force."""
        if name in self._damaged:
            return True
        if name in self.plan.joiners or any(node.alive and node.change_pending for node in self.nodes.values()):
            return False
        known = [index for index in self._configurations.at if index <= self._reads.floor]
        lost = self._damaged | {name}
        return all(2 * len(voters - lost) > len(voters) for voters in self._logs.deciding(max(known, default=1)))

    def next_joiner(self, which):
        """A machine that was never a member; it is started now."""
        at = self._configurations.at
        ever = {member for configuration in at.values() for member in decode(configuration).members}
        names = [name for name in self.plan.joiners if name not in ever]
        if not names:
            return None
        name = names[int(which * len(names))]
        if self.nodes[name].life == 0:
            self.scheduler.after(0.0, self._start_joiner, self.nodes[name])
        return name

    def _start_joiner(self, node):
        if node.life == 0:
            node.start()

    def may_remove(self, configuration, which):
        """A member without which a majority is undamaged, and there are three or more left, or it is lost anyway."""
        voters = configuration.voters
        lost = sorted(self._damaged & set(configuration.members))
        names = lost or (sorted(voters) if len(voters) > 3 else [])
        if not names:
            return None
        name = names[int(which * len(names))]
        rest = voters - {name}
        return name if 2 * len(rest - self._damaged) > len(rest) else None

    def damage(self, name):
        """From now on this node may refuse to start."""
        self._damaged.add(name)
        self.counts["flips"] += 1

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
