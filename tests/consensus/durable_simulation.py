"""The simulation with a state on disk: saves, compaction, snapshots, and kills inside every one of their system calls.

Checked besides what the simulation checks: a state that was loaded or installed is exactly what replaying the log up
to its point would have made (snapshot equals replay).
"""

from __future__ import annotations

from typing import ClassVar

from oncegate.consensus.ports import Role
from oncegate.proof.sim.engine.durable_machine import DurableMachine
from tests.consensus.simulation import NodeKilledError, PowerLossError, SimNode, Simulation

STATE_CALLS = ("state", "incoming", "base", "remove")


class DurableNode(SimNode):
    installs = 0

    def make_machine(self):
        machine = DurableMachine(
            self.disk, every=25, lazy=True, on_applied=self.sim.history.applied, on_loaded=self.sim.state_loaded
        )
        self.installs_before = self.installs
        return machine

    def disk_called(self, call, name):
        super().disk_called(call, name)
        if self.busy and self.sim.faults and any(part in f"{call} {name}" for part in STATE_CALLS):
            chance = self.sim.rng.random()
            if chance < self.sim.state_kill_chance:
                raise NodeKilledError if chance < self.sim.state_kill_chance * 0.7 else PowerLossError

    def tick(self):
        super().tick()
        if self.engine is None:
            return
        self.installs = self.installs_before + self.machine.installs
        self.sim.bases.append(self.engine.log.base.index)
        if self.engine.role is not Role.LEADER:
            assert self.engine._saving.needed_from is None, "a log that waits for nobody's followers"
        if self.machine.saving and self.sim.rng.random() < 0.1:
            self.busy = True
            try:
                self.machine.work()
                self.busy = False
            except NodeKilledError:
                self.sim.kill(self)


class DurableSimulation(Simulation):
    node_type = DurableNode
    command_sizes = (0, 100, 500, 900)
    state_kill_chance = 0.004
    settings: ClassVar = {
        "command_bytes_max": 1024,
        "journal_segment_bytes": 10_000,
        "log_kept_bytes": 0,
        "uncommitted_bytes_max": 100_000,
        "append_bytes_max": 3000,
        "in_flight_bytes_max": 9000,
        "snapshot_chunk_bytes": 4000,
        "snapshot_bytes_per_s": 3_000_000,
        "snapshot_idle_s": 2.0,
    }

    def __init__(self, seed, **options):
        self.bases = []
        super().__init__(seed, **options)

    def state_loaded(self, state):
        commands = self.history.commands
        replayed = [(index, commands[index]) for index in sorted(commands) if index <= state.point.index]
        assert [tuple(entry) for entry in state.entries] == replayed, (
            f"the state at {state.point.index} is not the log's"
        )

    @property
    def installs(self):
        return sum(node.installs for node in self.nodes.values())

    def leave_behind(self, entries):
        """Cut one follower off until the others have forgotten what it needs; returns it."""
        self.run_until(lambda: self.leader() is not None)
        leader = self.leader()
        late = self.rng.choice([node for node in self.nodes.values() if node is not leader])
        late_index = late.engine.log.last_index if late.engine else 0

        def forgotten():
            self.cut = {late.name}
            now = self.leader()
            return now is not None and now is not late and now.engine.log.base.index > late_index + entries

        self.run_until(forgotten)
        self.cut = set()
        return late
