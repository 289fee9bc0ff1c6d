"""Real processes, kill -9: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio

import pytest

from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from tests.faults.harness.sdk_load import Ledger, check_counters, check_flows, check_rows, progress, writing

pytestmark = pytest.mark.faults


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
