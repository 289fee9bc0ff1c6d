"""The journal and the state of a simulated node, with somebody watching what they do.

Tells :mod:`oncegate.proof.sim.engine.observe` what was appended, cut off, flushed, compacted and applied. Read next:
:mod:`oncegate.proof.sim.engine.engine_node`, :mod:`oncegate.proof.sim.engine.durable_machine`.
"""

from __future__ import annotations

import zlib

from oncegate.consensus.configuration import decode
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.proof.sim.engine.durable_machine import DurableMachine
from oncegate.proof.sim.engine.fake_disk import InlineWorker


class ObservedLog(LibraryLog):
    """The journal, with somebody watching the writes."""

    def __init__(self, node, ballot, **bounds):
        self._node = self._see = None
        super().__init__(node.disk, InlineWorker(), ballot, **bounds)
        self._node, self._see = node.name, node.world.see
        self._node_counts = node.world.counts

    def append(self, command, index, term):
        super().append(command, index, term)
        self._see.appended(self._node, index, term, command)

    def truncate_from(self, index):
        removes = index <= self.last_index
        super().truncate_from(index)
        if removes:
            self._see.truncated(self._node, index)

    def compact(self, index, **options):
        before = self.base.index
        super().compact(index, **options)
        if self.base.index > before:
            self._node_counts["compactions"] += 1

    def reset_to(self, point):
        if self.term_at(point.index) != point.term:
            # The state is on disk already, and goes before the log from now on, whatever becomes of this call.
            self._see.installed(self._node, point.index + 1, point.configuration)
        super().reset_to(point)

    def flush(self):
        if self._batch:
            super().flush()
            self._see.flushed(self._node)


class Machine:
    """The replicated state: how much was applied, and a digest of it all."""

    def __init__(self, node):
        self._name, self._see = node.name, node.world.see
        self.commands = {}
        self.digest = 0
        self.last = 0

    def apply(self, index, term, command):
        self._see.applied(self._name, index, term, command)
        self.commands[index] = command
        self.digest = zlib.crc32(command, self.digest)
        self.last = index
        if not index & 15:
            self._see.state(self._name, index, self.digest)
        return index


class SavedMachine(DurableMachine):
    """The same on disk: saved by a job that runs a while later, copied to who is too far behind."""

    def __init__(self, node):
        self._node, self._see = node, node.world.see
        self._opened = False
        super().__init__(node.disk, every=node.world.plan.save_every, lazy=True, on_loaded=self._loaded)
        self._opened = True

    @property
    def commands(self):
        return dict(self.log)

    def apply(self, index, term, command):
        self._see.applied(self._node.name, index, term, command)
        return super().apply(index, term, command)

    def begin_save(self, point):
        super().begin_save(point)
        self._node.world.counts["saves"] += 1
        self._node.save_soon()

    def _loaded(self, state):
        see, name = self._see, self._node.name
        self._node.world.counts["snapshots installed" if self._opened else "states loaded"] += 1
        see.loaded(name, state.point.index, state.entries)
        # One that joined saves states of before it was added under no configuration at all.
        if decode(state.point.configuration).members:
            see.configured(name, state.point.index, state.point.configuration)
