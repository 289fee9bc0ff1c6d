"""Session hand-over: two owners of one session take it from each other, and each goes on where the other stood.

The new owner sends again what the journal of both has without a result, then goes on with its epoch; the old one goes
on too, until it learns that it is fenced. Order in the log decides: what an epoch executed comes before what the next
one executed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from oncegate.gateway.client.paths import session_path
from oncegate.proof.check.checks import Findings
from oncegate.proof.check.direct_session import DirectSession, RequestVerdict
from oncegate.proof.check.run_context import World
from oncegate.proof.check.workloads.append import TABLE, OnLists, append_of, items, list_checks
from oncegate.proof.lincheck import Event, Result, operations

OPERATIONS_AN_OWNER: Final = 40


class _Job:
    """What two owners share, as a journal would: which requests have been made, and which have a result."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.next = 1
        self.open: dict[int, dict[str, Any]] = {}


class HandOver(OnLists):
    """Workers in pairs; each pair owns one session in turn, and at times both believe they do."""

    name: ClassVar[str] = "hand-over"
    proves: ClassVar[str] = "a session is taken over without loss or repetition, and its old owner is fenced"

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, _Job] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def run_process(self, world: World, process: int, random: Random, until: float) -> None:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        job = await self._job(world, process // 2, random, until)
        while job is not None and world.goes_on(until):
            session = await self._take_over(world, process, job, random, until)
            if session is None:
                return
            if await self._resume(world, process, job, session, until):
                for _ in range(random.randrange(OPERATIONS_AN_OWNER)):
                    if session.over or not world.goes_on(until):
                        break
                    await self._work(world, process, job, session, random)
                    await world.think(random)
            await world.think(random, 0.2)

    async def _job(self, world: World, pair: int, random: Random, until: float) -> _Job | None:
        """Return the pair's job; the first of them opens its session."""
        async with self._locks.setdefault(pair, asyncio.Lock()):
            if pair not in self._jobs:
                session = await world.session(random, until)
                if session is None:
                    return None
                self._jobs[pair] = _Job(session.client_id)
            return self._jobs[pair]

    async def _take_over(
        self, world: World, process: int, job: _Job, random: Random, until: float
    ) -> DirectSession | None:
        body = {"nonce": f"{random.getrandbits(128):032x}"}
        recorded = world.recorder.begin(process, "take-over", job.client_id)
        while True:
            node = random.choice(world.nodes.ids)
            reply = await world.nodes.call(node, "POST", f"{session_path(job.client_id)}/take-over", body)
            if reply.done:
                epoch = int(reply.body["epoch"])
                recorded.ok({"epoch": epoch}, node)
                first = int(reply.body["first_incomplete"])
                return DirectSession(world.nodes, random, job.client_id, epoch, first)
            if not world.goes_on(until) or not reply.retryable:
                recorded.info(reply.code)
                return None
            await asyncio.sleep(random.uniform(0, 0.1))

    async def _resume(self, world: World, process: int, job: _Job, session: DirectSession, until: float) -> bool:
        """Send again what has no result; tell whether all of it has one now."""
        for sequence in sorted(job.open):
            operation = job.open.get(sequence)
            while operation is not None and sequence in job.open:
                if session.over or not world.goes_on(until):
                    return False
                await self._send(world, process, job, session, sequence, operation)
        return True

    async def _work(self, world: World, process: int, job: _Job, session: DirectSession, random: Random) -> None:
        if random.random() < 0.2:
            await world.read(process, TABLE, self._lists.current(random), random, answer=items)
            return
        key, item = self._lists.next(random)
        sequence = job.next
        job.next += 1
        operation = append_of(key, item)
        job.open[sequence] = operation
        await self._send(world, process, job, session, sequence, operation)

    async def _send(
        self, world: World, process: int, job: _Job, session: DirectSession, sequence: int, operation: dict[str, Any]
    ) -> RequestVerdict:
        # The journal of both, not only what this owner has sent: first incomplete must not pass the other's.
        session.pending = set(job.open)
        key, item, request = operation["key"], operation["item"], f"{job.client_id}/{sequence}"
        recorded = world.recorder.begin(process, "append", key, item, request=request)
        verdict = await session.perform(sequence, operation)
        if verdict.answered:
            job.open.pop(sequence, None)  # with the next request it is acknowledged
            replayed, commit = bool(verdict.result.get("replayed")), verdict.result["commit"]
            recorded.ok({"epoch": session.epoch, "commit": commit, "replayed": replayed}, verdict.node)
        else:
            recorded.no_result(verdict.code, verdict.node, failed=verdict.kind == "failed")
        return verdict

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """See :class:`~oncegate.proof.check.workload.Workload`."""
        return [*list_checks(operations(history)), fencing(history)]


def fencing(history: Sequence[Event]) -> Result:
    """Check the epochs of what was executed: in time against take-overs that were told, and in commit order."""
    findings = Findings("an owner that was taken over from executes nothing any more")
    told: dict[str, list[tuple[int, int]]] = {}
    invoked: dict[int, int] = {}
    executed: dict[str, list[tuple[int, int, str]]] = {}
    for event in history:
        if event.type == "invoke":
            invoked[event.process] = event.time
        elif event.f == "take-over" and event.type == "ok":
            told.setdefault(str(event.key), []).append((event.time, event.value["epoch"]))
        elif event.f == "append" and event.type == "ok" and event.request is not None and not event.value["replayed"]:
            client_id = event.request.partition("/")[0]
            findings.saw(client_id)
            epoch = event.value["epoch"]
            executed.setdefault(client_id, []).append((event.value["commit"], epoch, event.request))
            newer = [at for at, one in told.get(client_id, ()) if one > epoch and at < invoked[event.process]]
            if newer:
                findings.violated(client_id, f"request {event.request} of epoch {epoch} was executed after a take-over")
    for client_id, found in executed.items():
        highest = 0
        for commit, epoch, request in sorted(found):
            if epoch < highest:
                words = f"request {request} of epoch {epoch} was executed at {commit}, behind epoch {highest}"
                findings.violated(client_id, words)
            highest = max(highest, epoch)
    return findings.result()
