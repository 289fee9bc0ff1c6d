"""All recipes at once: what they share is one table, and the sessions that their rows are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from oncegate.gateway.client import Client, Session
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads.recipes.allocation import RateLimiterWorkload, SequenceWorkload
from oncegate.proof.check.workloads.recipes.barrier import BarrierWorkload
from oncegate.proof.check.workloads.recipes.election import ElectionWorkload
from oncegate.proof.check.workloads.recipes.locks import LockWorkload, ReadWriteLockWorkload, SemaphoreWorkload
from oncegate.proof.check.workloads.recipes.names import RegistryWorkload
from oncegate.proof.check.workloads.recipes.queue import QueueWorkload
from oncegate.proof.check.workloads.recipes.short_sessions import RecipeWorkload
from oncegate.proof.lincheck import Operation, Result

EACH: Final[tuple[type[RecipeWorkload], ...]] = (
    LockWorkload,
    ReadWriteLockWorkload,
    SemaphoreWorkload,
    ElectionWorkload,
    QueueWorkload,
    BarrierWorkload,
    RateLimiterWorkload,
    RegistryWorkload,
    SequenceWorkload,
)


class MixedRecipes(RecipeWorkload):
    """A session holds what several recipes are about when it ends."""

    name = "recipes"
    proves = "what the workload of each recipe proves, all of them at once"

    def __init__(self) -> None:
        self._each = [kind() for kind in EACH]

    async def set_up(self, world: World) -> None:
        await super().set_up(world)
        for one in self._each:
            await world.declare(one.table)

    async def work(self, worker: Worker, client: Client, session: Session) -> bool:
        return await worker.random.choice(self._each).work(worker, client, session)

    async def end(self, worker: Worker, client: Client, session: Session) -> None:
        for one in self._each:
            await one.end(worker, client, session)

    async def finish(self, world: World) -> None:
        await super().finish(world)
        for one in self._each:
            await Workload.finish(one, world)

    def judge(self, found: Sequence[Operation]) -> list[Result]:
        return [
            msgspec.structs.replace(result, name=f"{result.name}: {one.name}")
            for one in self._each
            for result in one.judge([op for op in found if op.key[0] in one.letters])
        ]
