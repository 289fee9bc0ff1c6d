"""Flows: workloads whose writes become batches, the consumers of those, and what both are held against.

:class:`FlowExactness`: every acknowledged write is in exactly one batch, batches are the same everywhere, a cursor
moves for the newest instance of a consumer only and never behind what was acknowledged. :class:`StreamRows`: rows of a
stream table are read linearizably before and after their batches go to the store and are dropped. Read next:
:mod:`oncegate.gateway.machine.flow_state`, :mod:`oncegate.flows.cursor`, :mod:`oncegate.gateway.node.reads`.
"""

from __future__ import annotations

import asyncio

import msgspec

from oncegate.flows import range_body
from oncegate.flows.chunks import RangeChunk, int64s_from_bytes
from oncegate.flows.flow import FlowDeclaration
from oncegate.flows.lookup import FoundWrite
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.workloads import TABLE, Habits, Workload, op, text
from oncegate.rifl.errors import Code, OncegateError
from oncegate.stores.stream_rows import ROWS_CONSUMER


class Consumers:
    """All instances of one consumer."""

    def __init__(self, world, flow, name):
        self.world, self.flow, self.name = world, flow, name
        self._rng = world.stream("consumers")
        self.attached = 0
        """The newest fence that an instance has heard of."""
        self.moved = 0
        """The furthest move that was acknowledged."""

    def instance(self, rng):
        """Return one that has not attached yet."""
        return Instance(self, rng)

    def deliver(self, batch, then):
        """Do what a consumer does with a batch, and call ``then``: nothing, at once."""
        then()

    def begin(self):
        """Start an instance now, and others later."""
        if self.world.stopped:
            return
        self.instance(self._rng).attach()
        self.world.scheduler.after(self._rng.uniform(0.3, 1.2), self.begin)


class Instance:
    """A process that attaches and moves the cursor batch by batch, until its end."""

    def __init__(self, all_of_them, rng):
        self._all, self._world, self._rng = all_of_them, all_of_them.world, rng
        self._nonce = f"{rng.getrandbits(64):016x}"
        self._fence = self._cursor = None
        self._ends = self._world.now + rng.uniform(0.4, 2.5)

    def _send(self, command, answered):
        world = self._world
        world.wire.send(self._rng.choice(world.serving), command, answered)

    def attach(self):
        world = self._world
        if self._fence is not None or world.stopped:
            return
        floor = self._all.moved
        command = c.Attach(self._all.flow, self._all.name, self._nonce)
        self._send(command, lambda answer: self._attached(answer, floor))
        world.scheduler.after(0.2, self.attach)

    def _attached(self, answer, floor):
        if self._fence is not None or isinstance(answer, Exception):
            return
        self._fence, self._cursor = answer.body.fence, answer.body.cursor
        if self._cursor < floor:
            self._world.found("cursor", f"an instance begins behind {self._cursor}, but {floor} was acknowledged")
        self._all.attached = max(self._all.attached, self._fence)
        self._move()

    def _move(self):
        world = self._world
        if world.stopped or world.now > self._ends:
            return
        newest = max((number for flow, number in world.batches if flow == self._all.flow), default=0)
        if newest > self._cursor:
            batch = self._cursor + 1
            self._all.deliver(batch, lambda: self._delivered(batch))
        world.scheduler.after(0.03 + 0.1 * self._rng.random(), self._move)

    def _delivered(self, batch):
        newer = self._all.attached > self._fence
        command = c.MoveCursor(self._all.flow, self._all.name, batch, self._fence, replay=False)
        self._send(command, lambda answer: self._moved(answer, batch, newer=newer))

    def _moved(self, answer, batch, *, newer):
        if isinstance(answer, Exception):
            return
        world = self._world
        world.counts["cursor moves"] += 1
        if newer:
            world.found(
                "cursor", f"fence {self._fence} moves the cursor to {batch} after {self._all.attached} was given"
            )
        self._cursor = max(self._cursor, batch)
        self._all.moved = max(self._all.moved, batch)


STREAM = "s"
FLOW = "f"
TAP = "g"


class Rows(list):
    """The rows of one range, where others send an operation."""

    table = STREAM


class FlowExactness(Workload):
    """Single writes and ranges of a stream table, increments of a tapped one, and a consumer of the batches."""

    name = "flow"
    habits = Habits(read_share=0.0, copies_share=0.3, hand_over_s=(0.4, 1.5), window=16)
    tables = ((TABLE, "resident"), (STREAM, "stream"))

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self.items = {}
        """Status and commit number of every row that was sent to the stream table, by its value, which is unique."""
        linger_ms = rng.choice((50, 300, 5_000))
        self.flows = [
            FlowDeclaration(
                name=FLOW, source=STREAM, max_items=rng.choice((1, 3, 7)), linger_ms=linger_ms, consumers=("c",)
            ),
            FlowDeclaration(name=TAP, source=TABLE, max_items=5, linger_ms=linger_ms),
        ]
        self.batches = {}
        self._chunks = {}
        self.consumers = Consumers(world, FLOW, "c")

    def begin(self):
        self.consumers.begin()

    def write(self, rng, seen):
        kind = rng.random()
        if kind < 0.2:
            key = rng.choice(self.keys)
            return "increment", key, 1, op(c.OpKind.INCREMENT, key, by=1)
        if kind < 0.6:
            value = self._item()
            return "put", "a", [value], op(c.OpKind.PUT, "a", text(value), table=STREAM)
        values = [self._item() for _ in range(rng.randint(1, 9))]
        return "range", "r", values, Rows((f"r{value % 5}", text(value)) for value in values)

    def ended(self, seen, f, key, argument, ended):
        if f == "increment":
            return
        commits = [None] * len(argument)
        if ended.status == "ok":
            commits = ended.result if f == "range" else [ended.result.commit]
        for value, commit in zip(argument, commits, strict=True):
            self.items[value] = ended.status, commit

    def _item(self):
        # Of what a forgotten owner sends nobody may ever hear.
        value = self.unique()
        self.items[value] = "info", None
        return value

    def result(self, f, argument, result):
        return result if f == "range" else result.commit

    def finish(self):
        return []

    # -- what nodes sealed ------------------------------------------------------------------------------

    def sealed(self, world, name, batch):
        """A node has closed a batch; the others close the same one."""
        if batch.flow not in (FLOW, TAP):
            return
        place = batch.flow, batch.number
        if self._chunks.setdefault(place, batch.chunks) == batch.chunks and place in self.batches:
            return
        items = items_of(batch)
        if self.batches.setdefault(place, items) != items:
            world.found(
                "flow", f"{name} seals batch {batch.number} of {batch.flow} with other items than a node before"
            )

    def check(self, world):
        node = next(iter(world.living()))
        found, commits = [], {}
        for flow in (FLOW, TAP):
            state = node.gateway.machine.flows.get(flow)
            numbers = sorted(number for name, number in self.batches if name == flow)
            if numbers != list(range(1, state.batches.last + 1)):
                found.append(("flow", f"batches of {flow} are {numbers}, not 1 to {state.batches.last}"))
            items = [item for number in numbers for item in self.batches[flow, number]]
            items += [item for chunk in open_chunks(state) for item in items_of_chunk(chunk)]
            commits[flow] = [commit for commit, _, _ in items]
            if commits[flow] != sorted(set(commits[flow])):
                found.append(("flow", f"items of {flow} are not in the order of their commit numbers: {commits[flow]}"))
            if flow == FLOW:
                found += self._exact(items)
        every = sorted(commits[FLOW] + commits[TAP])
        if every != list(range(1, node.gateway.machine.commit + 1)):
            found.append(("flow", f"commit numbers of all items are not 1 to {node.gateway.machine.commit}"))
        return found

    def _exact(self, items):
        at = {}
        for commit, _, value in items:
            at.setdefault(msgspec.json.decode(value), []).append(commit)
        found = []
        for value, (status, commit) in self.items.items():
            commits = at.pop(value, [])
            if len(commits) > 1:
                found.append(("flow", f"write {value} is in the flow {len(commits)} times, with commits {commits}"))
            if status == "ok" and commits != [commit]:
                found.append(("flow", f"acknowledged write {value} with commit {commit} is at {commits}"))
            if status == "fail" and commits:
                found.append(("flow", f"write {value} was not applied, and is in the flow"))
        if at:
            found.append(("flow", f"the flow holds what nobody wrote: {sorted(at)[:5]}"))
        return found[:5]


def items_of(batch):
    """(commit, key, value) of each item of a sealed batch; value None = deleted."""
    return [item for chunk in batch.chunks for item in items_of_chunk(chunk)]


def open_chunks(state):
    """What is in the open segment of a flow."""
    run = state.segment.run_view()
    return *state.segment.closed_chunks, run.chunk(0, run.items)


def items_of_chunk(chunk):
    """(commit, key, value) of each item."""
    if isinstance(chunk, RangeChunk):
        keys, values = range_body.decode(chunk.body, chunk.offset, chunk.count)
        rows = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        return [(chunk.first_commit + at, key, value.encode()) for at, (key, value) in enumerate(rows)]
    return list(zip(int64s_from_bytes(chunk.commits), chunk.keys, chunk.values, strict=True))


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
