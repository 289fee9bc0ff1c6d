"""Writes whose callers do not wait for the answer, and ask for it much later: each doubt ends, with the true fate.

Owns: appends through the SDK with deadlines so short that many are cut off, other traffic in the same session between
a doubt and its question, and the judgement: an event ``fate`` holds what ``resolve`` told of a request. What is applied
by its fate is in the list in the end, what is sealed in no read, and no doubt may be one that nobody can end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from oncegate.gateway.client import NeverKnown, NotKnownYet, OncegateError, RequestId, Session, request_ids
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.settings import Tuning
from oncegate.proof.check.checks import Findings
from oncegate.proof.check.direct_session import ATTEMPT_S
from oncegate.proof.check.workload import Worker, World
from oncegate.proof.check.workloads.lists import TABLE, Lists
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.rifl.errors import Code, Outcome

OTHERS: Final = "others"
WINDOW: Final = 32
"""Small, so that further writes need the place of a doubt soon."""
OTHERS_AT_ONCE: Final = 40
PATIENCE_S: Final = (0.001, 0.004, 0.02, 0.1, 0.4)
LAST_QUESTIONS_S: Final = 50.0
"""How long after the run a doubt may take to end: the cluster is healed meanwhile."""
HELD_MAX: Final = 64


class Doubt(msgspec.Struct, frozen=True):
    """An append whose caller was told nothing."""

    request: RequestId
    key: str
    item: int


class Doubts(Lists):
    """Appends that are cut off, and asked about after many further writes."""

    name = "doubts"
    proves = "each doubt ends with the true fate, whatever was written between it and the question"

    async def set_up(self, world: World) -> None:
        await super().set_up(world)
        await world.declare(OTHERS)

    async def run_process(self, worker: Worker) -> None:
        tuning = Tuning(attempt_timeout_s=ATTEMPT_S, backoff_cap_s=0.1)
        async with worker.world.client(worker.process, tuning) as client:
            while worker.goes_on():
                held: list[Doubt] = []
                try:
                    async with client.session(nonce=f"{worker.random.getrandbits(128):032x}", window=WINDOW) as session:
                        while worker.goes_on() and not session.lost.is_set():
                            await self._step(worker, session, held)
                            await worker.think()
                        await self._end(worker, session, held)
                except OncegateError:
                    await worker.think()  # no session now; nothing was begun

    async def _step(self, worker: Worker, session: Session, held: list[Doubt]) -> None:
        dice = worker.random.random()
        if dice < 0.1:
            await self.read_list(worker)
        elif dice < 0.3:
            await _others(worker, session)
        elif held and (dice < 0.4 or len(held) > HELD_MAX):
            await self._ask(worker, session, held, worker.random.randrange(len(held)))
        else:
            await self._append(worker, session, held)

    async def _append(self, worker: Worker, session: Session, held: list[Doubt]) -> None:
        key, item = self.next(worker.random)
        recorded = worker.begin("append", key, item)
        patience_s = worker.random.choice(PATIENCE_S)
        cancels = worker.random.random() < 0.5
        try:
            async with asyncio.timeout(patience_s if cancels else None):
                await session.append(TABLE, key, item, timeout_s=10 * patience_s if cancels else patience_s)
        except (TimeoutError, OperationFailed) as cut_off:
            sure = isinstance(cut_off, OperationFailed) and cut_off.outcome is Outcome.NOT_APPLIED
            asked = () if sure else request_ids(cut_off)
            held += [Doubt(one, key, item) for one in asked]
            recorded.no_result("not sent" if sure or not asked else "cut off", failed=sure or not asked)
        else:
            recorded.ok(None)

    async def _ask(self, worker: Worker, session: Session, held: list[Doubt], at: int) -> bool:
        """Ask about one doubt and record its end; False if it has not ended yet."""
        doubt = held[at]
        try:
            state: str = (await session.resolve(doubt.request, timeout_s=2.0)).state
        except NotKnownYet:
            return False
        except NeverKnown as never:
            state = "lost session" if never.code is Code.SESSION_EXPIRED else f"never known: {never.code}"
        worker.begin("fate", doubt.key, doubt.item, request=str(doubt.request)).ok(state)
        del held[at]
        return True

    async def _end(self, worker: Worker, session: Session, held: list[Doubt]) -> None:
        """Ask about all doubts until each has ended, or for so long that none that can end has not."""
        last = time.monotonic() + LAST_QUESTIONS_S
        while held and time.monotonic() < last:
            if not await self._ask(worker, session, held, 0):
                await worker.think()
        for doubt in held:
            worker.begin("fate", doubt.key, doubt.item, request=str(doubt.request)).ok("not known yet")

    def check(self, history: Sequence[Event]) -> list[Result]:
        return [*super().check(history), true_fates(operations(history))]


async def _others(worker: Worker, session: Session) -> None:
    """Write what nobody judges, more than the window has places; much of it is cut off too."""
    patience_s = worker.random.choice(PATIENCE_S)
    writes = [session.put(OTHERS, f"k{n % 7}", n, timeout_s=1 + patience_s) for n in range(OTHERS_AT_ONCE)]
    await asyncio.gather(*writes, return_exceptions=True)


def true_fates(found: Sequence[Operation]) -> Result:
    """Check each fate that was told against the reads of its list."""
    findings = Findings("each doubt ends, and its fate is what the lists show")
    seen: dict[Any, set[Any]] = {}
    for op in found:
        if op.f == "read" and op.status == "ok":
            seen.setdefault(op.key, set()).update(op.result)
    asked = findings.with_final_reads(found, lambda op: op.f == "fate" and op.status == "ok")
    for key, fates, reads in asked:
        for op in fates:
            if op.result == "not known yet":
                findings.undecided(f"the doubt about {op.argument} of {key} has not ended")
            elif op.result == "applied":
                missing = [read for read in reads if op.argument not in read.result]
                if missing:
                    findings.violated(key, f"{op.argument} was told as applied and is not in {key}", [op, *missing])
            elif op.result == "sealed":
                if op.argument in seen.get(key, ()):
                    findings.violated(key, f"{op.argument} was told as never applied and is in {key}", [op])
            elif op.result != "lost session":
                findings.violated(key, f"what became of {op.argument} of {key} is {op.result}", [op])
    return findings.result()
