"""Races of a session's life: two owners take it from each other, its lease ends, its requests are resolved.

The log decides each race. Lists show that every request is executed at most once, and all answers agree with the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from oncegate.gateway.client.paths import session_path
from oncegate.proof.check.checks import Findings
from oncegate.proof.check.direct_session import AttemptReply, DirectSession, RequestVerdict
from oncegate.proof.check.workload import Worker
from oncegate.proof.check.workloads.lists import Held, Lists, append_of
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import LEASE_MS_MIN

OPERATIONS_AN_OWNER: Final = 40
LEASE_HELD_MAX: Final = 4
RESOLVE_HELD_MAX: Final = 8
RACE_S: Final = 0.02
"""Attempts and resolves begin within it: about as long as an entry takes through the log."""

Fate = tuple[str, str, Any, str]
"""What was answered (attempt or resolve), the answer (applied, sealed, failed, unknown), commit number, node."""


async def _send(worker: Worker, one: Held, **noted: int) -> RequestVerdict:
    """Send a request, as another attempt of the same operation; ``noted`` is kept with its result."""
    operation = one.operation
    recorded = worker.begin("append", operation["key"], operation["item"], request=one.request)
    verdict = await one.session.perform(one.sequence, operation)
    if verdict.answered:
        replayed = bool(verdict.result.get("replayed"))
        recorded.ok({**noted, "commit": verdict.result["commit"], "replayed": replayed}, verdict.node)
    else:
        recorded.no_result(verdict.code, verdict.node, failed=verdict.kind == "failed")
    return verdict


def _keep(held: list[Held], one: Held, most: int, *, known: bool) -> None:
    """Keep a request unacknowledged, and at most so many; one without a known result is not kept."""
    if not known:
        one.session.acknowledge(one.sequence)
        return
    held.append(one)
    if len(held) > most:
        one.session.acknowledge(held.pop(0).sequence)


class _Job:
    """What two owners share, as a journal would: which requests have been made, and which have a result."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.next = 1
        self.open: dict[int, dict[str, Any]] = {}


class HandOver(Lists):
    """Workers in pairs; each pair owns one session in turn, and at times both believe they do.

    The new owner sends again what the journal of both has without a result, then goes on with its epoch; the old one
    goes on too, until it learns that it is fenced. Order in the log decides: what an epoch executed comes before what
    the next one executed.
    """

    name = "hand-over"
    proves = "a session is taken over without loss or repetition, and its old owner is fenced"

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[int, _Job] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    async def run_process(self, worker: Worker) -> None:
        job = await self._job(worker)
        while job is not None and worker.goes_on():
            if not await self._take_over(worker, job):
                return
            if await self._resume(worker, job):
                for _ in range(worker.random.randrange(OPERATIONS_AN_OWNER)):
                    if worker.session.over or not worker.goes_on():
                        break
                    await self._work(worker, job)
                    await worker.think()
            await worker.think(0.2)

    async def _job(self, worker: Worker) -> _Job | None:
        """Return the pair's job; the first of them opens its session."""
        pair = worker.process // 2
        async with self._locks.setdefault(pair, asyncio.Lock()):
            if pair not in self._jobs:
                if not await worker.has_session():
                    return None
                self._jobs[pair] = _Job(worker.session.client_id)
            return self._jobs[pair]

    async def _take_over(self, worker: Worker, job: _Job) -> bool:
        random, nodes = worker.random, worker.world.nodes
        body = {"nonce": f"{random.getrandbits(128):032x}"}
        recorded = worker.begin("take-over", job.client_id)
        while True:
            node = worker.node()
            reply = await nodes.call(node, "POST", f"{session_path(job.client_id)}/take-over", body)
            if reply.done:
                epoch, first = int(reply.body["epoch"]), int(reply.body["first_incomplete"])
                recorded.ok({"epoch": epoch}, node)
                worker.session = DirectSession(nodes, random, job.client_id, epoch, first)
                return True
            if not worker.goes_on() or not reply.retryable:
                recorded.info(reply.code)
                return False
            await asyncio.sleep(random.uniform(0, 0.1))

    async def _resume(self, worker: Worker, job: _Job) -> bool:
        """Send again what has no result; tell whether all of it has one now."""
        for sequence in sorted(job.open):
            while sequence in job.open:
                if worker.session.over or not worker.goes_on():
                    return False
                await self._append(worker, job, sequence)
        return True

    async def _work(self, worker: Worker, job: _Job) -> None:
        if worker.random.random() < 0.2:
            await self.read_list(worker)
            return
        sequence = job.next
        job.next += 1
        job.open[sequence] = append_of(*self.next(worker.random))
        await self._append(worker, job, sequence)

    async def _append(self, worker: Worker, job: _Job, sequence: int) -> None:
        session = worker.session
        # The journal of both, not only what this owner has sent: first incomplete must not pass the other's.
        session.pending = set(job.open)
        verdict = await _send(worker, Held(session, sequence, job.open[sequence]), epoch=session.epoch)
        if verdict.answered:
            job.open.pop(sequence, None)  # with the next request it is acknowledged

    def check(self, history: Sequence[Event]) -> list[Result]:
        return [*super().check(history), fencing(history)]


def fencing(history: Sequence[Event]) -> Result:
    """Check the epochs of what was executed: in time against answered take-overs, and in commit order."""
    findings = Findings("an owner that was taken over from executes nothing any more")
    taken: dict[str, list[tuple[int, int]]] = {}
    invoked: dict[int, int] = {}
    executed: dict[str, list[tuple[int, int, str]]] = {}
    for event in history:
        if event.type == "invoke":
            invoked[event.process] = event.time
        elif event.f == "take-over" and event.type == "ok":
            taken.setdefault(str(event.key), []).append((event.time, event.value["epoch"]))
        elif event.f == "append" and event.type == "ok" and event.request is not None and not event.value["replayed"]:
            client_id = event.request.partition("/")[0]
            findings.saw(client_id)
            epoch = event.value["epoch"]
            executed.setdefault(client_id, []).append((event.value["commit"], epoch, event.request))
            if any(one > epoch and at < invoked[event.process] for at, one in taken.get(client_id, ())):
                findings.violated(client_id, f"request {event.request} of epoch {epoch} was executed after a take-over")
    for client_id, found in executed.items():
        highest = 0
        for commit, epoch, request in sorted(found):
            if epoch < highest:
                words = f"request {request} of epoch {epoch} was executed at {commit}, behind epoch {highest}"
                findings.violated(client_id, words)
            highest = max(highest, epoch)
    return findings.result()


class LeaseRaces(Lists):
    """Appends just before, at and after the end of the shortest lease; what was answered is sent again after it."""

    name = "lease"
    proves = "renewal and expiry race safely: nothing is executed twice or after the session's end"
    lease_ms = LEASE_MS_MIN

    async def step(self, worker: Worker) -> None:
        session, random, held = worker.session, worker.random, self.held(worker)
        if random.random() < 0.25:
            await asyncio.sleep(random.uniform(0.8, 1.3) * self.lease_ms / 1000)
        if random.random() < 0.1:
            await self.read_list(worker)
        if held and random.random() < 0.3:
            await _send(worker, random.choice(held))
        renewal = None
        if random.random() < 0.3:
            path = f"{session_path(session.client_id)}/renew"
            renewal = session.nodes.call(worker.node(), "POST", path, {"epoch": session.epoch})
        one = self.new_append(worker)
        if renewal is None:
            verdict = await _send(worker, one)
        else:
            verdict, _ = await asyncio.gather(_send(worker, one), renewal)
        if session.over:
            # The point of this workload: what the session has outstanding comes after the answer that it has ended.
            for late in [*held, one]:
                await _send(worker, late)
            held.clear()
        else:
            _keep(held, one, LEASE_HELD_MAX, known=verdict.answered)

    def check(self, history: Sequence[Event]) -> list[Result]:
        return [*super().check(history), ended(history)]


def ended(history: Sequence[Event]) -> Result:
    """Check that a session executes nothing after an answer that it has ended, and a request has one commit number."""
    findings = Findings("a session that was told of its end executes nothing any more")
    invoked: dict[int, int] = {}
    over: dict[str, int] = {}
    commits: dict[str, int] = {}
    for event in history:
        if event.type == "invoke":
            invoked[event.process] = event.time
        if event.f != "append" or event.request is None or event.type == "invoke":
            continue
        session = event.request.partition("/")[0]
        findings.saw(session)
        if event.error == Code.SESSION_EXPIRED:
            over.setdefault(session, event.time)
        elif event.type == "ok":
            began = invoked[event.process]
            if not event.value["replayed"] and over.get(session, began) < began:
                findings.violated(event.key, f"request {event.request} was executed after its session's end was told")
            if commits.setdefault(event.request, event.value["commit"]) != event.value["commit"]:
                findings.violated(event.key, f"request {event.request} has two commit numbers")
    return findings.result()


class ResolveRaces(Lists):
    """Appends that are resolved, at any node, while attempts of them are still under way.

    All get one answer: applied with one result, or sealed and then never executed. The answers are kept as an event
    ``fates``; a sealed request counts as refused in the history.
    """

    name = "resolve"
    proves = "resolve and its operation under way agree: applied once for all, or never executed"

    async def step(self, worker: Worker) -> None:
        held, random = self.held(worker), worker.random
        held[:] = [one for one in held if one.session is worker.session]
        dice = random.random()
        if dice < 0.2:
            await self.read_list(worker)
        elif held and dice < 0.4:
            one = random.choice(held)
            worker.begin("fates", one.request).ok(await race(one, random))
        else:
            await self._new(worker)

    async def _new(self, worker: Worker) -> None:
        one = self.new_append(worker)
        recorded = worker.begin("append", one.operation["key"], one.operation["item"], request=one.request)
        fates = await race(one, worker.random)
        known = {fate[1] for fate in fates}
        if "applied" in known:
            recorded.ok(None)
        elif "sealed" in known:
            recorded.fail("sealed")
        elif known == {"failed"}:
            recorded.fail("no attempt was accepted")
        else:
            recorded.info("no answer")
        worker.begin("fates", one.request).ok(fates)
        _keep(self.held(worker), one, RESOLVE_HELD_MAX, known=bool(known & {"applied", "sealed"}))

    def check(self, history: Sequence[Event]) -> list[Result]:
        return [*super().check(history), one_fate(operations(history))]


async def race(one: Held, random: Random) -> list[Fate]:
    """Let one or two attempts and one or two resolves of a request meet; return the answers."""
    session, nodes = one.session, one.session.nodes.ids
    attempts = [random.uniform(0, RACE_S) for _ in range(random.choice((1, 1, 2)))]
    resolves = [random.uniform(0, RACE_S) for _ in range(random.choice((1, 1, 2)))]

    async def attempt(wait_s: float, node: str) -> Fate:
        await asyncio.sleep(wait_s)
        return attempted(await session.attempt(node, one.sequence, one.operation))

    async def resolve(wait_s: float, node: str) -> Fate:
        await asyncio.sleep(wait_s)
        return resolved(await session.resolve(node, one.sequence), node)

    return list(
        await asyncio.gather(
            *(attempt(wait_s, random.choice(nodes)) for wait_s in attempts),
            *(resolve(wait_s, random.choice(nodes)) for wait_s in resolves),
        )
    )


def attempted(verdict: RequestVerdict) -> Fate:
    """Return the answer to an attempt."""
    if verdict.answered:
        return ("attempt", "applied", verdict.result.get("commit"), verdict.node)
    return ("attempt", "sealed" if verdict.code == Code.STALE else verdict.kind, None, verdict.node)


def resolved(reply: AttemptReply, node: str) -> Fate:
    """Return the answer to a resolve; a refused resolve says nothing about the operation."""
    state = reply.body.get("state") if reply.done and isinstance(reply.body, dict) else None
    if state in ("applied", "refused"):
        return ("resolve", "applied", (reply.body.get("result") or {}).get("commit"), node)
    # A resolve without an answer may have sealed; it cannot have applied anything.
    return ("resolve", "sealed" if state == "sealed" else "failed", None, node)


def one_fate(found: Sequence[Operation]) -> Result:
    """Check that every request has one fate in all answers."""
    findings = Findings("a request is applied with one result or sealed, whoever asks")
    known: dict[Any, tuple[str, Any]] = {}
    for op in (op for op in found if op.f == "fates"):
        findings.saw(op.key)
        for who, what, commit, node in op.result or ():
            if what not in ("applied", "sealed"):
                continue
            before = known.setdefault(op.key, (what, commit))
            if before != (what, commit):
                words = f"was {before[0]} at {before[1]}, and {what} at {commit} as {node} told a {who}"
                findings.violated(op.key, f"request {op.key} {words}", [op])
    return findings.result()
