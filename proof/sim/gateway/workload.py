"""What a workload is: the habits of its clients, its operations, how results are written into the history.

Its processes are :class:`oncegate.proof.sim.gateway.processes.Process`. Read next:
:mod:`oncegate.proof.sim.gateway.workloads`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.session import Session

TABLE = "t"


@dataclass(frozen=True)
class Habits:
    """How clients use their sessions."""

    sessions: tuple = (2, 3, 4)
    lanes: tuple = (1, 2, 3)
    """Processes that share a session."""
    window: int = 8
    lease_ms: int = 10_000
    patience_s: tuple = (0.4, 1.0, 2.5)
    """How long an operation is tried before it is given up."""
    copies_share: float = 0.2
    """Requests that are sent to several nodes at once."""
    resolve_share: float = 0.0
    pause_share: float = 0.0
    """Renewals that come too late."""
    hand_over_s: tuple = ()
    """Seconds until a session changes hands; empty for never."""
    read_share: float = 0.35
    probe_share: float = 0.0
    """Operations whose id is used again, for something that must not be executed."""
    sleep_share: float = 0.0
    """Pauses of a process that are longer than a lease."""
    keys: int = 3


def text(value):
    """JSON text in canonical form."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def op(kind, key, value=None, *, by=0, test=c.Test.NONE, operand=None, table=TABLE):
    """An operation without its number."""
    return c.Op(0, int(kind), table, key, 0, value, by, int(test), operand)


class Workload:
    """One kind of run."""

    name = ""
    model = ""
    """Of :mod:`oncegate.proof.lincheck`, by which the history is judged."""
    habits = Habits()
    mix: ClassVar[dict[str, int]] = {}
    """Weights of faults, where they differ from the usual."""
    read_f = "read"
    caller = Session
    """What sends the operations."""
    reaps = False
    """In the end, sessions that nobody renews have to be gone."""
    tables = ((TABLE, "resident"),)

    def __init__(self, world, rng):
        self.world, self.rng = world, rng
        self._unique = 0
        self.keys = [f"k{number}" for number in range(self.habits.keys)]

    def unique(self):
        """A value that nothing else has."""
        self._unique += 1
        return self._unique

    def set_up(self):
        """Commands that are applied before anything else happens."""
        return [c.DeclareTable(name, kind, 1 << 30) for name, kind in self.tables]

    def begin(self):
        """The tables are there, processes begin."""

    def sealed(self, world, name, batch):
        """A node has closed a batch of a flow."""

    def write(self, rng, seen):
        """Draw a write: (f, key, argument, operation); ``seen`` maps keys to what this process read last."""
        raise NotImplementedError

    def result(self, f, argument, result):
        """What the history says of an operation that is ok; ``result`` is a ``wire.OperationResult``."""
        raise NotImplementedError

    def read_value(self, row):
        """What the history says of a row that was read, or None for one that is not there."""
        return None if row is None else msgspec.json.decode(row.value)

    def ended(self, seen, f, key, argument, ended):
        """An operation of the process that ``seen`` belongs to has ended."""

    def finish(self):
        """Keys that are read when all is over, with the operation's name."""
        return [(self.read_f, key) for key in self.keys]

    def check(self, world):
        """Return what else was wrong, as (check, text); the history is judged by its model already."""
        return []
