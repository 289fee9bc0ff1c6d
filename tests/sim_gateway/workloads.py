"""Workloads: what processes do, how results are written into the history, what is read in the end.

The same as on real processes (``gateway/check/workloads``). A workload is data and a few functions; its processes are
:class:`tests.sim_gateway.processes.Process`. Read next: :mod:`tests.sim_gateway.checks`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from gateway import commands as c

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
    """Of :mod:`rifl.lincheck`, by which the history is judged."""
    habits = Habits()
    mix: ClassVar[dict[str, int]] = {}
    """Weights of faults, where they differ from the usual."""
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

    def write(self, rng, seen):
        """Draw a write: (f, key, argument, operation); ``seen`` maps keys to what this process read last."""
        raise NotImplementedError

    def result(self, f, argument, result):
        """What the history says of an operation that is ok; ``result`` is a ``wire.OperationResult``."""
        raise NotImplementedError

    def read_value(self, row):
        """What the history says of a row that was read, or None for one that is not there."""
        return None if row is None else msgspec.json.decode(row.value)

    def finish(self):
        """Keys that are read when all is over, with the operation's name."""
        return [("read", key) for key in self.keys]


def _refused(result):
    value = None if result.value is msgspec.UNSET else result.value
    return {"refused": True, "value": value}


class Register(Workload):
    """Reads, writes and compare-and-set."""

    name = "register"
    model = "register"

    def write(self, rng, seen):
        key = rng.choice(self.keys)
        if rng.random() < 0.5:
            value = self.unique()
            return "write", key, value, op(c.Kind.PUT, key, text(value))
        old, new = seen.get(key), self.unique()
        if old is None:
            return "cas", key, [None, new], op(c.Kind.PUT, key, text(new), test=c.Test.ABSENT)
        return "cas", key, [old, new], op(c.Kind.PUT, key, text(new), test=c.Test.VALUE, operand=text(old))

    def result(self, f, argument, result):
        if result.status == "refused":
            return _refused(result)
        return argument if f == "write" else argument[1]


class Counter(Workload):
    """Increments with retries, and reads."""

    name = "counter"
    model = "counter"

    def write(self, rng, seen):
        key, by = rng.choice(self.keys), rng.choice((1, 1, 2, 5))
        return "increment", key, by, op(c.Kind.INCREMENT, key, by=by)

    def result(self, f, argument, result):
        return result.value

    def read_value(self, row):
        return 0 if row is None else msgspec.json.decode(row.value)


class Dedup(Counter):
    """Every request is sent to all nodes at once while leaders change."""

    name = "dedup"
    habits = Habits(copies_share=1.0, patience_s=(1.0, 2.5), read_share=0.15)
    mix: ClassVar[dict[str, int]] = {"kill": 9, "transfer": 6, "members": 0}


WORKLOADS = {workload.name: workload for workload in (Register, Counter, Dedup)}
