"""Real processes, kill -9: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.cli.local_cluster import LocalCluster
from gateway.client import Client, OncegateError, Session
from tests.batches import read_flow

pytestmark = pytest.mark.faults

WORKERS = 24


class Ledger:
    """What the SDK acknowledged: key to commit number, and how often each counter was raised."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.counted: dict[str, int] = {}
        self.streamed: dict[str, int] = {}
        self.unknown = 0


async def _writer(session: Session, ledger: Ledger, worker: int, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        number += 1
        key = f"w{worker}-{number}"
        counter = f"c{worker}"
        try:
            ledger.rows[key] = (await session.put("rows", key, {"n": number})).commit
            result = await session.increment("rows", counter)
            ledger.counted[counter] = ledger.counted.get(counter, 0) + 1
            assert result.value == ledger.counted[counter], "an increment was applied twice or lost"
            many = await session.put_many("events", [(f"{key}-{i}", {"i": i}) for i in range(20)])
            ledger.streamed.update({f"{key}-{i}": many.commit + i for i in range(20)})
        except OncegateError:
            ledger.unknown += 1
            return


async def _until(condition: Any, timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_all_nodes_killed_at_once_lose_no_acknowledged_write_and_repeat_none(cluster: LocalCluster) -> None:
    ledger = Ledger()
    stop = asyncio.Event()
    async with Client(cluster.endpoints, timeout_s=60) as client:
        await client.declare_table("rows", kind="resident")
        await client.declare_table("events", kind="stream")
        async with client.session() as session:
            writers = [asyncio.create_task(_writer(session, ledger, w, stop)) for w in range(WORKERS)]
            for round_number in (1, 2):
                goal = len(ledger.rows) + 400
                await _until(lambda goal=goal: len(ledger.rows) >= goal)
                await asyncio.to_thread(cluster.kill)
                cluster.start()
                await asyncio.to_thread(cluster.wait_ready)
                assert ledger.unknown == 0, f"a write of round {round_number} was given up"
            goal = len(ledger.rows) + 400
            await _until(lambda: len(ledger.rows) >= goal)
            stop.set()
            await asyncio.gather(*writers)
        assert ledger.unknown == 0
        for key, commit in ledger.rows.items():
            row = await client.get("rows", key, consistency="stale")
            assert row is not None
            assert row.version == commit, f"{key} was written again after its acknowledgement"
        for counter, times in ledger.counted.items():
            row = await client.get("rows", counter, consistency="linearizable")
            assert row is not None
            assert row.value == times, f"{counter} counts other than was acknowledged"
    for endpoint in cluster.endpoints:
        items = await asyncio.to_thread(read_flow, endpoint, "events")
        assert len({commit for _, commit in items}) == len(items)
        assert dict(items) == ledger.streamed
        assert len(items) == len(ledger.streamed), "an item is in the flow twice"


async def test_leader_killed_under_load_costs_no_write_and_no_duplicate(cluster: LocalCluster) -> None:
    ledger = Ledger()
    stop = asyncio.Event()
    async with Client(cluster.endpoints, timeout_s=60) as client:
        await client.declare_table("rows", kind="resident")
        await client.declare_table("events", kind="stream")
        async with client.session() as session:
            writers = [asyncio.create_task(_writer(session, ledger, w, stop)) for w in range(WORKERS)]
            for _ in range(3):
                goal = len(ledger.rows) + 200
                await _until(lambda goal=goal: len(ledger.rows) >= goal)
                leader = await asyncio.to_thread(cluster.leader)
                await asyncio.to_thread(cluster.kill, leader)
                goal = len(ledger.rows) + 200
                await _until(lambda goal=goal: len(ledger.rows) >= goal)
                cluster.start(leader)
                await asyncio.to_thread(cluster.wait_ready, leader)
            stop.set()
            await asyncio.gather(*writers)
        assert ledger.unknown == 0
        for counter, times in ledger.counted.items():
            row = await client.get("rows", counter)
            assert row is not None
            assert row.value == times
    for endpoint in cluster.endpoints:
        items = await asyncio.to_thread(read_flow, endpoint, "events")
        assert dict(items) == ledger.streamed
        assert len(items) == len(ledger.streamed)
