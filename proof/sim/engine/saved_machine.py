"""The replicated state on disk: saved by a job that runs a while later, copied to who is too far behind.

Read next: :mod:`oncegate.proof.sim.engine.durable_machine`, :mod:`oncegate.proof.sim.engine.engine_node`.
"""

from __future__ import annotations

from oncegate.consensus.configuration import decode
from oncegate.proof.sim.engine.durable_machine import DurableMachine


class SavedMachine(DurableMachine):
    """What was applied, and how it got here."""

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
