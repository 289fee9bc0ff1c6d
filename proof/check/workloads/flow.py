"""Flows: every acknowledged write is in exactly one batch, and batches are the same bytes on every node.

Writers put rows on a resident table (through a declared flow) and ranges of rows on a stream table (through its own
flow). A consumer that is killed and taken over at any point writes a store as a sink does: rows first, with the commit
number as each row's timestamp, then the cursor. The store is the embedded one of :mod:`oncegate.stores`; it must hold
each row once, with its newest value. Batches, rows and the store are read after healing and kept in the history.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa

from oncegate.gateway.client import OncegateError, Outcome, PartialFailure, Session
from oncegate.gateway.client.paths import flow_path, segment
from oncegate.proof.check.checks import LOST, Findings, acknowledged, by_key
from oncegate.proof.check.direct_session import AttemptReply
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.workload import FINAL_S, NotRecovered, Worker, Workload, World
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.stores import Column, ColumnType, StoreTable, open_store

FLOW: Final = "changes"
STREAM: Final = "events"
"""The stream table and its own flow."""
KEYS: Final = 40
ROWS_MAX: Final = 30
WRITES_PER_EVENT: Final = 2_000
SEAL_S: Final = 60.0
CONSUMER: Final = "store"
ROWS: Final = StoreTable(
    "rows", (Column("key", ColumnType.TEXT), Column("value", ColumnType.TEXT)), partition_key=("key",)
)
LINES: Final = {"Accept": "application/x-ndjson"}
DEATH: Final = 0.1
"""How likely an instance of a consumer dies at each point where it can."""


class FlowExactness(Workload):
    """Two workers consume, the others write; half of those ranges, half single rows."""

    name = "flow"
    proves = "every acknowledged write is in exactly one batch, in order, on every node, and in the store"
    table = "changed"

    def __init__(self) -> None:
        self._values = count(1)

    async def set_up(self, world: World) -> None:
        await super().set_up(world)
        await world.declare(STREAM, "stream")
        await world.insist("PUT", flow_path(FLOW), {"source": self.table, "max_items": 25, "linger_ms": 200})

    async def run_process(self, worker: Worker) -> None:
        if worker.process < 2:
            await CheckedConsumer(worker.world, (FLOW, STREAM)[worker.process], worker.random).run(worker)
        elif worker.process % 2:
            await worker.through_sdk(lambda session: self._put_range(worker, session))
        else:
            await super().run_process(worker)

    async def step(self, worker: Worker) -> None:
        key, value = f"k{worker.random.randrange(KEYS)}", next(self._values)
        recorded = worker.begin("write", FLOW, [[key, value]])
        sequence = worker.session.take()
        operation = {"op": "put", "table": self.table, "key": key, "value": value}
        verdict = await worker.session.perform(sequence, operation)
        worker.session.acknowledge(sequence)
        if verdict.kind == "applied":
            recorded.ok([verdict.result["commit"]])
        else:
            recorded.no_result(verdict.code, failed=verdict.kind == "failed")

    async def _put_range(self, worker: Worker, session: Session) -> None:
        random = worker.random
        rows = [(f"s{random.randrange(KEYS)}", next(self._values)) for _ in range(random.randint(1, ROWS_MAX))]
        recorded = worker.begin("write", STREAM, rows)
        try:
            many = await session.put_many(STREAM, rows)
        except PartialFailure as partial:
            recorded.info(partial.code)  # some are applied: each of them may be
        except OncegateError as failure:
            recorded.no_result(failure.code, failed=failure.outcome is Outcome.NOT_APPLIED)
        else:
            recorded.ok([part.commit + i for part in many.parts for i in range(part.last - part.first + 1)])

    async def finish(self, world: World) -> None:
        for flow in (FLOW, STREAM):
            last = await _sealed(world, flow)
            for number in range(1, last + 1):
                for node in world.nodes.ids:
                    await _batch(world, node, flow, number, items=node == world.nodes.ids[0])
            await CheckedConsumer(world, flow, world.random("drain")).drain(last)
            rows = await asyncio.to_thread(stored_rows, world.directory, flow)
            for start in range(0, len(rows) or 1, WRITES_PER_EVENT):
                world.note("stored", flow, rows[start : start + WRITES_PER_EVENT])

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [_same_bytes(found), _in_one_batch(found), _in_store(found)]


class CheckedConsumer:
    """One consumer of one flow without Spark, in one instance after another."""

    def __init__(self, world: World, flow: str, random: Random) -> None:
        self._world = world
        self._flow = flow
        self._random = random
        self._path = f"{flow_path(flow)}/consumers/{segment(CONSUMER)}"

    async def run(self, worker: Worker) -> None:
        """Consume until the worker's time is over; instances die at random and the next one attaches."""
        while worker.goes_on():
            attached = await self._attach()
            cursor = 0 if attached is None else int(attached["cursor"])
            while attached is not None and worker.goes_on() and await self._one(cursor + 1, attached["fence"], DEATH):
                cursor += 1
            await worker.think(0.05)

    async def drain(self, last: int) -> None:
        """Consume up to batch ``last`` without dying; raises NotRecovered."""

        async def there() -> bool:
            attached = await self._attach()
            cursor = 0 if attached is None else int(attached["cursor"])
            while attached is not None and cursor < last and await self._one(cursor + 1, attached["fence"], 0.0):
                cursor += 1
            return attached is not None and cursor >= last

        await self._world.wait(there, 2 * FINAL_S, f"the consumer of {self._flow} has reached batch {last}")

    async def _attach(self) -> Any:
        return await self._ask("attach", {"nonce": f"{self._random.getrandbits(128):032x}"})

    async def _one(self, number: int, fence: int, death: float) -> bool:
        """Take one batch from flow to store to cursor; False if this instance has ended or there is no batch."""
        world, random = self._world, self._random
        node = random.choice(world.nodes.ids)
        reply = await world.nodes.call(node, "GET", batch_path(self._flow, number), headers=LINES)
        if not reply.done or random.random() < death:
            return False
        await asyncio.to_thread(write_rows, world.directory, self._flow, _lines(reply))
        if random.random() < death:
            return False
        moved = await self._ask("cursor", {"batch": number, "fence": fence})
        return moved is not None and random.random() >= death

    async def _ask(self, what: str, body: dict[str, Any]) -> Any:
        node = self._random.choice(self._world.nodes.ids)
        reply = await self._world.nodes.call(node, "POST", f"{self._path}/{what}", body)
        return reply.body if reply.done else None


def _url(directory: Path, flow: str) -> str:
    return f"sqlite://{directory.resolve() / f'store-{flow}'}?shards=1"


def write_rows(directory: Path, flow: str, items: Sequence[dict[str, Any]]) -> None:
    """Write items to the flow's store; durable when it returns."""
    columns = {
        "key": pa.array([item["key"] for item in items], pa.string()),
        "value": pa.array([msgspec.json.encode(item["value"]).decode() for item in items], pa.string()),
        "write_ts": pa.array([item["commit"] for item in items], pa.int64()),
    }
    with open_store(_url(directory, flow)) as store:
        store.create([ROWS])
        store.write(ROWS, pa.RecordBatch.from_pydict(columns))


def stored_rows(directory: Path, flow: str) -> list[list[Any]]:
    """Return what the flow's store holds, as [key, value, commit], by key."""
    with open_store(_url(directory, flow)) as store:
        store.create([ROWS])
        rows = [row for batch in store.scan(ROWS) for row in batch.to_pylist()]
    return sorted([row["key"], msgspec.json.decode(row["value"]), row["write_ts"]] for row in rows)


async def _sealed(world: World, flow: str) -> int:
    """Wait until everything is sealed; return the number of the last batch."""

    async def sealed() -> Mapping[str, Any] | None:
        reply = await world.insist("GET", flow_path(flow))
        if not reply.done:
            raise NotRecovered(f"flow {flow} is gone")
        return reply.body if reply.body["open_items"] == 0 else None

    return int((await world.wait(sealed, SEAL_S, f"flow {flow} seals its last items"))["last_batch"])


async def _batch(world: World, node: str, flow: str, number: int, *, items: bool) -> None:
    """Read one batch at one node; the items only where asked for, the bytes' sum everywhere."""
    recorded = world.recorder.begin(PROCESSES_MAX, "batch", f"{flow}/{number}", node=node)
    try:
        answer = await world.insist("GET", batch_path(flow, number), node=node)
        listed = await batch_items(world, node, flow, number) if items else None
    except NotRecovered:
        recorded.fail("not recovered")
        raise
    payload = bytes(answer.body) if answer.done else b""  # a batch that a node does not know differs from all others
    noted = {"etag": answer.headers.get("ETag", ""), "crc": zlib.crc32(payload), "bytes": len(payload)}
    recorded.ok(noted if listed is None else {**noted, "items": listed})


async def batch_items(world: World, node: str, flow: str, number: int) -> list[list[Any]]:
    """Return a batch's items as [key, value, commit]; raises NotRecovered."""

    async def read() -> AttemptReply | None:
        reply = await world.nodes.call(node, "GET", batch_path(flow, number), headers=LINES, timeout_s=5.0)
        return reply if reply.done else None

    reply = await world.wait(read, FINAL_S, f"{node} has batch {number} of {flow}")
    return [[line["key"], line["value"], line["commit"]] for line in _lines(reply)]


def batch_path(flow: str, number: int) -> str:
    """Return the path of a batch."""
    return f"{flow_path(flow)}/batches/{number}"


def _lines(reply: AttemptReply) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in bytes(reply.body).splitlines()]


def _batches(found: Sequence[Operation]) -> Iterator[tuple[str, int, list[Operation]]]:
    for key, ops in by_key(found, lambda op: op.f == "batch").items():
        flow, _, number = key.rpartition("/")
        yield flow, int(number), ops


def _same_bytes(found: Sequence[Operation]) -> Result:
    """Check that every node has every batch, and the same bytes of it."""
    findings = Findings("a batch is the same bytes on every node")
    for flow, number, ops in _batches(found):
        findings.saw(flow)
        first = ops[0]
        for op in ops:
            if op.status != "ok":
                findings.undecided(f"batch {number} of {flow} was not read at {op.node}")
            elif first.status == "ok" and any(op.result[one] != first.result[one] for one in ("etag", "crc", "bytes")):
                words = f"batch {number} of {flow} differs between {first.node} and {op.node}"
                findings.violated(flow, words, [first, op])
    return findings.result()


def _in_one_batch(found: Sequence[Operation]) -> Result:
    """Check writes against items: commit by commit where acknowledged, value by value in any case."""
    findings = Findings(LOST)
    items: dict[str, list[tuple[int, str, Any]]] = {}
    for flow, _, ops in sorted(_batches(found), key=lambda batch: batch[:2]):
        listed: list[Any] = next((op.result["items"] for op in ops if op.status == "ok" and "items" in op.result), [])
        items.setdefault(flow, []).extend((commit, key, value) for key, value, commit in listed)
    for flow, ops in by_key(found, lambda op: op.f == "write").items():
        there = items.get(flow, [])
        findings.saw(flow, sum(len(op.argument) for op in ops))
        commits = [commit for commit, _, _ in there]
        if commits != sorted(set(commits)):
            findings.violated(flow, f"the items of {flow} are not in commit order, or one is there twice")
        by_commit = {commit: (key, value) for commit, key, value in there}
        places = {value: commit for commit, _, value in there}
        if len(places) != len(there):
            findings.violated(flow, f"a write is in {flow} twice")
        sent: set[Any] = set()
        for op in ops:
            noted = op.result if op.status == "ok" else [None] * len(op.argument)
            for (key, value), commit in zip(op.argument, noted, strict=True):
                sent.add(value)
                if acknowledged(op) and by_commit.get(commit) != (key, value):
                    words = f"{key} = {value} was acknowledged at {commit}; {flow} has {by_commit.get(commit)} there"
                    findings.violated(flow, words, [op])
                elif op.status == "failed" and value in places:
                    findings.violated(flow, f"{key} = {value} was refused and is in {flow}", [op])
        for value in places.keys() - sent:
            findings.violated(flow, f"{value} is in {flow} and nobody wrote it")
    return findings.result()


def _in_store(found: Sequence[Operation]) -> Result:
    """Check the store: every key of the batches once, with the value of its newest item."""
    findings = Findings("the store holds every key once, with its newest value")
    newest: dict[str, dict[str, tuple[int, Any]]] = {}
    for flow, _, ops in _batches(found):
        for op in ops:
            for key, value, commit in (op.result or {}).get("items", ()):
                before = newest.setdefault(flow, {}).get(key, (0, None))
                newest[flow][key] = max(before, (commit, value))
    stored = by_key(found, lambda op: op.f == "stored")
    for flow, expected in newest.items():
        findings.saw(flow, len(expected))
        if flow not in stored:
            findings.undecided(f"the store of {flow} was not read")
            continue
        rows = [row for op in stored[flow] for row in op.result or ()]
        held = {key: (commit, value) for key, value, commit in rows}
        if len(held) != len(rows):
            findings.violated(flow, f"a key is in the store of {flow} twice")
        for key in expected.keys() | held.keys():
            if held.get(key) != expected.get(key):
                words = f"{key} is {held.get(key)} in the store, and {expected.get(key)} in the batches of {flow}"
                findings.violated(flow, words)
    return findings.result()
