"""Reads that wait for a commit or a sealed batch, whoever leaves: each is woken by what it waits for, and forgotten."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.gateway.node import reads as reads_module
from oncegate.gateway.node.reads import Reads
from oncegate.rifl.errors import Code, OncegateError

FLOWS = ("a", "b")
WAITERS_MAX = 5


class Walk:
    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reads_module, "COMMIT_WAITERS_MAX", WAITERS_MAX)
        self.dice = random.Random(seed)
        self.last = dict.fromkeys(FLOWS, 0)
        self.machine: Any = SimpleNamespace(commit=0, flows=self)
        nothing: Any = None
        self.reads = Reads(nothing, self.machine, nothing, nothing)
        self.commits: list[tuple[int, asyncio.Task[None]]] = []
        self.seals: list[tuple[str, asyncio.Task[None]]] = []
        self.woken: list[asyncio.Task[None]] = []
        self.refused = 0

    def find(self, flow: str) -> Any:
        return SimpleNamespace(batches=SimpleNamespace(last=self.last[flow]))

    async def wait_commit(self) -> None:
        commit = self.machine.commit + self.dice.randrange(-1, 6)
        # Those that have left may hold a place until the reads before them are woken.
        held = len(self.reads.commit_waiters)
        task = asyncio.create_task(self.reads.reach(self.dice.choice(("session", "stale")), max(0, commit), 3600.0))
        await asyncio.sleep(0)
        if commit <= self.machine.commit:
            self.woken.append(task)
        elif held >= WAITERS_MAX:
            refusal = task.exception()
            assert isinstance(refusal, OncegateError)
            assert refusal.code is Code.OVERLOADED
            self.refused += 1
        else:
            self.commits.append((commit, task))

    async def wait_seal(self) -> None:
        flow = self.dice.choice(FLOWS)
        told = self.last[flow] - self.dice.choice((0, 0, 0, 1))
        task = asyncio.create_task(self.reads.next_seal(flow, told))
        await asyncio.sleep(0)
        (self.woken.append(task) if told < self.last[flow] else self.seals.append((flow, task)))

    def apply(self, by: int) -> None:
        self.machine.commit += by
        self.reads.applied(self.machine.commit)
        self.wake_commits()

    def wake_commits(self) -> None:
        self.woken += [task for commit, task in self.commits if commit <= self.machine.commit]
        self.commits = [(commit, task) for commit, task in self.commits if commit > self.machine.commit]

    def seal(self, *flows: str) -> None:
        self.woken += [task for flow, task in self.seals if flow in flows]
        self.seals = [(flow, task) for flow, task in self.seals if flow not in flows]

    def replace(self) -> None:
        self.machine.commit += 2
        self.reads.replaced()
        self.wake_commits()
        self.seal(*FLOWS)

    def leave(self) -> None:
        here: Any = self.dice.choice((self.commits, self.seals))
        if here:
            here.pop(self.dice.randrange(len(here)))[1].cancel()

    async def step(self) -> None:
        what = self.dice.choice(("commit", "commit", "commit", "seal", "apply", "sealed", "leave", "leave", "replaced"))
        if what == "commit":
            await self.wait_commit()
        elif what == "seal":
            await self.wait_seal()
        elif what == "apply":
            self.apply(self.dice.choice((0, 1, 2)))
        elif what == "sealed":
            flow = self.dice.choice(FLOWS)
            self.last[flow] += 1
            self.reads.sealed(flow)
            self.seal(flow)
        elif what == "leave":
            self.leave()
        elif self.dice.random() < 0.2:
            self.replace()
        await self.check()

    async def check(self) -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(*self.woken)
        self.woken.clear()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(task.done() for _, task in (*self.commits, *self.seals))
        held = [commit for commit, _, future in self.reads.commit_waiters if not future.done()]
        assert sorted(held) == sorted(commit for commit, _ in self.commits)
        first = self.reads.commit_waiters[:1]
        assert not any(future.done() for _, _, future in first), "who has left holds no place but behind others"
        waiting = {flow: len(turns) for flow, turns in self.reads._seal_waiters.items()}
        there = {flow: sum(of == flow for of, _ in self.seals) for flow in FLOWS}
        assert waiting == {flow: count for flow, count in there.items() if count}


@pytest.mark.parametrize("seed", range(6))
async def test_reads_that_wait_are_woken_by_what_they_wait_for_and_by_nothing_else(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(seed, monkeypatch)
    for _ in range(300):
        await walk.step()
    assert walk.refused
    for _, task in (*walk.commits, *walk.seals):
        task.cancel()
    await asyncio.gather(*(task for _, task in (*walk.commits, *walk.seals)), return_exceptions=True)
    assert (walk.reads.commit_waiters, walk.reads._seal_waiters) == ([], {})
