"""Flow exactness: every acknowledged write is in exactly one batch, batches are the same everywhere, cursors fenced.

Owns the workload and its check: what was written is held against the batches that nodes sealed and the open segment.
Read next: :mod:`oncegate.gateway.machine.flow_state`, :mod:`oncegate.proof.sim.gateway.consumer`.
"""

from __future__ import annotations

import msgspec

from oncegate.flows import range_body
from oncegate.flows.chunks import RangeChunk, int64s_from_bytes
from oncegate.flows.flow import FlowDeclaration
from oncegate.gateway.machine import commands as c
from oncegate.proof.sim.gateway.consumer import Consumers
from oncegate.proof.sim.gateway.workload import TABLE, Habits, Workload, op, text

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
        self._flows = [
            FlowDeclaration(
                name=FLOW, source=STREAM, max_items=rng.choice((1, 3, 7)), linger_ms=linger_ms, consumers=("c",)
            ),
            FlowDeclaration(name=TAP, source=TABLE, max_items=5, linger_ms=linger_ms),
        ]
        self.batches = {}
        self._chunks = {}
        self.consumers = Consumers(world, FLOW, "c")

    def set_up(self):
        return super().set_up() + [c.DeclareFlow(msgspec.json.encode(flow)) for flow in self._flows]

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
            items += [item for chunk in state.segment.closed_chunks for item in _items(chunk)]
            run = state.segment.run_view()
            items += _items(run.chunk(0, run.items)) if run.items else []
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
    return [item for chunk in batch.chunks for item in _items(chunk)]


def _items(chunk):
    """(commit, key, value) of each item."""
    if isinstance(chunk, RangeChunk):
        keys, values = range_body.decode(chunk.body, chunk.offset, chunk.count)
        rows = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        return [(chunk.first_commit + at, key, value.encode()) for at, (key, value) in enumerate(rows)]
    return list(zip(int64s_from_bytes(chunk.commits), chunk.keys, chunk.values, strict=True))
