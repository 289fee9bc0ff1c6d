"""Rows that end: holds with a time to live, rows bound to sessions that expire, and rows that stay.

A flow on the table tells all changes in commit order, each with its cluster time. With what each value was written
with, that says when a row had to end, and whether one is there that has ended. Read next:
:mod:`oncegate.gateway.machine.ending`, :mod:`oncegate.proof.sim.gateway.workloads`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import ClassVar

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.cascades import NO_SESSION
from oncegate.proof.sim.gateway.flows import open_chunks
from oncegate.proof.sim.gateway.workloads import TABLE, Habits, Workload, op, text

LATE_MS = 1_000
"""What docs/SEMANTICS.md allows."""
FLOW = "holds"


class Holds(Workload):
    """Puts with and without an end, deletes, and reads, while sessions expire and are reaped."""

    name = "holds"
    habits = Habits(
        lease_ms=600, pause_share=0.3, sleep_share=0.1, patience_s=(0.4, 1.0), read_share=0.1, copies_share=0.5, keys=4
    )
    reaps = True
    mix: ClassVar[dict[str, int]] = {"clock": 1}
    flows = ({"name": FLOW, "source": TABLE, "max_items": 20, "linger_ms": 1_000},)

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self._ends = {}
        self._items = {}

    def write(self, rng, seen):
        key = rng.choice(self.keys)
        if rng.random() < 0.1:
            return "delete", key, None, op(c.OpKind.DELETE, key)
        value = self.unique()
        ttl_ms, bound = rng.choice((0, 0, 50, 300, 1_500)), rng.random() < 0.4
        self._ends[value] = ttl_ms, bound
        test = rng.choice((c.Test.NONE, c.Test.ABSENT))
        work = op(c.OpKind.PUT, key, text(value), test=test)
        return "hold", key, [value, ttl_ms, bound], c.with_options(work, ttl_ms=ttl_ms, bound=bound)

    def result(self, f, argument, result):
        return result.status

    def sealed(self, world, name, batch):
        """Keep a batch's items once: (commit, key, value or None, cluster time, client id)."""
        if batch.number not in self._items:
            self._items[batch.number] = [item for chunk in batch.chunks for item in _items(chunk)]

    def state_at(self, machine):
        """Hold a node's rows against the changes up to its state."""
        owners = [owner for owner in machine.ends.owners() if machine.sessions.get(owner) is None]
        if owners:
            self.world.found("rows that end", f"a row is bound to session {owners[0]}, which is gone")
        flow = machine.flows.find(FLOW)
        if flow is None or self._items.keys() < set(range(1, flow.batches.last + 1)):
            return
        newest = {item[1]: item for item in self._changes(flow)}
        for key, row in machine.tables[TABLE].rows.items():
            if key not in newest or newest[key][2] != row.value:
                self.world.found("rows that end", f"{key} is {row.value!r} again, after {newest.get(key)}")

    def _changes(self, flow):
        sealed = [item for number in range(1, flow.batches.last + 1) for item in self._items[number]]
        return sealed + [item for chunk in open_chunks(flow) for item in _items(chunk)]

    def check(self, world):
        node = world.living()[0]
        machine = node.gateway.machine
        changes = self._changes(machine.flows.get(FLOW))
        written = {}
        for _, _, _, at_ms, client_id in changes:
            written.setdefault(client_id, []).append(at_ms)
        wrong = []
        for key in self.keys:
            ours = [item for item in changes if item[1] == key]
            for before, after in pairwise([*ours, None]) if ours else ():
                why = self._wrong(before, after, machine, written)
                if why:
                    wrong.append(("rows that end", f"{key}: {before} {why}, next is {after}"))
            world.counts["ends"] += sum(item[2] is None and item[4] == NO_SESSION for item in ours)
        return wrong

    def _wrong(self, before, after, machine, written):
        _, _, value, at_ms, client_id = before
        if value is None:
            return "is deleted twice" if after is not None and after[2] is None and after[4] == NO_SESSION else None
        ttl_ms, bound = self._ends[msgspec.json.decode(value)]
        until = machine.time_ms if after is None else after[3]
        if ttl_ms and until > at_ms + ttl_ms + LATE_MS:
            return f"outlives its end by more than {LATE_MS} ms"
        if after is None or after[2] is not None or after[4] != NO_SESSION:
            return None
        if ttl_ms and until >= at_ms + ttl_ms:
            return None
        if not bound:
            return "ends early" if ttl_ms else "ends, and was to stay"
        last = written[client_id]
        return "ends before its session" if bisect_right(last, until) < len(last) else None


def _items(chunk):
    for row, key in enumerate(chunk.keys):
        cells = (column[8 * row : 8 * row + 8] for column in (chunk.commits, chunk.times_ms, chunk.client_ids))
        commit, at_ms, client_id = (int.from_bytes(cell, "little") for cell in cells)
        yield commit, key, chunk.values[row], at_ms, client_id
