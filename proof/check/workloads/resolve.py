"""Resolve races: a request is resolved, by anybody at any node, while attempts of it are still under way.

The log decides between them. What it decided is told to everybody: applied with one result, or sealed and then never
executed. What each was told is kept as an event ``fates``; a sealed request counts as refused in the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.proof.check.checks import Findings
from oncegate.proof.check.direct_session import DirectSession, RequestVerdict
from oncegate.proof.check.node_requests import AttemptReply
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workload import SessionLoop
from oncegate.proof.check.workloads.append import TABLE, OnLists, append_of, items, list_checks
from oncegate.proof.check.workloads.dedup import Held
from oncegate.proof.lincheck import Event, Operation, Result, operations

HELD_MAX: Final = 8
RACE_S: Final = 0.02
"""Attempts and resolves begin within it: about as long as an entry takes through the log."""

Fate = tuple[str, str, Any, str]
"""Who was told (attempt or resolve), what (applied, sealed, failed, unknown), the commit number, by which node."""


class ResolveRaces(OnLists, SessionLoop):
    """Appends that are resolved while they happen, and asked for again."""

    name: ClassVar[str] = "resolve"
    proves: ClassVar[str] = "resolve and its operation under way agree: applied once for all, or never executed"

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[int, list[Held]] = {}

    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Race a new request, ask for an old one again, or read."""
        held = self._held.setdefault(process, [])
        held[:] = [one for one in held if one.session is session]
        dice = random.random()
        if dice < 0.2:
            await world.read(process, TABLE, self._lists.current(random), random, answer=items)
        elif held and dice < 0.4:
            one = random.choice(held)
            fates = await race(one.session, one.sequence, one.operation, random)
            _note(world, process, one, fates)
        else:
            await self._new(world, process, session, random, held)

    async def _new(self, world: World, process: int, session: DirectSession, random: Random, held: list[Held]) -> None:
        key, item = self._lists.next(random)
        one = Held(session, session.take(), append_of(key, item))
        recorded = world.recorder.begin(process, "append", key, item, request=session.request(one.sequence))
        fates = await race(session, one.sequence, one.operation, random)
        known = {fate[1] for fate in fates}
        if "applied" in known:
            recorded.ok(None)
        elif "sealed" in known:
            recorded.fail("sealed")
        elif known == {"failed"}:
            recorded.fail("no attempt was accepted")
        else:
            recorded.info("no answer")
        _note(world, process, one, fates)
        if known & {"applied", "sealed"}:
            held.append(one)
            if len(held) > HELD_MAX:
                session.acknowledge(held.pop(0).sequence)
        else:
            session.acknowledge(one.sequence)

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        found = operations(history)
        return [*list_checks(found), one_fate(found)]


def _note(world: World, process: int, one: Held, fates: Sequence[Fate]) -> None:
    world.recorder.begin(process, "fates", one.session.request(one.sequence)).ok(fates)


async def race(session: DirectSession, sequence: int, operation: dict[str, Any], random: Random) -> list[Fate]:
    """Let one or two attempts and one or two resolves of a request meet; return what each was told."""
    attempts = [random.uniform(0, RACE_S) for _ in range(random.choice((1, 1, 2)))]
    resolves = [random.uniform(0, RACE_S) for _ in range(random.choice((1, 1, 2)))]

    async def attempt(wait_s: float, node: str) -> Fate:
        await asyncio.sleep(wait_s)
        return attempted(await session.attempt(node, sequence, operation))

    async def resolve(wait_s: float, node: str) -> Fate:
        await asyncio.sleep(wait_s)
        return resolved(await session.resolve(node, sequence), node)

    nodes = session.nodes.ids
    return list(
        await asyncio.gather(
            *(attempt(wait_s, random.choice(nodes)) for wait_s in attempts),
            *(resolve(wait_s, random.choice(nodes)) for wait_s in resolves),
        )
    )


def attempted(verdict: RequestVerdict) -> Fate:
    """Return what an attempt was told."""
    if verdict.answered:
        return ("attempt", "applied", verdict.result.get("commit"), verdict.node)
    sealed = verdict.code == "STALE"
    return ("attempt", "sealed" if sealed else verdict.kind, None, verdict.node)


def resolved(reply: AttemptReply, node: str) -> Fate:
    """Return what a resolve was told. One that was refused says nothing about the operation."""
    state = reply.body.get("state") if reply.done and isinstance(reply.body, dict) else None
    if state == "applied":
        return ("resolve", "applied", (reply.body.get("result") or {}).get("commit"), node)
    # A resolve without an answer may have sealed; it cannot have applied anything.
    return ("resolve", "sealed" if state == "sealed" else "failed", None, node)


def one_fate(found: Sequence[Operation]) -> Result:
    """Check that every request has one fate, whoever asked, when and where."""
    findings = Findings("a request is applied with one result or sealed, whoever asks")
    known: dict[Any, tuple[str, Any]] = {}
    for op in (op for op in found if op.f == "fates"):
        findings.saw(op.key)
        for who, what, commit, node in op.result or ():
            if what not in ("applied", "sealed"):
                continue
            before = known.setdefault(op.key, (what, commit))
            if before != (what, commit):
                words = (
                    f"request {op.key} was {before[0]} at {before[1]}, and {what} at {commit} as {node} told a {who}"
                )
                findings.violated(op.key, words, [op])
    return findings.result()
