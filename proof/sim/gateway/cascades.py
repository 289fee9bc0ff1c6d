"""A chain of two jobs that write back through the gateway, killed and replaced at any time, and a count at its end.

Clients write to a stream table; the first job copies each item to another one and counts it; the second job counts the
copies. Instances of a job overlap, repeat parts and stop anywhere. Read next: :mod:`oncegate.flows.parts`,
:mod:`oncegate.gateway.machine.cascades`.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.proof.sim.gateway.flows import Consumers, Instance, items_of, items_of_chunk, open_chunks
from oncegate.proof.sim.gateway.workloads import Habits, Workload, op, text

FIRST, SECOND = "s", "d"
COUNTS = "n"
JOB = "job"


class _Job(Consumers):
    """All instances of a job that writes ``per_part`` items of a batch at a time."""

    def __init__(self, world, flow, writes, per_part):
        super().__init__(world, flow, JOB)
        self.writes, self.per_part = writes, per_part

    def instance(self, rng):
        return _Writer(self, rng)

    def parts_of(self, batch):
        """Return the writes of each part of a batch: the same in every instance."""
        items = items_of(self.world.batches[self.flow, batch])
        cuts = range(0, len(items), self.per_part)
        return [[write for item in items[at : at + self.per_part] for write in self.writes(item)] for at in cuts]


class _Writer(Instance):
    """An instance that begins each batch with its first part, whatever others have written."""

    part = 1

    def _move(self):
        world = self._world
        if world.stopped or world.now > self._ends:
            return
        if (self._all.flow, self._cursor + 1) in world.batches:
            self._write(self._cursor + 1, self.part)
        world.scheduler.after(0.02 + 0.06 * self._rng.random(), self._move)

    def _write(self, batch, part):
        parts = self._all.parts_of(batch)
        newer = self._all.attached > self._fence
        sent = wire.Cascade(batch, part, self._fence, part == len(parts), parts[part - 1])
        command = request_bodies.cascade(self._all.flow, self._all.name, sent)
        self._send(command, lambda answer: self._written(answer, batch, part, last=sent.last, newer=newer))

    def _written(self, answer, batch, part, *, last, newer):
        if isinstance(answer, Exception):
            return
        world = self._world
        world.counts["parts repeated" if answer.body.replayed else "parts written"] += 1
        if newer:
            world.found("cascade", f"fence {self._fence} writes part {part} of {batch} after {self._all.attached}")
        if last:
            self._all.moved = max(self._all.moved, batch)
        if last and answer.body.cursor < batch:
            world.found("cascade", f"the last part of batch {batch} is written, and the cursor {answer.body.cursor}")
        if (batch, part) == (self._cursor + 1, self.part):
            self._cursor, self.part = (batch, 1) if last else (self._cursor, part + 1)


class Chain(Workload):
    """Single writes; each is in the second table once, and counted once by either job, as far as these have come."""

    name = "chain"
    habits = Habits(read_share=0.0, window=16)
    tables = ((FIRST, "stream"), (SECOND, "stream"), (COUNTS, "resident"))

    def __init__(self, world, rng):
        super().__init__(world, rng)
        self.flows = [
            FlowDeclaration(
                name="copy", source=FIRST, target=(SECOND, COUNTS), max_items=rng.choice((2, 5)), linger_ms=50
            ),
            FlowDeclaration(name="count", source=SECOND, target=COUNTS, max_items=rng.choice((1, 3)), linger_ms=50),
        ]
        self._jobs = [_Job(world, "copy", _copied, rng.choice((1, 2))), _Job(world, "count", _counted, 1)]

    def begin(self):
        for job in self._jobs:
            job.begin()

    def write(self, rng, seen):
        value = self.unique()
        return "put", "a", value, op(1, f"k{value}", text(value), table=FIRST)

    def result(self, f, argument, result):
        return result.commit

    def finish(self):
        return []

    def check(self, world):
        node = next(iter(world.living()))
        machine = node.gateway.machine
        found = []
        for job in self._jobs:
            one = machine.flows.get(job.flow).consumers.get(JOB) if job.attached else None
            done, begun = (0, 0) if one is None else (one.cursor, one.parts.batch)
            if done < job.moved:
                found.append(("cascade", f"the last part of batch {job.moved} was answered, the cursor is {done}"))
            wanted = [write for batch in range(1, done + 1) for part in job.parts_of(batch) for write in part]
            if begun > done and one is not None:
                wanted += [write for part in job.parts_of(begun)[: one.parts.count] for write in part]
            found += _differences(machine, job, wanted)
        return found


def _copied(item):
    _, key, value = item
    copy = wire.CascadeWrite("put", SECOND, key, msgspec.json.decode(value))
    return copy, wire.CascadeWrite("increment", COUNTS, "copied", by=1)


def _counted(item):
    return (wire.CascadeWrite("increment", COUNTS, "counted", by=1),)


def _differences(machine, job, wanted):
    """Compare what a job's parts hold with what is there."""
    counts = Counter(write.key for write in wanted if write.op == "increment")
    copies = [(write.key, write.value) for write in wanted if write.op == "put"]
    for key in ("copied",) if job.flow == "copy" else ("counted",):
        row = machine.tables[COUNTS].rows.get(key)
        there = 0 if row is None else msgspec.json.decode(row.value)
        if there != counts[key]:
            yield "cascade", f"{key} is {there}, its job has written {counts[key]}"
    if job.flow == "copy":
        there = [(key, msgspec.json.decode(value)) for _, key, value in _all_of(machine, job.world, SECOND)]
        if there != copies:
            yield "cascade", f"table {SECOND} holds {there[-5:]}, its job has written {copies[-5:]}"


def _all_of(machine, world, flow):
    """(commit, key, value) of all items of a flow, sealed or not."""
    state = machine.flows.get(flow)
    items = [item for number in range(1, state.batches.last + 1) for item in items_of(world.batches[flow, number])]
    return items + [item for chunk in open_chunks(state) for item in items_of_chunk(chunk)]
