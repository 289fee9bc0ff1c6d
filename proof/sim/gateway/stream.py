"""Rows of a stream table, read linearizably before and after their batches go to the store and are dropped.

Owns the workload, its store and its consumer. Read next: :mod:`oncegate.gateway.node.reads`,
:mod:`oncegate.proof.sim.gateway.consumer`.
"""

from __future__ import annotations

import asyncio

import msgspec

from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.lookup import FoundWrite
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.consumer import Consumers
from oncegate.proof.sim.gateway.flow import STREAM, Rows, items_of
from oncegate.proof.sim.gateway.workload import Habits, Workload, op, text
from oncegate.rifl.errors import Code, OncegateError
from oncegate.stores.stream_rows import ROWS_CONSUMER


class DeliveredRows:
    """Stands where :class:`oncegate.gateway.node.stream_store.StreamStore` stands: one for all nodes, slow, and
    sometimes silent.
    """

    def __init__(self, world, rng):
        self._world, self._rng = world, rng
        self._rows = {}

    def write(self, items):
        """Take rows as stores do: the newest of a key stays, whatever comes late."""
        for commit, key, value in items:
            self._rows[key] = max(self._rows.get(key, FoundWrite(0, None)), FoundWrite(commit, value))

    async def find(self, table, key):
        await asyncio.sleep(0.01 * self._rng.random())
        if not self._world.quiet and self._rng.random() < 0.05:
            raise OncegateError(Code.NOT_READY, "the store does not answer")
        self._world.counts["rows read from the store"] += 1
        found = self._rows.get(key)
        await asyncio.sleep(0.01 * self._rng.random())
        return found


class Delivery(Consumers):
    """Brings batches into the store, then moves the cursor; an instance that was replaced may do so late."""

    def __init__(self, world, rows):
        super().__init__(world, STREAM, ROWS_CONSUMER)
        self._rows = rows

    def deliver(self, batch, then):
        def write():
            self._rows.write(items_of(self.world.batches[STREAM, batch]))
            then()

        self.world.scheduler.after(self._rng.choice((0.005, 0.02, 0.4)) * self._rng.random(), write)


class StreamRows(Workload):
    """Writes and deletions of few keys, alone and in ranges, and reads, while batches come and go."""

    name = "stream"
    model = "register"
    habits = Habits(read_share=0.6, window=16, copies_share=0.3, keys=12)
    tables = ((STREAM, "stream"),)

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self._flow = FlowDeclaration(
            name=STREAM,
            source=STREAM,
            max_items=rng.choice((1, 2, 5)),
            linger_ms=rng.choice((50, 300)),
            retention_ms=rng.choice((0, 0, 200, 1_000)),
            consumers=(ROWS_CONSUMER,),
        )
        world.stored = DeliveredRows(world, world.stream("stored rows"))
        self._delivery = Delivery(world, world.stored)

    def set_up(self):
        return [c.DeclareTable(STREAM, "stream", 1 << 30, msgspec.json.encode(self._flow))]

    def begin(self):
        self._delivery.begin()

    def write(self, rng, seen):
        key, kind = rng.choice(self.keys), rng.random()
        if kind < 0.15:
            return "write", key, None, op(c.OpKind.DELETE, key, table=STREAM)
        value = self.unique()
        if kind < 0.5:
            return "write", key, value, op(c.OpKind.PUT, key, text(value), table=STREAM)
        others = [(f"r{rng.randrange(3)}", text(self.unique())) for _ in range(rng.randrange(5))]
        return "write", key, value, Rows((*others, (key, text(value))))

    def result(self, f, argument, result):
        return argument
