"""What a workload is: how it is set up, what its processes do, what it reads at the end, and how it is judged.

Owns: the protocol that the runner drives, and the loops that most workloads share. Read next:
:mod:`oncegate.proof.check.run_context`, :mod:`oncegate.proof.check.workloads`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import ClassVar, Protocol, runtime_checkable

from oncegate.gateway.client import OncegateError, Session, Tuning
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.direct_session import DirectSession
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.run_context import World
from oncegate.proof.lincheck import Event, Result


class Workload(Protocol):
    """One kind of run. An instance belongs to one run; :meth:`check` needs nothing that is not in the history."""

    name: ClassVar[str]
    proves: ClassVar[str]
    """One line for a person: what a valid run shows."""

    async def set_up(self, world: World) -> None:
        """Declare what is needed, before processes and faults begin."""
        ...

    async def run_process(self, world: World, process: int, random: Random, until: float) -> None:
        """Do one worker's part until ``until`` (monotonic seconds)."""
        ...

    async def finish(self, world: World) -> None:
        """Read what is there in the end; the cluster is healed.

        Raises:
            NotRecovered: it does not answer.
        """
        ...

    def check(self, folder: Path, history: Sequence[Event]) -> list[Result]:
        """Judge a history; ``folder`` is the run's, for what else was saved."""
        ...


@runtime_checkable
class WithProcesses(Protocol):
    """What a workload has besides that runs more than the nodes."""

    def processes(self, plan: RunPlan) -> Collection[str]:
        """Return the names of what it will register, so that faults on them can be planned."""
        ...

    def lacks(self, plan: RunPlan) -> str:
        """Return why this machine cannot run it; empty: it can."""
        ...

    def equip(self, cluster: CheckCluster, plan: RunPlan) -> None:
        """Add flags to the nodes and register processes, before any node starts; blocks while one of them starts.

        What is registered is killed with the cluster. Its files are below the cluster's directory.

        Raises:
            CheckError: a process did not start.
        """
        ...


async def through_sessions(
    world: World,
    process: int,
    random: Random,
    until: float,
    step: Callable[[Session], Awaitable[None]],
    tuning: Tuning | None = None,
) -> None:
    """Do one step after another in a session of the SDK, and go on in a new one when it is lost."""
    async with world.sdk(process, tuning) as client:
        while world.goes_on(until):
            try:
                async with client.session(nonce=f"{random.getrandbits(128):032x}") as session:
                    while world.goes_on(until) and not session.lost.is_set():
                        await step(session)
                        await world.think(random)
            except OncegateError:
                await world.think(random)  # no session now; nothing was begun


class SessionLoop(ABC):
    """A worker with one direct session: one :meth:`step` after another, and a new session when the old one is over."""

    lease_ms: ClassVar[int] = 60_000

    async def run_process(self, world: World, process: int, random: Random, until: float) -> None:
        """See :class:`Workload`."""
        session: DirectSession | None = None
        while world.goes_on(until):
            if session is None or session.over:
                session = await world.session(random, until, lease_ms=self.lease_ms)
                if session is None:
                    return
            await self.step(world, process, session, random)
            await world.think(random)

    @abstractmethod
    async def step(self, world: World, process: int, session: DirectSession, random: Random) -> None:
        """Do one operation."""
