"""Workloads in this process: on nodes of one machine, whose answers are lost now and then, and whose sessions end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from oncegate.gateway.answers import Answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.testing.nodes import FakeNode
from oncegate.proof.check.direct_session import Nodes
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.recorder import HistoryRecorder
from oncegate.proof.check.workload import Worker, Workload, World
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event, Result
from oncegate.proof.mutants.liars import Bug, in_front
from oncegate.rifl.errors import Code, OncegateError
from oncegate.testing import FakeGateway

NODES = 2
TURN_S = 0.01
"""Cluster time runs twice as fast: sessions and rows end within a run."""


class Trouble(NamedTuple):
    """What happens during a run, each with its likelihood: to a turn's session, and to a write in a bad spell."""

    expiry: float = 0.0
    refused: float = 0.0
    timed_out: float = 0.0
    lost: float = 0.0


BAD = Trouble(expiry=0.02, refused=0.4, timed_out=0.3, lost=0.2)
SPELL_S, CALM_S = 0.06, 0.1


class Run(NamedTuple):
    """What a run leaves: what its workload says of its history, and what the cluster was asked and has done."""

    found: list[Result]
    events: list[Event]
    gateway: CountedGateway

    def invalid(self, check: str = "") -> list[Result]:
        """Return the checks that begin so, and do not hold."""
        return [one for one in self.found if one.verdict == "invalid" and one.name.startswith(check)]


class CountedGateway(FakeGateway):
    """Keeps the commands that it is told."""

    def __init__(self, *, nodes: int) -> None:
        self.commands: list[c.Command] = []
        super().__init__(nodes=nodes)

    def apply(self, command: c.Command) -> Answer:
        self.commands.append(command)
        return super().apply(command)


async def made(
    workload: str,
    directory: Path,
    seed: int = 0,
    *,
    seconds: float = 1.0,
    trouble: Trouble = Trouble(expiry=0.05),  # noqa: B008
    bug: Callable[[], Bug] | None = None,
) -> Run:
    """Run a workload; with ``bug`` its clients talk to nodes that have it."""
    events: list[Event] = []
    plan = RunPlan(workload=workload, seed=seed, seconds=seconds)
    async with AsyncExitStack() as stack:
        fake = await stack.enter_async_context(CountedGateway(nodes=NODES))
        endpoints = {node.node_id: node.endpoint for node in fake.nodes}
        if bug is not None:
            ports = dict.fromkeys(endpoints, 0)
            endpoints = await stack.enter_async_context(in_front(bug(), endpoints, ports, stop_s=0.1))
        nodes = await stack.enter_async_context(Nodes(lambda: endpoints))
        world = World(plan, nodes, HistoryRecorder(events.append), directory)
        weather = _Weather(fake, random.Random(f"weather {seed}"), trouble)
        for node in fake.nodes:
            node.before = weather.of(node)
        clock = asyncio.create_task(weather.go_on())
        ran = workload_of(workload)
        try:
            await _work(ran, world, weather)
        finally:
            clock.cancel()
    return Run(ran.check(events), events, fake)


async def _work(ran: Workload, world: World, weather: _Weather) -> None:
    await ran.set_up(world)
    weather.over = False
    until = time.monotonic() + world.plan.seconds
    await asyncio.gather(*(ran.run_process(Worker(world, one, until)) for one in range(world.plan.processes)))
    weather.over = True
    await ran.finish(world)


class _Weather:
    """Cluster time goes on; sessions end without notice; spells in which writes are refused, or have no answer."""

    def __init__(self, fake: FakeGateway, dice: random.Random, trouble: Trouble) -> None:
        self._fake, self._dice, self._trouble = fake, dice, trouble
        self.over = True

    async def go_on(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            self._fake.advance(2 * TURN_S)
            sessions = [session.client_id for session in self._fake.machine.sessions]
            if sessions and not self.over and self._dice.random() < self._trouble.expiry:
                self._fake.expire(self._dice.choice(sessions))

    def of(self, node: FakeNode) -> Callable[[web.Request], Any]:
        async def before(request: web.Request) -> web.StreamResponse | None:
            calm = time.monotonic() % (SPELL_S + CALM_S) > SPELL_S
            if self.over or calm or request.method != "POST" or request.path.endswith(("/sessions", "/rows")):
                return None
            dice, trouble = self._dice.random(), self._trouble
            if dice < trouble.refused:
                return node.problem(OncegateError(Code.OVERLOADED, "in a bad spell", retry_after_ms=10))
            dice -= trouble.refused
            if dice < trouble.timed_out:
                # Half of what is timed out has been done.
                if self._dice.random() < 0.5:
                    await node.serve(request)
                return node.problem(OncegateError(Code.TIMEOUT, "in a bad spell"))
            if dice - trouble.timed_out < trouble.lost:
                await node.serve(request)
                if request.transport is not None:
                    request.transport.abort()
            return None

        return before
