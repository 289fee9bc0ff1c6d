"""Duplicates: one request id sent to several nodes at the same time, and again later, also after leaders have changed.

All attempts of a request are one operation of the history. What each of them was told is kept beside it, as an event
``answers``, to be compared: the same result for all, and at most one that was not a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import msgspec

from oncegate.proof.check.checks import Findings, linearizable
from oncegate.proof.check.direct_session import DirectSession, RequestVerdict
from oncegate.proof.check.durability import exactly_once, no_lost_item
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.check.workloads.append import TABLE as LISTS
from oncegate.proof.check.workloads.append import Lists, append_of, items
from oncegate.proof.check.workloads.counter import number
from oncegate.proof.lincheck import Event, Operation, Result, operations

COUNTERS: Final = "sums"
COUNTER_KEYS: Final = ("d0", "d1")
HELD_MAX: Final = 12
"""Requests of a worker that stay unacknowledged, to be sent again."""

SPREAD_MAX: Final = 256
"""Half of a session's window: how far a request that is kept may lie below the newest."""

LIST_FS: Final = ("append", "read")
SUM_FS: Final = ("increment", "sum")


class Held(msgspec.Struct):
    """A request that is not acknowledged: what it asked for, and how it is known to the history."""

    session: DirectSession
    sequence: int
    operation: dict[str, Any]


def told(verdict: RequestVerdict) -> list[Any]:
    """Return an attempt's answer for the history: kind, result without the replay mark, whether replayed, code."""
    result = {name: value for name, value in verdict.result.items() if name not in ("replayed", "sequence")}
    return [verdict.kind, result, bool(verdict.result.get("replayed")), verdict.code, verdict.node]


class Dedup(SessionLoop):
    """Appends and increments whose requests are sent more than once on purpose."""

    name: ClassVar[str] = "dedup"
    proves: ClassVar[str] = "duplicates at once at several nodes, and later under other leaders, are applied once"

    def __init__(self) -> None:
        self._lists = Lists()
        self._held: dict[int, list[Held]] = {}

    async def set_up(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.declare(LISTS)
        await world.declare(COUNTERS)

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Send a new request to several nodes at once, or an old one again."""
        held = self._held.setdefault(process, [])
        held[:] = [one for one in held if one.session is session]
        if held and random.random() < 0.3:
            await self._again(world, process, random.choice(held), random)
            return
        if random.random() < 0.15:
            await world.read(process, LISTS, self._lists.current(random), random, answer=items)
            return
        await self._new(world, process, session, random)

    async def _new(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        sequence = session.take()
        if random.random() < 0.5:
            key, item = self._lists.next(random)
            operation = append_of(key, item)
            f, value = "append", item
        else:
            key, value, f = random.choice(COUNTER_KEYS), 1, "increment"
            operation = {"op": "increment", "table": COUNTERS, "key": key, "by": 1}
        recorded = world.recorder.begin(process, f, key, value, request=session.request(sequence))
        verdicts = await at_once(session, sequence, operation, random)
        if not any(verdict.answered for verdict in verdicts):
            doubt = any(verdict.kind == "unknown" for verdict in verdicts)
            verdicts.append(await session.perform(sequence, operation, doubt=doubt))
        answered = next((verdict for verdict in verdicts if verdict.answered), None)
        if answered is not None:
            recorded.ok(answered.result.get("value") if f == "increment" else None, answered.node)
        else:
            recorded.no_result(verdicts[-1].code, failed=verdicts[-1].kind == "failed")
        one = Held(session, sequence, operation)
        self._note(world, process, one, verdicts, "first")
        self._keep(process, one, random, known=answered is not None)

    def _keep(self, process: int, one: Held, random: Random, *, known: bool) -> None:
        held = self._held[process]
        if not known:
            # Nothing may be sent again that the history has as given up: it could still take effect then.
            one.session.acknowledge(one.sequence)
            return
        held.append(one)
        while len(held) > HELD_MAX or one.sequence - held[0].sequence > SPREAD_MAX:
            # Any of the older ones, so that some stay for long; the oldest where it would fill the window.
            crowded = one.sequence - held[0].sequence > SPREAD_MAX
            older = held.pop(0 if crowded else random.randrange(len(held) // 2))
            older.session.acknowledge(older.sequence)

    async def _again(self, world: World, process: int, one: Held, random: Random) -> None:
        verdicts = await at_once(one.session, one.sequence, one.operation, random)
        self._note(world, process, one, verdicts, "again")

    @staticmethod
    def _note(world: World, process: int, one: Held, verdicts: Sequence[RequestVerdict], when: str) -> None:
        noted = world.recorder.begin(process, "answers", one.session.request(one.sequence), when)
        noted.ok([told(verdict) for verdict in verdicts])

    async def finish(self, world: World) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        await world.final_reads(LISTS, list(self._lists.keys), answer=items)
        await world.final_reads(COUNTERS, list(COUNTER_KEYS), f="sum", answer=number)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        sums = [msgspec.structs.replace(op, f="read") if op.f == "sum" else op for op in found if op.f in SUM_FS]
        return [
            linearizable(found, "list", LIST_FS),
            linearizable(sums, "counter", ("increment", "read")),
            no_lost_item(found),
            exactly_once(found),
            agreement(found),
        ]


async def at_once(
    session: DirectSession, sequence: int, operation: dict[str, Any], random: Random
) -> list[RequestVerdict]:
    """Send one request to two nodes or more at the same time; some of them get it twice."""
    nodes = session.nodes.ids
    chosen = random.sample(nodes, random.randint(min(2, len(nodes)), len(nodes)))
    chosen += [node for node in chosen if random.random() < 0.2]
    return list(await asyncio.gather(*(session.attempt(node, sequence, operation) for node in chosen)))


def agreement(found: Sequence[Operation]) -> Result:
    """Check what all attempts of each request were told."""
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
        if executed.get(op.key, 0) > 1:
            findings.violated(
                op.key, f"request {op.key} was executed {executed[op.key]} times, as its answers say", [op]
            )
    return findings.result()
