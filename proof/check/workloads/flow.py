"""Flows: every acknowledged write is in exactly one batch, batches are the same bytes on every node, and a consumer
that is killed and taken over at any point leaves a store that holds each row once, with its newest value.

Writers put rows on a resident table (through a declared flow) and ranges of rows on a stream table (through its own
flow); the store is SQLite, written as a sink does: rows first, then the cursor. Batches, rows and the store are read
after healing and kept in the history.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import msgspec

from oncegate.gateway.client import OncegateError, Outcome, PartialFailure, Session
from oncegate.gateway.client.paths import flow_path
from oncegate.proof.check.checks import Findings, by_key
from oncegate.proof.check.durability import acknowledged
from oncegate.proof.check.node_requests import AttemptReply
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.run_context import FINAL_S, NotRecovered, World, batch_path
from oncegate.proof.check.soak import LOST
from oncegate.proof.check.workload import SessionLoop, through_sessions
from oncegate.proof.check.workloads.consumer import CheckedConsumer, stored_rows
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "changed"
FLOW: Final = "changes"
STREAM: Final = "events"
"""The stream table and its own flow."""

KEYS: Final = 40
ROWS_MAX: Final = 30
WRITES_PER_EVENT: Final = 2_000
SEAL_S: Final = 60.0


class FlowExactness(SessionLoop):
    """Two workers consume, the others write; half of those ranges, half single rows."""

    name: ClassVar[str] = "flow"
    proves: ClassVar[str] = (
        "every acknowledged write is in exactly one batch, in order, on every node, and in the store"
    )

    def __init__(self) -> None:
        self._values = count(1)

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(TABLE)
        await world.declare(STREAM, "stream")
        await world.insist("PUT", flow_path(FLOW), {"source": TABLE, "max_items": 25, "linger_ms": 200})

    async def run_process(self, world: World, process: int, random: Random, until: float) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        if process < 2:
            await CheckedConsumer(world, (FLOW, STREAM)[process], random).run(until)
        elif process % 2:
            await self._ranges(world, process, random, until)
        else:
            await super().run_process(world, process, random, until)

    async def step(self, world: World, process: int, session: Any, random: Random) -> None:
        """Put one row."""
        key, value = f"k{random.randrange(KEYS)}", next(self._values)
        operation = {"op": "put", "table": TABLE, "key": key, "value": value}
        recorded = world.recorder.begin(process, "write", FLOW, [[key, value]])
        sequence = session.take()
        verdict = await session.perform(sequence, operation)
        session.acknowledge(sequence)
        if verdict.kind == "applied":
            recorded.ok([verdict.result["commit"]])
        else:
            recorded.no_result(verdict.code, failed=verdict.kind == "failed")

    async def _ranges(self, world: World, process: int, random: Random, until: float) -> None:
        async def put_range(session: Session) -> None:
            rows = [(f"s{random.randrange(KEYS)}", next(self._values)) for _ in range(random.randint(1, ROWS_MAX))]
            recorded = world.recorder.begin(process, "write", STREAM, rows)
            try:
                many = await session.put_many(STREAM, rows)
            except PartialFailure as partial:
                recorded.info(partial.code)  # some are applied: each of them may be
            except OncegateError as failure:
                recorded.no_result(failure.code, failed=failure.outcome is Outcome.NOT_APPLIED)
            else:
                recorded.ok([part.commit + i for part in many.parts for i in range(part.last - part.first + 1)])

        await through_sessions(world, process, random, until, put_range)

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        for flow in (FLOW, STREAM):
            last = await _sealed(world, flow)
            first_node, *others = world.nodes.ids
            for number in range(1, last + 1):
                await _batch(world, first_node, flow, number, items=True)
                for node in others:
                    await _batch(world, node, flow, number, items=False)
            await CheckedConsumer(world, flow, world.random("drain")).drain(last)
            rows = await asyncio.to_thread(stored_rows, world.directory, flow)
            for start in range(0, len(rows) or 1, WRITES_PER_EVENT):
                world.recorder.begin(PROCESSES_MAX, "stored", flow).ok(rows[start : start + WRITES_PER_EVENT])

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [_same_bytes(found), _in_one_batch(found), _in_store(found)]


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
    told = {"etag": answer.headers.get("ETag", ""), "crc": zlib.crc32(payload), "bytes": len(payload)}
    recorded.ok(told if listed is None else {**told, "items": listed})


async def batch_items(world: World, node: str, flow: str, number: int) -> list[list[Any]]:
    """Return a batch's items as [key, value, commit]; raises NotRecovered."""
    headers = {"Accept": "application/x-ndjson"}

    async def read() -> AttemptReply | None:
        reply = await world.nodes.call(node, "GET", batch_path(flow, number), headers=headers, timeout_s=5.0)
        return reply if reply.done else None

    reply = await world.wait(read, FINAL_S, f"{node} has batch {number} of {flow}")
    lines = [msgspec.json.decode(line) for line in bytes(reply.body).splitlines()]
    return [[line["key"], line["value"], line["commit"]] for line in lines]


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
            elif first.status == "ok" and any(
                op.result[name] != first.result[name] for name in ("etag", "crc", "bytes")
            ):
                findings.violated(
                    flow, f"batch {number} of {flow} differs between {first.node} and {op.node}", [first, op]
                )
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
            told = op.result if op.status == "ok" else [None] * len(op.argument)
            for (key, value), commit in zip(op.argument, told, strict=True):
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
