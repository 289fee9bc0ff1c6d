"""The history of a run (:mod:`oncegate.proof.lincheck.history`). Read next:
:mod:`oncegate.proof.sim.gateway.checks`.
"""

from __future__ import annotations

from oncegate.proof.lincheck import Event


class History:
    """Events in the order in which clients saw them."""

    def __init__(self, world):
        self._world = world
        self.events = []
        self._processes = 0

    def new_process(self):
        """Return the number of a process that has done nothing yet."""
        self._processes += 1
        return self._processes

    def note(self, process, kind, f, key=None, value=None, **more):
        """Enter an event now."""
        self._world.note(process, kind, f, key, value, *more.values())
        self.events.append(Event(process, kind, f, key, value, round(self._world.now * 1e9), **more))
