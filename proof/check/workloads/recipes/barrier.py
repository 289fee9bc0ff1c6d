"""Barriers: one round after the other, with waiters who give up or die."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from oncegate.gateway.client import Client, OperationFailed, Outcome, Session
from oncegate.gateway.client.paths import session_path
from oncegate.gateway.client.recipes import Barrier
from oncegate.proof.check.checks import Findings, acknowledged, by_key, refused
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.recipes.short_sessions import PATIENCE_S, RecipeWorkload, tried
from oncegate.proof.lincheck import Operation, Result
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import format_client_id

PARTIES: Final = 3
APART_S: Final = 0.3
LATE_MAX: Final = 4
LATE_S: Final = 20.0
"""How long whoever comes late waits for an answer of a healed cluster that nobody else uses."""


class BarrierWorkload(RecipeWorkload):
    """Some wait in each round; those who are cut off may close their session, and do not count from then on."""

    name = "barrier"
    proves = f"nobody passes before {PARTIES} wait who are not gone, and what is open stays open"
    letters = "b"

    def __init__(self) -> None:
        self._round = 0
        """The first that nobody is known to have passed."""

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        random, number = worker.random, self._round
        await worker.think(APART_S)  # who come one by one show how many are enough
        if number and random.random() < 0.1:
            number = random.randrange(number)
        waiting = asyncio.create_task(_passed(client, session, number))
        try:
            if await _wait(worker, session, "wait", number, asyncio.shield(waiting), random.choice(PATIENCE_S)):
                self._round = max(self._round, number + 1)
            elif random.random() < 0.8:
                await _close(worker, session, number)  # in the middle of waiting
                return False
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})
        return True

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        for number in range(max(0, self._round - LATE_MAX), self._round):
            await _wait(worker, session, "late", number, _passed(client, session, number), LATE_S)
        workers = [Worker(worker.world, process, worker.until, worker.random) for process in range(PARTIES)]
        number = self._round
        passed = [_wait(one, session, "wait", number, _passed(client, session, number), None) for one in workers]
        if not all(await asyncio.gather(*passed)):
            raise TimeoutError(f"round {number} does not open")

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [_together(found), _stays(found)]


async def _passed(client: Client, session: Session, number: int) -> bool:
    """Wait, and say whether the barrier was passed; no: the session has ended, and the row in line with it."""
    try:
        await Barrier(client, session, f"round{number}", PARTIES).wait()
    except OperationFailed as failure:
        if failure.code is not Code.SESSION_EXPIRED or failure.outcome is not Outcome.NOT_APPLIED:
            raise
        return False
    return True


async def _wait(
    worker: Worker, session: Session, f: str, number: int, passing: Awaitable[bool], patience_s: float | None
) -> bool:
    """Record a wait, and say whether the barrier was passed."""

    def told(passed: bool) -> Any:
        return None if passed else {"refused": Code.SESSION_EXPIRED}

    owner = format_client_id(session.client_id)
    return await tried(worker, f, f"b{number}", owner, passing, told, patience_s) is True


async def _close(worker: Worker, session: Session, number: int) -> None:
    """Close a session as its end does, behind its back."""
    client_id = format_client_id(session.client_id)
    recorded = worker.begin("close", f"b{number}", client_id)
    path = f"{session_path(client_id)}?epoch={session.epoch}"
    reply = await worker.world.nodes.call(worker.node(), "DELETE", path)
    if reply.done:
        recorded.ok()
    else:
        recorded.info(reply.code)


def _together(found: Sequence[Operation]) -> Result:
    """Check that so many waited at one moment before the first one passed.

    A wait that was cut off may have left its row behind, until its session is closed; one that has failed too, as its
    row was there when it was refused to open the barrier.
    """
    findings = Findings("nobody passes before so many wait")
    closed = {op.argument: op for op in reversed(found) if op.f == "close" and op.status == "ok"}
    for key, waits in by_key(found, lambda op: op.f == "wait").items():
        findings.saw(key, len(waits))
        first = min(filter(acknowledged, waits), key=lambda op: op.returned or 0, default=None)
        if first is None:
            continue
        moments = [(op.invoked, 1) for op in waits]
        for op in waits:
            if op.status == "ok" and refused(op):
                moments.append((op.returned or 0, -1))
            elif op.status != "ok" and op.argument in closed:
                moments.append((max(op.invoked, closed[op.argument].returned or 0), -1))
        waiting = most = 0
        for at, change in sorted(moments):
            if at < (first.returned or 0):
                waiting += change
                most = max(most, waiting)
        if most < PARTIES:
            findings.violated(key, f"{key} is passed when {most} have waited at once", [first])
    return findings.result()


def _stays(found: Sequence[Operation]) -> Result:
    """Check that whoever comes later, when the cluster is healed, passes where somebody has passed."""
    findings = Findings("what is open stays open")
    passed = by_key(found, lambda op: op.f == "wait" and acknowledged(op))
    for op in found:
        if op.f == "late":
            findings.saw(op.key)
            if not acknowledged(op) and op.key in passed:
                findings.violated(op.key, f"{op.key} was passed and is not open", [passed[op.key][0], op])
    return findings.result()
