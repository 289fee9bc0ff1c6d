"""Recipes of the SDK while sessions end: what every such workload has in common.

Owns: workers with sessions of the shortest lease, and steps that are recorded with their honest outcome. A session may
be closed in the middle of things, so that what is bound to it goes while it is held or waited for. In the end, when the
cluster is healed, whoever asks gets what there is: nobody's row is left behind.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, TypeVar

from oncegate.gateway.client import Client, OncegateError, Outcome, Session, Transaction, WriteResult
from oncegate.proof.check.workload import FINAL_S, NotRecovered, Worker, Workload, World
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.rifl.ids import LEASE_MS_MIN

T = TypeVar("T")
RECIPES: Final = "recipes"
KEEPS: Final = 0.2
"""How often a session is closed with what it holds."""
PATIENCE_S: Final = (0.05, 1.0)
OLD_MAX: Final = 8


class RecipeWorkload(Workload):
    """Workers with short sessions of the SDK."""

    table = RECIPES
    letters: ClassVar[str]
    """What the keys of its operations begin with: where several recipes are mixed, it tells whose they are."""

    async def set_up(self, world: World) -> None:
        await super().set_up(world)
        await world.declare(RECIPES)

    async def run_process(self, worker: Worker) -> None:
        async with worker.world.client(worker.process) as client:
            while worker.goes_on():
                try:
                    async with client.session(lease_ms=LEASE_MS_MIN) as session:
                        while worker.goes_on() and not session.lost.is_set():
                            if not await self.work(worker, client, session):
                                break
                            await worker.think()
                except OncegateError:
                    await worker.think()

    async def finish(self, world: World) -> None:
        async with world.client(0) as client, client.session() as session:
            try:
                async with asyncio.timeout(FINAL_S):
                    await self.end(Worker(world, 0, float("inf"), world.random("end")), client, session)
            except (TimeoutError, OncegateError) as failure:
                raise NotRecovered(f"{self.name}: not everything was to be had in the end: {failure}") from failure
        await super().finish(world)

    def check(self, history: Sequence[Event]) -> list[Result]:
        return self.judge(operations(history))

    @abstractmethod
    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        """Do one step; False if the session is to be closed behind it."""

    @abstractmethod
    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        """Take what is left, in a healed cluster without other workers."""

    @abstractmethod
    def judge(self, found: Sequence[Operation]) -> list[Result]:
        """Judge the operations of a history."""


async def tried(
    worker: Worker,
    f: str,
    key: str,
    argument: Any,
    step: Awaitable[T],
    told: Callable[[T], Any],
    patience_s: float | None = None,
) -> T | None:
    """Do a step and record it; None without a result. What is cut off after ``patience_s`` is in doubt."""
    recorded = worker.begin(f, key, argument)
    try:
        async with asyncio.timeout(patience_s):
            result = await step
    except TimeoutError:
        recorded.info("not in time")
    except OncegateError as failure:
        recorded.no_result(failure.code, failed=failure.outcome is Outcome.NOT_APPLIED)
    else:
        recorded.ok(told(result))
        return result
    return None


async def transacted(
    worker: Worker, session: Session, f: str, key: str, argument: Any, transaction: Transaction
) -> None:
    """Do a transaction and record it; its result is its commit number."""

    def told(result: WriteResult) -> Any:
        return result.commit if result.applied else {"refused": result.code}

    await tried(worker, f, key, argument, session.transact(transaction), told)
