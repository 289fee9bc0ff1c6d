"""Workloads: the same as on real processes (``proof/check/workloads``).

Read next: :mod:`oncegate.proof.sim.gateway.workload`, :mod:`oncegate.proof.sim.gateway.checks`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.caller import KeyedCaller
from oncegate.proof.sim.gateway.flow import FlowExactness
from oncegate.proof.sim.gateway.stream import StreamRows
from oncegate.proof.sim.gateway.workload import Habits, Workload, op, text


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


WORKLOADS = {
    workload.name: workload
    for workload in (
        *(Register, Counter, Dedup, AppendList, Bank, HandOver, Resolve, Lease, Keys, FlowExactness, StreamRows),
    )
}
"""By name; seeds take turns in this order."""
