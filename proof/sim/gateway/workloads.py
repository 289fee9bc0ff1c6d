"""Workloads on rows, the same as on real processes (``proof/check/workloads``): the habits of the clients, their
operations, and how results are written into the history.

Processes run them (:class:`oncegate.proof.sim.gateway.processes.Process`). Read next:
:mod:`oncegate.proof.sim.gateway.flows`, for those on flows, :mod:`oncegate.proof.sim.gateway.world`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.caller import KeyedCaller
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
    together_share: float = 0.3
    """Attempts that take along all that waits."""
    gather_s: float = 0.0
    """How long an operation waits for others before its first attempt, at most."""


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
    flows = ()
    """Declarations of flows, beside those of the tables."""

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
        tables = [c.DeclareTable(name, kind, 1 << 30) for name, kind in self.tables]
        return tables + [c.DeclareFlow(msgspec.json.encode(flow)) for flow in self.flows]

    def begin(self):
        """The tables are there, processes begin."""

    def sealed(self, world, name, batch):
        """A node has closed a batch of a flow."""

    def state_at(self, machine):
        """A node has reached a state."""

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


def _refused(result):
    value = None if result.value is msgspec.UNSET else result.value
    return {"refused": True, "value": value}


class Register(Workload):
    """Reads, writes and compare-and-set."""

    name = "register"
    model = "cas-register"

    def write(self, rng, seen):
        key = rng.choice(self.keys)
        if rng.random() < 0.5:
            value = self.unique()
            return "write", key, value, op(c.OpKind.PUT, key, text(value))
        old, new = seen.get(key), self.unique()
        if old is None:
            return "cas", key, [None, new], op(c.OpKind.PUT, key, text(new), test=c.Test.ABSENT)
        return "cas", key, [old, new], op(c.OpKind.PUT, key, text(new), test=c.Test.VALUE, operand=text(old))

    def result(self, f, argument, result):
        if result.status == "refused":
            return _refused(result)
        return argument if f == "write" else argument[1]


class Runs(Register):
    """Writes of many lanes of a session, gathered: plain puts under adjacent numbers, which the log has in columns.

    They are sent again in other cuts, with what has come meanwhile; each has its own answer, and is acknowledged alone.
    """

    name = "runs"
    habits = Habits(
        sessions=(1, 2),
        lanes=(12, 16),
        window=32,
        keys=6,
        together_share=0.8,
        gather_s=0.05,
        read_share=0.1,
        copies_share=0.4,
        resolve_share=0.1,
    )

    def write(self, rng, seen):
        if rng.random() < 0.1:
            return super().write(rng, seen)
        key, value = rng.choice(self.keys), self.unique()
        return "write", key, value, op(c.OpKind.PUT, key, text(value))


class Counter(Workload):
    """Increments with retries, and reads."""

    name = "counter"
    model = "counter"

    def write(self, rng, seen):
        key, by = rng.choice(self.keys), rng.choice((1, 1, 2, 5))
        return "increment", key, by, op(c.OpKind.INCREMENT, key, by=by)

    def result(self, f, argument, result):
        return result.value

    def read_value(self, row):
        return 0 if row is None else msgspec.json.decode(row.value)


class Dedup(Counter):
    """Every request is sent to all nodes at once while leaders change."""

    name = "dedup"
    habits = Habits(copies_share=1.0, patience_s=(1.0, 2.5), read_share=0.15, probe_share=0.1)
    mix: ClassVar[dict[str, int]] = {"kill": 9, "transfer": 6, "members": 0}


class AppendList(Workload):
    """Items appended to lists, which are read whole."""

    name = "list"
    model = "list"
    habits = Habits(keys=2)

    def write(self, rng, seen):
        key, item = rng.choice(self.keys), self.unique()
        return "append", key, item, op(c.OpKind.APPEND, key, text(item))

    def result(self, f, argument, result):
        return None

    def read_value(self, row):
        return [] if row is None else msgspec.json.decode(row.value)


class Bank(Workload):
    """Transfers: money is taken under a condition on the row's version, then given to another account."""

    name = "bank"
    model = "row"
    read_f = "get"
    habits = Habits(read_share=0.4)

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self.takings, self.givings = [], []

    def write(self, rng, seen):
        owed = seen.pop("owed", None)
        if owed is not None:
            key, by = owed
            return "increment", key, {"by": by}, op(c.OpKind.INCREMENT, key, by=by)
        key = rng.choice(self.keys)
        row = seen.get(key) or {"version": 0}
        balance, version = row.get("value", 0), row["version"]
        amount = rng.randint(1, 9)
        argument = {"value": balance - amount, "if": {"version": version}}
        work = op(c.OpKind.PUT, key, text(balance - amount), test=c.Test.VERSION, operand=version)
        seen["taking"] = amount
        return "put", key, argument, work

    def ended(self, seen, f, key, argument, ended):
        if f == "put":
            self.takings.append((ended, seen["taking"]))
            if ended.status == "ok" and ended.result.status == "applied":
                seen["owed"] = (self.rng.choice([other for other in self.keys if other != key]), seen["taking"])
        else:
            self.givings.append((ended, argument["by"]))

    def result(self, f, argument, result):
        told = {"version": result.version}
        if result.value is not msgspec.UNSET:
            told["value"] = result.value
        if result.status == "refused":
            told["refused"] = result.code
        return told

    def read_value(self, row):
        return {"version": 0} if row is None else {"version": row.version, "value": msgspec.json.decode(row.value)}

    def check(self, world):
        balances = {}
        for event in world.history.events:
            if event.type == "ok" and event.f == "get":
                balances[event.key] = event.value.get("value", 0)
        total = sum(balances.values())
        given = [sum(by for ended, by in self.givings if ended.status == status) for status in ("ok", "info")]
        taken = [
            sum(by for ended, by in self.takings if ended.status == status and _applied(ended))
            for status in ("ok", "info")
        ]
        low, high = given[0] - taken[0] - taken[1], given[0] + given[1] - taken[0]
        if not low <= total <= high:
            return [("audit", f"the accounts hold {total}, not between {low} and {high}")]
        return []


def _applied(ended):
    return ended.status == "info" or ended.result.status == "applied"


class HandOver(Counter):
    """Sessions change hands while their operations are under way; the old owner may not know."""

    name = "hand-over"
    habits = Habits(hand_over_s=(0.15, 0.7), copies_share=0.4, read_share=0.2)


class Resolve(Counter):
    """What has no verdict soon is resolved, while its copies are still under way."""

    name = "resolve"
    habits = Habits(patience_s=(0.02, 0.1, 0.3), resolve_share=0.9, copies_share=0.5, read_share=0.2)


class Lease(Counter):
    """Short leases, late renewals, clients that sleep, and reaping."""

    name = "lease"
    habits = Habits(lease_ms=600, pause_share=0.3, sleep_share=0.1, patience_s=(0.4, 1.0), read_share=0.2)
    reaps = True
    mix: ClassVar[dict[str, int]] = {"clock": 1}


class Keys(Counter):
    """Callers without a session: what is repeated carries the same idempotency key."""

    name = "keys"
    habits = Habits(copies_share=0.5, read_share=0.2)
    caller = KeyedCaller
    mix: ClassVar[dict[str, int]] = {"clock": 0}
