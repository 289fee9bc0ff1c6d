"""The history of a run, in the shape of :mod:`rifl.lincheck.history`.

Read next: :mod:`tests.sim_gateway.checks`.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event; see docs/checker.md."""

    process: int
    type: str
    f: str
    key: Any = None
    value: Any = None
    time: int = 0
    node: str | None = None
    request: str | None = None
    error: str | None = None


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
        event = Event(process, kind, f, key, value, round(self._world.now * 1e9), **more)
        self._world.note(*event)
        self.events.append(event)
