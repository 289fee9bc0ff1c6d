"""A whole cluster on a fake clock, fake disks and a fake network, from one seed.

What it does to the nodes: delays, lost connections with messages in flight, stale messages of replaced connections,
partitions, kills of one node inside its flush, power loss of all nodes inside a flush. While one node is inside its
flush the others go on, as real processes do; an acknowledgement sent too early is therefore acted upon.

What it checks, all the time: no two nodes ever apply different commands at one index (state machine safety), no
acknowledged command is missing or applied twice, and a read point is never below what was acknowledged before the read.
"""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from typing import ClassVar

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.ports import Role
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker


class PowerLossError(BaseException):
    """All nodes are gone at once."""


class NodeKilledError(BaseException):
    """One node is gone."""


class History:
    """What was applied and acknowledged, over all lives of all nodes."""

    def __init__(self):
        self.commands = {}
        self.acknowledged = {}

    def applied(self, index, command):
        known = self.commands.setdefault(index, command)
        assert known == command, f"index {index}: {known!r} and {command!r}"


class RecordingMachine:
    def __init__(self, history):
        self.history = history
        self.log = []

    def apply(self, index, term, command):
        self.history.applied(index, command)
        self.log.append((index, command))
        return index


class SimNode:
    """One member: its disk outlives its engine."""

    def __init__(self, sim, name):
        self.sim, self.name = sim, name
        self.disk = FakeDisk()
        self.engine = None
        self.busy = False
        self.retired = False
        self.machine = None

    def start(self):
        sim = self.sim
        self.disk.on_call = lambda call, name: None
        self.disk.lock()
        _, ballot = open_identity(self.disk, cluster_id="sim", node_id=self.name)
        config = sim.config(self.name)
        log = LibraryLog(
            self.disk,
            InlineWorker(),
            ballot,
            segment_bytes=config.journal_segment_bytes,
            memory_bytes_max=config.log_memory_bytes_max,
        )
        self.machine = self.make_machine()
        self.engine = sim.engine_type(
            config,
            self.machine,
            log,
            clock=lambda: sim.now,
            rng=random.Random(sim.rng.random()),
            send=lambda peer, message: sim.sent(self.name, peer, message),
            on_result=lambda token, result: token(result),
            on_failure=lambda token, error: None,
            on_role=lambda change: None,
        )
        self.disk.on_call = self.disk_called
        self.busy = False

    def make_machine(self):
        return RecordingMachine(self.sim.history)

    def disk_called(self, call, name):
        if call == "sync" and name.startswith("journal") and self.busy:
            self.sim.inside_flush(self)

    def tick(self):
        self.busy = True
        try:
            self.engine.tick()
            self.busy = False
        except NodeKilledError:
            self.sim.kill(self)


class Simulation:
    """Three nodes and a client; everything that happens follows from ``seed``."""

    node_type = SimNode
    settings: ClassVar = {}
    command_sizes = (0, 0, 100, 500)

    def __init__(self, seed, *, engine_type=Engine, names=("n1", "n2", "n3"), faults=True):
        self.rng = random.Random(seed)
        self.engine_type, self.faults = engine_type, faults
        self.now = 0.0
        self.history = History()
        self.epoch = 0
        self.links = {}
        self.queues = {}
        self.stale = []
        self.cut = set()
        self.proposed = 0
        self.nodes = {name: self.node_type(self, name) for name in names}
        for node in self.nodes.values():
            node.start()

    def config(self, name):
        peers = {other: ("127.0.0.1", 1) for other in self.nodes if other != name}
        return ReplicaConfig(
            node_id=name,
            cluster_id="sim",
            listen=("127.0.0.1", 0),
            peers=peers,
            data_dir=Path("unused"),
            **{
                "command_bytes_max": 4096,
                "append_bytes_max": 300,
                "in_flight_bytes_max": 1500,
                "journal_segment_bytes": 1 << 15,
                "log_memory_bytes_max": 1 << 12,
                **self.settings,
            },
        )

    # -- network -----------------------------------------------------------------------------------------

    def sent(self, source, target, message):
        epoch = self.links.get(frozenset((source, target)))
        if epoch is not None:
            delay = self.rng.choice((0.0001, 0.001, 0.004, 0.02))
            self.queues[source, target].append((self.now + delay, message))

    def knows(self, a, b):
        """Whether ``a`` lets ``b`` connect."""
        engine = self.nodes[a].engine
        return engine.hears_anyone or b in engine.wanted_peers()

    def connect(self, a, b):
        self.epoch += 1
        self.links[frozenset((a, b))] = self.epoch
        for source, target in ((a, b), (b, a)):
            self.queues[source, target] = deque()
            self.nodes[source].engine.peer_up(target, self.epoch)

    def disconnect(self, a, b):
        epoch = self.links.pop(frozenset((a, b)), None)
        if epoch is None:
            return
        for source, target in ((a, b), (b, a)):
            # Bytes of the old connection that are still on their way.
            self.stale += [
                (self.now + 0.05, source, target, epoch, message) for _, message in self.queues.pop((source, target))
            ]
            if self.nodes[source].engine is not None:
                self.nodes[source].engine.peer_down(target)

    def pairs(self):
        names = sorted(self.nodes)
        return [(a, b) for number, a in enumerate(names) for b in names[number + 1 :]]

    # -- faults ------------------------------------------------------------------------------------------

    def kill(self, node):
        for other in self.nodes:
            if other != node.name:
                self.disconnect(node.name, other)
        node.engine = None
        node.busy = False
        node.disk.kill(self.rng)

    def power_loss(self):
        for node in self.nodes.values():
            node.engine = None
        self.links.clear()
        self.queues.clear()
        self.stale.clear()
        for node in self.nodes.values():
            node.busy = False
            node.disk.kill(self.rng)

    def inside_flush(self, node):
        """The flush of ``node`` takes a while: the others go on, and then it may never return."""
        for _ in range(self.rng.choice((0, 1, 4, 12))):
            self.now += 0.0005
            self.deliver_and_tick()
        if self.faults:
            chance = self.rng.random()
            if chance < 0.004:
                raise PowerLossError
            if chance < 0.008:
                raise NodeKilledError

    def disturb(self):
        rng = self.rng
        if rng.random() < 0.01:
            self.disconnect(*rng.choice(self.pairs()))
        if rng.random() < 0.003:
            self.cut = set(rng.choice(self.pairs())) if rng.random() < 0.5 else {rng.choice(sorted(self.nodes))}
        if self.cut and rng.random() < 0.02:
            self.cut = set()

    # -- running -----------------------------------------------------------------------------------------

    def deliver_and_tick(self):
        for (source, target), queue in list(self.queues.items()):
            node = self.nodes[target]
            while queue and queue[0][0] <= self.now and not node.busy and node.engine is not None:
                epoch = self.links[frozenset((source, target))]
                self.hand_over(node, source, epoch, queue.popleft()[1])
        for item in [item for item in self.stale if item[0] <= self.now]:
            _, source, target, epoch, message = item
            node = self.nodes[target]
            if not node.busy and node.engine is not None:
                self.stale.remove(item)
                self.hand_over(node, source, epoch, message)
        for node in self.nodes.values():
            if node.engine is not None and not node.busy:
                node.tick()

    @staticmethod
    def hand_over(node, source, epoch, message):
        match type(message).__name__:
            case "ReadProbe":
                node.engine.receive_probe(source, message)
            case "ReadProbeAck":
                node.engine.receive_probe_ack(source, message)
            case _:
                node.engine.receive(source, epoch, message)

    def client(self):
        for node in self.nodes.values():
            engine = node.engine
            if engine is None or node.busy or engine.role is not Role.LEADER:
                continue
            for _ in range(self.rng.choice((0, 0, 1, 3))):
                self.proposed += 1
                command = b"command %d" % self.proposed + bytes(self.rng.choice(self.command_sizes))

                def acknowledged(index, command=command):
                    assert self.history.commands[index] == command
                    self.history.acknowledged[command] = index

                try:
                    engine.propose(command, acknowledged)
                except ConsensusError:
                    break
            if self.rng.random() < 0.2 and engine.ready:
                floor = max(self.history.acknowledged.values(), default=0)

                def read(index, floor=floor):
                    assert index >= floor, f"a read point of {index}, but {floor} was acknowledged before"

                engine.read(read)

    def step(self):
        self.now += self.rng.choice((0.0002, 0.001, 0.005, 0.02))
        try:
            if self.faults:
                self.disturb()
            for node in self.nodes.values():
                if node.engine is None and not node.retired and self.rng.random() < 0.1:
                    node.start()
            for a, b in self.pairs():
                up = frozenset((a, b)) in self.links
                wanted = (a in self.cut) == (b in self.cut) or len(self.cut) == len(self.nodes)
                alive = self.nodes[a].engine is not None and self.nodes[b].engine is not None
                wanted = wanted and alive and self.knows(a, b) and self.knows(b, a)
                if up and not wanted:
                    self.disconnect(a, b)
                elif not up and wanted and self.rng.random() < 0.3:
                    self.connect(a, b)
            self.client()
            self.deliver_and_tick()
        except PowerLossError:
            self.power_loss()

    def leader(self):
        leaders = [node for node in self.nodes.values() if node.engine is not None and node.engine.ready]
        return max(leaders, key=lambda node: node.engine.term, default=None)

    def run_until(self, condition, *, steps_max=20_000):
        for _ in range(steps_max):
            if condition():
                return
            self.step()
        raise AssertionError("the condition never came true")

    def lasting(self):
        """The nodes that must have everything in the end."""
        return list(self.nodes.values())

    def settle_and_check(self):
        """Stop the faults, let the cluster agree, and check every promise; returns how much was acknowledged."""
        self.faults = False
        self.cut = set()
        target = len(self.history.acknowledged) + 5
        self.run_until(lambda: len(self.history.acknowledged) >= target)
        acknowledged = dict(self.history.acknowledged)
        last = max(acknowledged.values())
        nodes = self.lasting()
        self.run_until(lambda: all(node.engine and node.engine.applied_index >= last for node in nodes))
        for node in nodes:
            commands = [command for _, command in node.machine.log]
            assert len(set(commands)) == len(commands), "a command was applied twice"
            missing = set(acknowledged) - set(commands)
            assert not missing, f"{len(missing)} acknowledged commands are lost"
        logs = [node.machine.log for node in nodes]
        shortest = min(map(len, logs))
        assert all(log[:shortest] == logs[0][:shortest] for log in logs)
        return len(self.history.acknowledged)
