"""The machine's state on the simulated disk: the real freeze, cells and restore, in one sealed file.

Stands where :class:`oncegate.gateway.machine.state.MachineState` stands; RocksDB does not run on a disk that is
simulated, so the store is a dictionary of the same cells. Read next: :mod:`oncegate.gateway.machine.state.frozen`,
:mod:`oncegate.proof.sim.engine.durable_machine`.
"""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import msgspec

from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state.frozen import freeze
from oncegate.gateway.machine.state.restore import restore
from oncegate.proof.sim.engine.durable_machine import DurableMachine


class Cells:
    """What of :class:`oncegate.gateway.machine.state.store.RocksStore` rows and restore call."""

    path = Path("simulated")

    def __init__(self, cells):
        self.replace(cells)

    def replace(self, cells):
        """Hold these from now on."""
        self.cells = cells
        self._keys = sorted(cells)

    def value(self, key):
        return self.cells.get(key)

    def values(self, keys):
        return [self.cells.get(key) for key in keys]

    def scan(self, prefix, start=b"", end=None):
        keys, cells = self._keys, self.cells
        for at in range(bisect_left(keys, prefix + start), len(keys)):
            if not keys[at].startswith(prefix) or (end is not None and keys[at] >= prefix + end):
                return
            yield keys[at], cells[keys[at]]


class SavedCells(msgspec.Struct, array_like=True):
    point: SavedPoint
    cells: dict[bytes, bytes]


def applied(node, index, term, command):
    """Apply an entry to the machine of a node's gateway, seen by the world; return its results."""
    world, gateway = node.world, node.gateway
    world.see.applied(node.name, index, term, command)
    machine = gateway.machine
    commit = machine.commit
    results = apply(machine, index, term, command)
    gateway._applied(index, commit, results)
    if not index & 15:
        world.state_at(node.name, index, machine)
    return results


class GatewayState(DurableMachine):
    """A machine that is saved every so many entries; a save is written by a job that runs a while later."""

    state_type = SavedCells
    broken = damage = None
    overloaded = False

    def __init__(self, node):
        self._node = node
        self.machine = None
        self._opened = False
        super().__init__(node.disk, every=node.world.plan.save_every, lazy=True, on_loaded=self._loaded)
        if self.machine is None:
            self.load(SavedCells(None, {}))
        self._opened = True

    def load(self, state):
        self.cells = Cells(dict(state.cells))
        restored = restore(self.cells)
        if self.machine is None:
            self.machine = restored.machine
        else:
            self.machine.adopt(restored.machine)
        self._marks = restored.marks
        self.point = state.point
        self.since = 0

    def _loaded(self, state):
        world = self._node.world
        world.counts["snapshots installed" if self._opened else "states loaded"] += 1
        world.state_at(self._node.name, state.point.index, self.machine)
        if self._opened:
            self._node.gateway._installed()

    def apply(self, index, term, command):
        results = applied(self._node, index, term, command)
        self.since += 1
        return results

    def begin_save(self, point):
        self._node.world.state_at(self._node.name, point.index, self.machine)
        self.writing = point, freeze(self.machine, point, self._marks)[0]
        self.since = 0
        self._node.world.counts["saves"] += 1
        self._node.save_soon()

    def work(self):
        if self.writing is None:
            return
        (point, frozen), self.writing = self.writing, None
        cells = dict(self.cells.cells)
        for key, value in frozen.cells():
            if value is None:
                cells.pop(key, None)
            else:
                cells[key] = value
        try:
            self.store(SavedCells(point, cells))
        except OSError:
            self.writing = point, frozen
            return
        self.cells.replace(cells)
        frozen.sessions.release()
        self.point = point


class ReplayedState:
    """A machine that is made again from the whole log at each start."""

    broken = damage = None
    overloaded = saving = False

    def __init__(self, node):
        self._node = node
        self.machine = Machine()

    def apply(self, index, term, command):
        return applied(self._node, index, term, command)
