"""Real processes, kill -9 and power loss: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.proof.check.errors import Unavailable
from oncegate.proof.check.flush_control import FlushControl
from tests.faults.harness.sdk_load import Ledger, check_counters, check_flows, check_rows, progress, writing

pytestmark = pytest.mark.faults


class PoweredCluster(LocalCluster):
    """A cluster whose nodes lose all that they have not flushed, in whatever file, when the power goes."""

    def __init__(self, directory: Path, seed: int) -> None:
        super().__init__(directory)
        self._rng = random.Random(seed)
        self._flushes = {node: FlushControl(directory / f"{node}.flushes", directory / node) for node in self.ids}

    def command(self, node_id: str) -> list[str]:
        return [*self._flushes[node_id].prefix(), *super().command(node_id)]

    def lose_power(self, kept: float) -> None:
        self.kill()
        for control in self._flushes.values():
            control.lose(self._rng, kept=kept)


@pytest.fixture
def powered(tmp_path: Path, seed: int) -> Iterator[PoweredCluster]:
    """Three real node processes, ready."""
    try:
        started = PoweredCluster(tmp_path.resolve() / "cluster", seed)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with started:
        started.start()
        started.wait_ready()
        yield started


async def test_all_nodes_that_lose_power_at_once_lose_no_acknowledged_write_and_repeat_none(
    powered: PoweredCluster,
) -> None:
    ledger = Ledger()
    async with Client(powered.endpoints, timeout_s=60) as client:
        async with writing(client, ledger):
            for kept in (0.0, 0.5):
                await progress(ledger, 400)
                await asyncio.to_thread(powered.lose_power, kept)
                powered.start()
                await asyncio.to_thread(powered.wait_ready)
                assert ledger.unknown == 0, f"a write was given up, {kept:g} of the unflushed sectors kept"
            await progress(ledger, 400)
        await check_rows(client, ledger)
        await check_counters(client, ledger)
    await check_flows(powered.endpoints, ledger)


async def test_all_nodes_killed_at_once_lose_no_acknowledged_write_and_repeat_none(cluster: LocalCluster) -> None:
    ledger = Ledger()
    async with Client(cluster.endpoints, timeout_s=60) as client:
        async with writing(client, ledger):
            for round_number in (1, 2):
                await progress(ledger, 400)
                await asyncio.to_thread(cluster.kill)
                cluster.start()
                await asyncio.to_thread(cluster.wait_ready)
                assert ledger.unknown == 0, f"a write of round {round_number} was given up"
            await progress(ledger, 400)
        await check_rows(client, ledger)
        await check_counters(client, ledger)
    await check_flows(cluster.endpoints, ledger)


async def test_leader_killed_under_load_costs_no_write_and_no_duplicate(cluster: LocalCluster) -> None:
    ledger = Ledger()
    async with Client(cluster.endpoints, timeout_s=60) as client:
        async with writing(client, ledger):
            for _ in range(3):
                await progress(ledger, 200)
                leader = await asyncio.to_thread(cluster.leader)
                await asyncio.to_thread(cluster.kill, leader)
                await progress(ledger, 200)
                cluster.start(leader)
                await asyncio.to_thread(cluster.wait_ready, leader)
        await check_counters(client, ledger)
    await check_flows(cluster.endpoints, ledger)
