"""Numbers that are handed out once, and permits of a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from oncegate.gateway.client import Client, Session, recipes
from oncegate.proof.check.checks import Findings, acknowledged, by_key, rising
from oncegate.proof.check.workload import FINAL_S, Worker
from oncegate.proof.check.workloads.leases import look
from oncegate.proof.check.workloads.recipes.short_sessions import PATIENCE_S, RECIPES, RecipeWorkload, tried
from oncegate.proof.lincheck import Operation, Result

PERMITS: Final = 5
PER_MS: Final = 300


class SequenceWorkload(RecipeWorkload):
    """Numbers are asked for one by one and in ranges."""

    name = "sequence"
    proves = "each number is handed out once, greater than all that were handed out before it was asked for"
    letters = "i"
    names = ("i0", "i1")

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        await _next(worker, client, session, worker.random.choice(self.names))
        return worker.random.random() > 0.02

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        for name in self.names:
            await _next(worker, client, session, name)

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [_once(found)]


async def _next(worker: Worker, client: Client, session: Session, name: str) -> None:
    count = worker.random.choice((1, 1, 2, 5))
    asked = recipes.Sequence(client, session, name).next(count)
    await tried(worker, "next", name, count, asked, lambda numbers: [numbers[0], numbers[-1]])


def _once(found: Sequence[Operation]) -> Result:
    """Check that ranges are disjoint, rise in real time, and leave out no more than was asked for without a result."""
    findings = Findings("each number is handed out once, in rising order")
    rising(findings, [op for op in found if op.f == "next" and op.status == "ok"], lambda op: tuple(op.result))
    for key, ops in by_key(found, lambda op: op.f == "next" and op.status != "failed").items():
        before = None
        asked = sum(op.argument for op in ops)
        for op in sorted((op for op in ops if op.status == "ok"), key=lambda op: op.result):
            first, last = op.result
            if last - first + 1 != op.argument or not first >= 1 or last > asked:
                words = f"{op.argument} of {asked} numbers are {first} to {last}"
                findings.violated(key, words, [op])
            if before is not None and first <= before.result[1]:
                findings.violated(key, f"{first} is handed out twice", [before, op])
            before = op
    return findings.result()


class RateLimiterWorkload(RecipeWorkload):
    """More permits are asked for than there are; what the window holds is looked at with its end in cluster time."""

    name = "rate-limiter"
    proves = f"at most {PERMITS} permits are given in a window, and windows begin {PER_MS} ms apart, in cluster time"
    letters = "r"
    key = "r0"

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        dice, count = worker.random.random(), worker.random.choice((1, 1, 2))
        limiter = recipes.RateLimiter(client, session, self.key, PERMITS, PER_MS)
        if dice < 0.4:
            await look(worker, RECIPES, f"rate/{self.key}/window", self.key)
        elif dice < 0.8:
            await tried(worker, "take", self.key, count, limiter.try_acquire(count), _told)
        else:
            await self._acquire(worker, limiter, count, worker.random.choice(PATIENCE_S))
        return worker.random.random() > 0.02

    async def _acquire(self, worker: Worker, limiter: recipes.RateLimiter, count: int, patience_s: float) -> bool:
        async def given() -> bool:
            await limiter.acquire(count)
            return True

        return await tried(worker, "take", self.key, count, given(), _told, patience_s) is not None

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        limiter = recipes.RateLimiter(client, session, self.key, PERMITS, PER_MS)
        for _ in range(2):
            if not await self._acquire(worker, limiter, PERMITS, FINAL_S):
                raise TimeoutError("no window begins")
            await look(worker, RECIPES, f"rate/{self.key}/window", self.key)

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [_counted(found), _windows_apart(found)]


def _told(given: bool) -> Any:
    return None if given else {"refused": "TAKEN"}


def _windows(found: Sequence[Operation]) -> dict[int, list[Operation]]:
    """Return looks at windows by the window's end, which no two have in common, in the order of commit numbers."""
    looks = [op for op in found if op.f == "look" and op.status == "ok" and "ends_ms" in op.result]
    windows: dict[int, list[Operation]] = {}
    for op in sorted(looks, key=lambda op: op.result["commit"]):
        windows.setdefault(op.result["ends_ms"], []).append(op)
    return windows


def _counted(found: Sequence[Operation]) -> Result:
    """Check that no window holds more than its permits, and that it holds all that were given between two looks."""
    findings = Findings("no window has more than its permits")
    given = [op for op in found if op.f == "take" and acknowledged(op)]
    findings.saw("", len(given))
    for looks in _windows(found).values():
        first = looks[0]
        for op in looks:
            held = op.result["value"]
            between = [t for t in given if t.invoked > (first.returned or 0) and (t.returned or 0) < op.invoked]
            more = sum(t.argument for t in between)
            if held > PERMITS:
                findings.violated(op.key, f"{held} permits are taken of {PERMITS}", [op])
            if first.result["value"] + more > held:
                words = f"{held} permits are taken, though after {first.result['value']} there were {more} more"
                findings.violated(op.key, words, [first, *between, op])
    return findings.result()


def _windows_apart(found: Sequence[Operation]) -> Result:
    """Check that a window begins after the end of the one before."""
    findings = Findings("windows do not overlap in cluster time")
    for (end, (*_, before)), (later, (op, *_)) in pairwise(sorted(_windows(found).items())):
        findings.saw(op.key)
        if later - end < PER_MS:
            findings.violated(op.key, f"a window of {PER_MS} ms ends at {later}, and another at {end}", [before, op])
    return findings.result()
