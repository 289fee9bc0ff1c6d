"""A cluster for a whole module, with writers on it, and one fault at a time: begin, look, end, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from oncegate import Client, OncegateError, Session
from oncegate.gateway.local.waiting import until
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment, missing
from oncegate.proof.check.nemesis import FAULTS, Action, Injection
from oncegate.proof.check.nemesis.nemesis import make_whole
from oncegate.proof.check.tenants import token

WORKERS = 4
PACE_S = 0.01
DEADLINE_S = 60.0


class Load:
    """Writers that raise a counter each, and what they were told: each raise counts once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.counted = [0] * WORKERS

    @property
    def acknowledged(self) -> int:
        """Raises that were acknowledged, of all writers."""
        return sum(self.counted)

    async def write(self, worker: int, stop: asyncio.Event) -> None:
        """Raise one counter until told to stop."""
        while not stop.is_set():
            result = await self._session.increment("counters", f"c{worker}")
            self.counted[worker] += 1
            assert result.value == self.counted[worker], "an acknowledged raise was lost or applied twice"
            await asyncio.sleep(PACE_S)  # no wait: writers at full speed would take the processors from the nodes


class Scene:
    """A cluster, its load, and one fault at a time."""

    def __init__(self, cluster: CheckCluster, client: Client, load: Load) -> None:
        self.cluster, self.client, self.load = cluster, client, load
        self.said = ""
        """What the fault said last."""

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for a condition that is looked at in a thread."""
        await until(lambda: asyncio.to_thread(condition), DEADLINE_S, what, state=self.cluster.log_tails)

    async def progress(self, raises: int = 20) -> None:
        """Wait until so many more are acknowledged."""
        goal = self.load.acknowledged + raises
        await self.until(lambda: self.load.acknowledged >= goal, f"{raises} writes")

    @contextlib.asynccontextmanager
    async def under(self, name: str, *targets: str, **arguments: Any) -> AsyncIterator[Injection]:
        """Under this fault; afterwards the cluster is whole, and goes on with everything that was acknowledged."""
        await self.progress()
        fault = Injection(FAULTS[name], Action(name, 0.0, 1.0, targets, arguments))
        await asyncio.to_thread(fault.settle, self.cluster)
        self.said = await asyncio.to_thread(fault.inject, self.cluster)
        try:
            yield fault
        finally:
            self.said = await asyncio.to_thread(fault.heal, self.cluster) or self.said
        await asyncio.to_thread(make_whole, self.cluster, DEADLINE_S)
        await self.progress()
        for worker, counted in enumerate(list(self.load.counted)):
            row = await self.client.get("counters", f"c{worker}", consistency="linearizable")
            assert row is not None
            assert row.value >= counted, "an acknowledged write is gone"


@contextlib.asynccontextmanager
async def scene_with(directory: Path, *equipment: Equipment) -> AsyncIterator[Scene]:
    """Three ready nodes under load; skips what this machine does not allow."""
    lacks = missing()
    for one in equipment:
        if one in lacks:
            pytest.skip(lacks[one])
    with CheckCluster(directory, equipment=equipment) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.endpoints, timeout_s=DEADLINE_S, token=token()) as client:
            await client.declare_table("counters", kind="resident")
            await client.declare_table("paddings", kind="resident")
            async with client.session() as session:
                load, stop = Load(session), asyncio.Event()
                writers = [asyncio.create_task(load.write(worker, stop)) for worker in range(WORKERS)]
                try:
                    yield Scene(cluster, client, load)
                finally:
                    stop.set()
                    ended = await asyncio.gather(*writers, return_exceptions=True)
        for one in ended:
            assert not isinstance(one, OncegateError | AssertionError), one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """With small disks and flushes in our hands."""
    directory = tmp_path_factory.mktemp("nemesis")
    async with scene_with(directory, Equipment.DISK, Equipment.FLUSHES) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clocked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """With clocks in our hands, which cost a little with every look at the time."""
    async with scene_with(tmp_path_factory.mktemp("clocks"), Equipment.CLOCK) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """With mutual TLS between the nodes, and with tokens."""
    async with scene_with(tmp_path_factory.mktemp("guarded"), Equipment.PEER_TLS, Equipment.TENANTS) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upgraded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    """With the build before beside this one."""
    async with scene_with(tmp_path_factory.mktemp("upgraded"), Equipment.EARLIER_BUILD) as started:
        yield started
