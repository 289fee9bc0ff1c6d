"""A worker killed with kill -9 at random points, with its outbox, against a real cluster of three."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from oncegate import Client
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.proof.mutants.bugs import BUGS
from tests.faults.harness.outbox_worker import TABLE, Life, key_of

KILLS = int(os.environ.get("ONCEGATE_OUTBOX_KILLS", "20"))
PER_LIFE = 50

pytestmark = pytest.mark.faults


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Three durable nodes in this process; their worker is another one."""
    ports = free_ports(6)
    members = [f"n{n + 1}=127.0.0.1:{ports[2 * n]}:{ports[2 * n + 1]}" for n in range(3)]
    async with AsyncExitStack() as stack:
        nodes = [Settings(node=f"n{n + 1}", members=members, data_dir=tmp_path / f"n{n + 1}") for n in range(3)]
        yield await asyncio.gather(*(stack.enter_async_context(running(settings)) for settings in nodes))


async def count_through(cluster: list[Node], outbox: Path, seed: int, kills: int) -> Counter[str]:
    """Run the worker through ``kills`` kills and to its end; return how often each row was raised."""
    dice = random.Random(seed)
    endpoints = [node.settings.address.http for node in cluster]
    total = 0

    async def has_committed(number: int) -> None:
        async with asyncio.timeout(60.0):
            while max(node.machine.commit for node in cluster) < number:
                await asyncio.sleep(0.001)

    async with Client(endpoints) as client:
        await client.declare_table(TABLE)
        for _ in range(kills):
            total += PER_LIFE
            before = max(node.machine.commit for node in cluster)
            life = Life(endpoints, str(outbox), total, hold=True)
            if dice.random() < 0.9:
                assert await asyncio.to_thread(life.started.wait, 60.0), "the worker did not start"
                # The random point: by what it has done, whatever time the machine needs for it.
                await has_committed(before + dice.randint(0, PER_LIFE))
            assert await asyncio.to_thread(life.kill) == -signal.SIGKILL
        last = Life(endpoints, str(outbox), total, hold=False)
        assert await asyncio.to_thread(last.wait) == 0
        raised: Counter[str] = Counter()
        after: str | None = None
        while True:
            page = await client.scan(TABLE, after=after, limit=1000)
            raised.update({row.key: row.value for row in page.rows})
            if page.next is None:
                break
            after = page.next
    assert set(raised) == {key_of(number) for number in range(total)}, "an increment was lost"
    return raised


async def test_worker_killed_at_random_points_applies_each_increment_once(
    cluster: list[Node], tmp_path: Path, seed: int
) -> None:
    raised = await count_through(cluster, tmp_path / "worker.outbox", seed, KILLS)
    assert len(raised) == KILLS * PER_LIFE
    assert {key: times for key, times in raised.items() if times != 1} == {}


async def test_without_duplicate_detection_the_same_run_counts_some_twice(
    cluster: list[Node], tmp_path: Path, seed: int
) -> None:
    with BUGS["apply-without-dedup"].planted():
        raised = await count_through(cluster, tmp_path / "worker.outbox", seed, KILLS)
    assert sum(raised.values()) > KILLS * PER_LIFE
