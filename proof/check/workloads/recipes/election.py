"""Elections, and those who watch them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import aclosing, suppress
from itertools import count, pairwise
from random import Random
from typing import Any

from oncegate.gateway.client import Client, OncegateError, Session
from oncegate.gateway.client.recipes import Election, Hold, Leader
from oncegate.proof.check.checks import Findings, rising
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.recipes.contended import Contended, holds
from oncegate.proof.check.workloads.recipes.short_sessions import PATIENCE_S, tried
from oncegate.proof.lincheck import Operation, Result


class ElectionWorkload(Contended):
    """Leaders write under their token, and observers are told who leads."""

    name = "election"
    proves = "one leader at a time, and observers are told of leaders in their order"
    letters = "e"
    names = ("e0", "e1")
    rule = "one leader at a time"
    fences = True

    def __init__(self) -> None:
        super().__init__()
        self._candidates = count(1)

    def ask(self, client: Client, session: Session, name: str, random: Random) -> tuple[Any, Awaitable[Hold]]:
        candidate = f"c{next(self._candidates)}"
        return candidate, Election(client, session, name).campaign(candidate)

    async def release(self, worker: Worker, name: str, hold: Hold) -> None:
        await hold.release()

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        dice, name = worker.random.random(), worker.random.choice(self.names)
        election = Election(client, session, name)
        if dice < 0.1:
            await tried(worker, "observe", name, None, election.leader(), lambda leader: [_told(leader)])
        elif dice < 0.2:
            await _observe(worker, name, election)
        else:
            return await super().work(worker, client, session)
        return True

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [*super().judge(found), _observed(found)]


def _told(leader: Leader | None) -> Any:
    return leader and [leader.token, leader.value]


async def _observe(worker: Worker, name: str, election: Election) -> None:
    """Look on for a while."""
    told: list[Any] = []
    recorded = worker.begin("observe", name)
    with suppress(TimeoutError, OncegateError):
        async with asyncio.timeout(worker.random.choice(PATIENCE_S)), aclosing(election.leaders()) as leaders:
            async for leader in leaders:
                told.append(_told(leader))  # noqa: PERF401 - what was told until it is cut off
    recorded.ok(told)


def _observed(found: Sequence[Operation]) -> Result:
    """Check what observers are told: each leader once, in order, from the one on who was known to lead before."""
    findings = Findings("observers are told of leaders in their order")
    candidates = {(op.key, op.argument) for op in found if op.f == "hold"}
    leaders = {op.result: op for op in holds(found)}
    told = [(op, [one for one in op.result if one]) for op in found if op.f == "observe" and op.status == "ok"]
    spans = {op.index: (seen[0][0], seen[-1][0]) for op, seen in told if seen}
    looked = [op for op, seen in told if seen]
    rising(findings, [*leaders.values(), *looked], lambda op: spans.get(op.index) or (op.result, op.result))
    for op, seen in told:
        if any(later[0] <= earlier[0] for earlier, later in pairwise(seen)):
            findings.violated(op.key, f"tokens {[token for token, _ in seen]} are told in this order", [op])
        for token, name in seen:
            leader = leaders.get(token)
            if (op.key, name) not in candidates or (leader is not None and leader.argument != name):
                findings.violated(op.key, f"{name} is told to lead with token {token}", [op, *filter(None, [leader])])
    return findings.result()
