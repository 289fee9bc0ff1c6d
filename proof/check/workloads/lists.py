"""Lists that are appended to: the order of all appends of a key is in every read, and every item is unique.

Owns: what workloads on lists share, plain appends, and duplicates: one request id sent to several nodes at the same
time, and again later, also after leaders have changed. All attempts of a request are one operation of the history.
Their answers are kept beside it, as an event ``answers``: one result for all, and at most one that was not a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec

from oncegate.proof.check.checks import Findings, exactly_once, linearizable, no_lost_item
from oncegate.proof.check.direct_session import DirectSession, RequestVerdict
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads.rows import number
from oncegate.proof.lincheck import Event, Operation, Result, operations

TABLE: Final = "lists"
ITEMS_A_LIST: Final = 200
"""After so many appends the workers go on to the next two lists: reads stay short."""
COUNTERS: Final = "sums"
COUNTER_KEYS: Final = ("d0", "d1")
HELD_MAX: Final = 12
"""Requests of a worker that stay unacknowledged, to be sent again."""
SPREAD_MAX: Final = 256
"""Half of a session's window: how far a request that is kept may lie below the newest."""


def items(row: Mapping[str, Any] | None) -> list[Any]:
    """Return a list that was read; an absent one is empty."""
    return [] if row is None else list(row["value"])


def append_of(key: str, item: int) -> dict[str, Any]:
    """Return the operation that appends an item, as it travels."""
    return {"op": "append", "table": TABLE, "key": key, "item": item}


class Held(msgspec.Struct):
    """A request that is not acknowledged: what it asked for, and how the history knows it."""

    session: DirectSession
    sequence: int
    operation: dict[str, Any]

    @property
    def request(self) -> str:
        """The request id."""
        return self.session.request(self.sequence)


class Lists(Workload):
    """What workloads on lists share: unique items, requests that are kept to be sent again, and how they are judged."""

    table = TABLE
    seen = staticmethod(items)

    def __init__(self) -> None:
        self._used: dict[str, None] = {}
        self._items = 0
        self._held: dict[int, list[Held]] = {}

    def current(self, random: Random) -> str:
        """Return a list that is appended to now."""
        return f"l{2 * (self._items // (2 * ITEMS_A_LIST)) + random.randrange(2)}"

    def next(self, random: Random) -> tuple[str, int]:
        """Return a list and a new item."""
        self._items += 1
        key = self.current(random)
        self._used[key] = None
        return key, self._items

    def new_append(self, worker: Worker) -> Held:
        """Return a new request of the worker's session that appends an item."""
        return Held(worker.session, worker.session.take(), append_of(*self.next(worker.random)))

    def held(self, worker: Worker) -> list[Held]:
        """Return what the worker keeps."""
        return self._held.setdefault(worker.process, [])

    async def read_list(self, worker: Worker) -> None:
        """Read a list that is appended to now."""
        await self.read(worker, self.current(worker.random))

    def restorable(self) -> Sequence[str]:
        return list(self._used)[::-1]

    async def finish(self, world: World) -> None:
        await world.final_reads(TABLE, list(self._used), seen=items)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [linearizable(found, "list", ("append", "read")), no_lost_item(found), exactly_once(found)]


class AppendWorkload(Lists):
    """Appends and reads."""

    name = "append"
    proves = "appends are applied once, in one order that every node tells"

    async def step(self, worker: Worker) -> None:
        if worker.random.random() < 0.3:
            await self.read_list(worker)
            return
        key, item = self.next(worker.random)
        await worker.write(append_of(key, item), "append", item)


class Dedup(Lists):
    """Appends and increments whose requests are sent more than once on purpose."""

    name = "dedup"
    proves = "duplicates at once at several nodes, and later under other leaders, are applied once"

    async def set_up(self, world: World) -> None:
        await world.declare(TABLE)
        await world.declare(COUNTERS)

    async def step(self, worker: Worker) -> None:
        held, random = self.held(worker), worker.random
        held[:] = [one for one in held if one.session is worker.session]
        if held and random.random() < 0.3:
            one = random.choice(held)
            _note(worker, one, await at_once(one, random), "again")
        elif random.random() < 0.15:
            await self.read_list(worker)
        else:
            await self._new(worker)

    async def _new(self, worker: Worker) -> None:
        session, random = worker.session, worker.random
        sequence = session.take()
        if random.random() < 0.5:
            key, value = self.next(random)
            f, operation = "append", append_of(key, value)
        else:
            f, key, value = "increment", random.choice(COUNTER_KEYS), 1
            operation = {"op": f, "table": COUNTERS, "key": key, "by": value}
        one = Held(session, sequence, operation)
        recorded = worker.begin(f, key, value, request=one.request)
        verdicts = await at_once(one, random)
        if not any(verdict.answered for verdict in verdicts):
            doubt = any(verdict.kind == "unknown" for verdict in verdicts)
            verdicts.append(await session.perform(sequence, operation, doubt=doubt))
        answered = next((verdict for verdict in verdicts if verdict.answered), None)
        if answered is not None:
            recorded.ok(answered.result.get("value") if f == "increment" else None, answered.node)
        else:
            recorded.no_result(verdicts[-1].code, failed=verdicts[-1].kind == "failed")
        _note(worker, one, verdicts, "first")
        if answered is None:
            session.acknowledge(sequence)  # never sent again: the history has it as given up, and it may take effect
            return
        held = self.held(worker)
        held.append(one)
        while len(held) > HELD_MAX or one.sequence - held[0].sequence > SPREAD_MAX:
            # Any of the older ones, so that some stay for long; the oldest where it would fill the window.
            crowded = one.sequence - held[0].sequence > SPREAD_MAX
            older = held.pop(0 if crowded else random.randrange(len(held) // 2))
            older.session.acknowledge(older.sequence)

    async def finish(self, world: World) -> None:
        await super().finish(world)
        await world.final_reads(COUNTERS, COUNTER_KEYS, f="sum", seen=number)

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        reads = {"sum": "read", "increment": "increment"}
        sums = [msgspec.structs.replace(op, f=reads[op.f]) for op in found if op.f in reads]
        return [*super().check(history), linearizable(sums, "counter", ("increment", "read")), agreement(found)]


def _note(worker: Worker, one: Held, verdicts: Sequence[RequestVerdict], when: str) -> None:
    """Keep each attempt's answer: kind, result without the replay mark, whether replayed, code, node."""
    answers = []
    for verdict in verdicts:
        result = {name: value for name, value in verdict.result.items() if name not in ("replayed", "sequence")}
        answers.append([verdict.kind, result, bool(verdict.result.get("replayed")), verdict.code, verdict.node])
    worker.begin("answers", one.request, when).ok(answers)


async def at_once(one: Held, random: Random) -> list[RequestVerdict]:
    """Send one request to two nodes or more at the same time; some of them get it twice."""
    nodes = one.session.nodes.ids
    chosen = random.sample(nodes, random.randint(min(2, len(nodes)), len(nodes)))
    chosen += [node for node in chosen if random.random() < 0.2]
    return list(await asyncio.gather(*(one.session.attempt(node, one.sequence, one.operation) for node in chosen)))


def agreement(found: Sequence[Operation]) -> Result:
    """Check the answers to all attempts of each request."""
    findings = Findings("all attempts of a request are told one result, and at most one of them executed it")
    results: dict[Any, str] = {}
    executed: dict[Any, int] = {}
    for op in found:
        if op.f != "answers" or op.status != "ok":
            continue
        findings.saw(op.key)
        for kind, result, replayed, _code, node in op.result:
            if kind not in ("applied", "refused"):
                continue
            text = msgspec.json.encode(result, order="deterministic").decode()
            before = results.setdefault(op.key, text)
            if before != text:
                findings.violated(op.key, f"request {op.key} was told {before}, and {text} by {node}", [op])
            executed[op.key] = executed.get(op.key, 0) + (not replayed)
        if (times := executed.get(op.key, 0)) > 1:
            findings.violated(op.key, f"request {op.key} was executed {times} times, as its answers say", [op])
    return findings.result()
