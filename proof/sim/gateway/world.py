"""A simulated cluster of gateways, with clients; what they saw is a history, which is judged when all is over.

Read next: :mod:`oncegate.proof.sim.engine.world`, :mod:`oncegate.proof.sim.gateway.node`,
:mod:`oncegate.proof.sim.gateway.processes`.
"""

from __future__ import annotations

from oncegate.gateway.machine.state.digest import state_digest
from oncegate.proof.sim.engine.checkers import (
    CommitDurability,
    ConfigurationsAgree,
    ElectionSafety,
    EverybodyIsAnswered,
    FlushedIsKept,
    LeaderCompleteness,
    LinearizableReads,
    Liveness,
    LogMatching,
    OneVoteATerm,
)
from oncegate.proof.sim.engine.observe import Logs
from oncegate.proof.sim.engine.world import LIVENESS_S, World
from oncegate.proof.sim.gateway import workloads as w
from oncegate.proof.sim.gateway.cascades import Chain
from oncegate.proof.sim.gateway.flows import FlowExactness, StreamRows
from oncegate.proof.sim.gateway.holds import Holds
from oncegate.proof.sim.gateway.ledger import Ledger
from oncegate.proof.sim.gateway.node import GatewayNode
from oncegate.proof.sim.gateway.processes import History, Owner, read
from oncegate.rifl.errors import Code, OncegateError

FINDINGS_MAX = 20

_ON_ROWS = (w.Register, w.Runs, w.Counter, w.Dedup, w.AppendList, w.Bank, w.HandOver, w.Resolve, w.Lease, w.Keys)
WORKLOADS = {workload.name: workload for workload in (*_ON_ROWS, FlowExactness, StreamRows, Chain, Holds, Ledger)}
"""By name; seeds take turns in this order."""


class GatewayWorld(World):
    """Nodes that serve, clients, and one workload."""

    def __init__(self, plan, *, node_type=GatewayNode, trace=None, watches=False):
        logs = Logs(plan.names)
        checkers = [logs, LinearizableReads(), ConfigurationsAgree(), Liveness(LIVENESS_S), EverybodyIsAnswered()]
        if watches:
            checkers += [kind(logs) for kind in (CommitDurability, LeaderCompleteness, LogMatching, FlushedIsKept)]
            checkers += [ElectionSafety(), OneVoteATerm()]
        self.findings = []
        """(check, text) of what was wrong, in the order in which it was noticed."""
        self.stopped = False
        self.batches = {}
        """Sealed batches by flow and number, as the first node closed them."""
        self.stored = None
        """Where rows of stream tables are delivered to, if they are."""
        self._digests = {}
        super().__init__(plan, node_type=node_type, checkers=checkers, trace=trace)

    def new_clients(self):
        self.history = History(self)
        self.wire = Wire(self, self.stream("wire"))
        rng = self.stream("workload")
        self.workload = WORKLOADS[self.plan.workload](self, rng)
        self._owners = self.new_owners(rng)
        return [_SetUp(self)]

    def new_owners(self, rng):
        """The clients that work."""
        count = rng.choice(self.workload.habits.sessions)
        return [Owner(self, self.stream(f"client {number}")) for number in range(count)]

    @property
    def serving(self):
        """Names of the nodes that clients know: all members, alive or not."""
        members = self.members()
        return [name for name, node in self.nodes.items() if name in members and node.dead is None] or self.plan.names

    # -- what was seen ----------------------------------------------------------------------------------

    def found(self, check, text):
        """Something is not as it was promised."""
        self.note("found", check, text)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append((check, f"at {self.now:.3f} s: {text}"))

    def acknowledged_until(self, index):
        """Somebody was answered on behalf of the state at ``index``."""
        self._reads.floor = max(self._reads.floor, index)

    def state_at(self, name, index, machine):
        """A node's state after an entry, however it was reached."""
        digest = state_digest(machine)
        self.note("state", name, index, digest)
        self.counts["states compared"] += index in self._digests
        known = self._digests.setdefault(index, digest)
        if known != digest:
            self.found("state digest", f"{name} has another state after entry {index} than a node before it")
        self.workload.state_at(machine)

    def sealed(self, name, batch):
        """A node has closed a batch of a flow."""
        self.note("sealed", name, batch.flow, batch.number, batch.items)
        self.batches.setdefault((batch.flow, batch.number), batch)
        self.workload.sealed(self, name, batch)

    def living(self):
        """Members that will ever run again."""
        return self._living()

    # -- the end ----------------------------------------------------------------------------------------

    def settle(self):
        self._end_faults()
        self.stopped = True
        self._wait("an operation has no verdict", lambda: all(owner.idle for owner in self._owners))
        self._final_reads()
        self._wait("nodes differ in what they have applied", self._agree)
        if self.workload.reaps:
            self._wait("a session outlives its lease", self._all_reaped)
        for node in self._living():
            self.state_at(node.name, node.applied_index, node.gateway.machine)

    def start_workload(self):
        """The tables are there."""
        self.workload.begin()
        for owner in self._owners:
            owner.next()

    def _all_reaped(self):
        return self._agree() and all(not len(node.gateway.machine.sessions) for node in self._living())

    def _agree(self):
        floor = self._reads.floor
        if not self._all_have(floor):
            return False
        return len({node.applied_index for node in self._living()}) == 1

    def _final_reads(self):
        wanted = [(f, key, name) for f, key in self.workload.finish() for name in (None, "leader")]
        for f, key, where in wanted:
            self._read_in_the_end(f, key, where)

    def _read_in_the_end(self, f, key, where):
        rng = self.stream(f"final {f} {key} {where}")
        done = []
        while True:
            node = self.node(where) if where else None
            name = node.name if node is not None else rng.choice(self.serving)
            done.clear()
            read(self, self.history.new_process(), f, key, name, lambda ok, value: done.append(ok))
            self._wait("a read has no answer", lambda: bool(done), step_s=0.05)
            if done[0]:
                return
            self._liveness.waiting(self.now, "a read is refused")


class _SetUp:
    """Declares what the workload needs, then lets it begin."""

    def __init__(self, world):
        self._world = world
        self._left = world.workload.set_up()
        self._rng = world.stream("set-up")

    def next(self):
        world = self._world
        if not self._left:
            world.start_workload()
            return
        command = self._left[0]
        world.wire.send(self._rng.choice(world.plan.names), command, lambda answer: self._answered(command, answer))
        world.scheduler.after(0.1, self._again, command)

    def _again(self, command):
        if self._left and self._left[0] is command:
            self.next()

    def _answered(self, command, answer):
        if self._left and self._left[0] is command:
            if isinstance(answer, Exception):
                assert answer.code is not Code.BAD_REQUEST, answer
                return
            self._left.pop(0)
            self.next()

    def stop(self):
        """Nothing is left to be stopped."""


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
