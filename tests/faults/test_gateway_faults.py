"""Whole nodes under faults: each write of the SDK is applied once, on every node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import until, wait_for
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import DAY_S, Equipment, missing
from tests.conftest import Api
from tests.faults.harness.sdk_load import Ledger, check_counters, check_flows, check_rows, progress, writing

pytestmark = pytest.mark.faults

STARVED_S = 5.0
"""More than three election time-outs."""
FROZEN_S = 3.0
"""More than two election time-outs; ten seconds of it are in :mod:`tests.faults.test_stops`."""


async def linearizable_reads(gateways: CheckCluster, node: str, times: int, key: str) -> list[Any]:
    """Ask one node for a row as it is now, many times at once; returns status and code."""
    async with aiohttp.ClientSession(base_url=gateways.endpoint(node)) as http:
        answers = await asyncio.gather(
            *(Api(http).call("GET", f"/v1/tables/rows/rows/{key}?consistency=linearizable") for _ in range(times))
        )
    return [(status, payload) for status, _, payload in answers]


async def _leader_cut_off(gateways: CheckCluster, ledger: Ledger, *, cut: str) -> None:
    leader = await asyncio.to_thread(gateways.leader)
    getattr(gateways.links, cut)(leader)
    answers = await linearizable_reads(gateways, leader, 20, next(iter(ledger.rows)))
    assert {status for status, _ in answers} <= {503, 504}, f"a leader without a quorum answered: {answers}"
    await progress(ledger, 200)
    gateways.links.heal()


async def _leader_frozen(gateways: CheckCluster, ledger: Ledger) -> None:
    leader = await asyncio.to_thread(gateways.leader)
    gateways.freeze(leader)
    frozen_at = time.monotonic()
    await progress(ledger, 200)
    await asyncio.sleep(max(0.0, frozen_at + FROZEN_S - time.monotonic()))
    gateways.thaw(leader)


async def _links_break(gateways: CheckCluster, ledger: Ledger) -> None:
    gateways.links.slow(delay_s=0.005, jitter_s=0.02)
    gateways.links.storm(every_s=0.3)
    await progress(ledger, 400)
    gateways.links.heal()


async def _leader_killed(gateways: CheckCluster, ledger: Ledger) -> None:
    for _ in range(3):
        leader = await asyncio.to_thread(gateways.leader)
        await asyncio.to_thread(gateways.kill, leader)
        await progress(ledger, 200)
        gateways.start(leader)
        await asyncio.to_thread(gateways.wait_ready, leader)


async def _all_killed(gateways: CheckCluster, ledger: Ledger, *, power: bool) -> None:
    """All nodes at once, twice; without power all that they have not flushed is lost, or half of it, in any file."""
    if power and not gateways.flushes:
        pytest.skip(missing()[Equipment.FLUSHES])
    dice = random.Random(os.environ.get("ONCEGATE_SEED", "7"))
    for kept in (0.0, 0.5):
        await progress(ledger, 200)
        await asyncio.to_thread(gateways.kill)
        for control in gateways.flushes.values() if power else ():
            await asyncio.to_thread(control.lose, dice, kept=kept)
        gateways.start()
        await asyncio.to_thread(gateways.wait_ready)


FAULTS: dict[str, Callable[[CheckCluster, Ledger], Awaitable[None]]] = {
    "leader is cut off both ways": partial(_leader_cut_off, cut="isolate"),
    "leader hears nothing": partial(_leader_cut_off, cut="deafen"),
    "leader is frozen for several time-outs": _leader_frozen,
    "links are slow and break": _links_break,
    "leader is killed": _leader_killed,
    "all nodes are killed at once": partial(_all_killed, power=False),
    "all nodes lose power at once": partial(_all_killed, power=True),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_costs_no_acknowledged_write_and_no_duplicate_and_reads_nothing_stale(
    gateways: CheckCluster, fault: str
) -> None:
    ledger = Ledger()
    async with Client(gateways.endpoints, timeout_s=60) as client:
        async with writing(client, ledger):
            await progress(ledger, 200)
            await FAULTS[fault](gateways, ledger)
            await progress(ledger, 200)
        await check_rows(client, ledger)
        await check_counters(client, ledger)
    await check_flows(gateways.endpoints, ledger)


async def _count_up(gateways: CheckCluster, keys: Iterator[str], counted: dict[str, str], dice: random.Random) -> None:
    """Raise one row once for each key, over plain HTTP at any node, again and again until it is told the result."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as http:
        for key in keys:
            while key not in counted:
                url = f"{dice.choice(gateways.endpoints)}/v1/tables/rows/rows/keyed/increment"
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with http.post(url, headers={"Idempotency-Key": f'"{key}"'}) as answer:
                        if answer.status == 200:
                            counted[key] = answer.headers["Oncegate-Commit"]
                        else:
                            problem = await answer.json(content_type=None)
                            assert problem["retryable"] is True, problem


async def test_leader_killed_under_idempotency_keys_costs_no_change_and_no_duplicate(gateways: CheckCluster) -> None:
    dice = random.Random(5)
    async with Client(gateways.endpoints, timeout_s=60) as client:
        await client.declare_table("rows")
        counted: dict[str, str] = {}
        for kill in range(3):
            keys = iter([f"{kill}-{number}" for number in range(300)])
            workers = [asyncio.create_task(_count_up(gateways, keys, counted, dice)) for _ in range(8)]
            await until(lambda goal=300 * kill + 100: len(counted) >= goal, 60, "a third of the keys counted")
            leader = await asyncio.to_thread(gateways.leader)
            gateways.kill(leader)
            await asyncio.gather(*workers)
            gateways.start(leader)
            await asyncio.to_thread(gateways.wait_ready)
        assert len(counted) == 900
        for told in (counted, dict[str, str]()):  # sent again, the keys change nothing
            await _count_up(gateways, iter(list(counted)), told, dice)
            row = await client.get("rows", "keyed")
            assert row is not None
            assert (row.value, told.keys()) == (900, counted.keys())


async def test_cluster_frozen_for_longer_than_a_lease_expires_nobody(
    gateways: CheckCluster, nodes: dict[str, Api]
) -> None:
    """Case 19, as a paused host does it: all nodes sleep, and nobody could have renewed."""
    api = nodes[await asyncio.to_thread(gateways.leader)]
    assert (await api.call("PUT", "/v1/tables/rows", {"kind": "resident"}))[0] == 200
    session = await api.session(lease_ms=1_000)
    gateways.freeze(*gateways.ids)
    await asyncio.sleep(1.5)
    gateways.thaw(*gateways.ids)
    place = {"Oncegate-Request": f"{session}/1", "Oncegate-First-Incomplete": "1"}
    async with asyncio.timeout(60):
        while True:
            status, _, told = await api.call("PUT", "/v1/tables/rows/rows/a", 1, headers=place)
            if status == 200 or not told["retryable"]:
                break
    assert status == 200, told


async def test_reads_are_answered_though_a_round_trip_is_longer_than_a_heartbeat(gateways: CheckCluster) -> None:
    async with Client(gateways.endpoints, timeout_s=60) as client:
        await client.declare_table("rows")
        async with client.session() as session:
            await session.put("rows", "far", 1)
        gateways.links.slow(delay_s=0.09)  # 180 ms there and back; heartbeats come every 100 ms
        answers = await linearizable_reads(gateways, await asyncio.to_thread(gateways.leader), 20, "far")
        assert [(status, row["value"]) for status, row in answers] == [(200, 1)] * 20


async def _state(gateways: CheckCluster, node_id: str) -> dict[str, Any]:
    """What a node says of itself; one that reads its clock from a file is slow while others want the processor."""
    state: dict[str, Any] = await until(
        lambda: asyncio.to_thread(gateways.state, node_id), 60, f"{node_id} says how it is"
    )
    return state


async def test_wall_clock_stepped_by_a_day_changes_neither_leases_nor_cluster_time(tmp_path: Path) -> None:
    if (reason := missing().get(Equipment.CLOCK)) is not None:
        pytest.skip(reason)
    with CheckCluster(tmp_path / "gateways", equipment=(Equipment.CLOCK,)) as gateways:
        clocks = gateways.clocks
        gateways.start()
        await asyncio.to_thread(gateways.wait_ready)
        ledger = Ledger()
        async with Client(gateways.endpoints, timeout_s=60) as client:
            async with writing(client, ledger):
                await progress(ledger, 200)
                leader = await asyncio.to_thread(gateways.leader)
                before = await _state(gateways, leader)
                began = time.monotonic()
                others = [name for name in gateways.ids if name != leader]
                # The leader a day ahead, a follower a day behind; then the other way round.
                for sign in (1, -1):
                    clocks[leader].step(sign * DAY_S)
                    clocks[others[0]].step(-sign * DAY_S)
                    await progress(ledger, 200)
                after = await _state(gateways, leader)
                took_ms = 1000 * (time.monotonic() - began)
                passed_ms = after["cluster_time_ms"] - before["cluster_time_ms"]
                assert 0 <= passed_ms <= took_ms + 1000, "cluster time followed the wall clock"
            await check_counters(client, ledger)  # On the session of before: no lease has ended.
        await check_flows(gateways.endpoints, ledger)


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Processes that take all the processor time they get, and end by themselves should nobody end them."""
    loop = ["sh", "-c", "ulimit -t 60; while :; do :; done"]
    # In sessions of their own: the kernel shares the processors out between sessions first.
    started = [subprocess.Popen(loop, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def test_ten_busy_processes_beside_three_nodes_cost_no_leader_and_no_write(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:  # without proxies: they would be starved, too
        cluster.start()
        cluster.wait_ready()
        async with Client(cluster.endpoints) as client:
            await client.declare_table("rows")
            async with client.session() as session:
                # Others of this machine may starve a leader, too: an election in each of three rounds is ours.
                for _ in range(3):
                    before = await asyncio.to_thread(led, cluster)
                    with _busy_processes(10):
                        end = time.monotonic() + STARVED_S
                        while time.monotonic() < end:
                            assert (await session.put("rows", "k", "v" * 200)).applied
                    if kept := await asyncio.to_thread(led, cluster) == before:
                        break
    assert kept, "starved nodes changed their leader in every round"


def led(cluster: LocalCluster) -> tuple[str, int]:
    """Return who leads, and in which term, once all nodes say the same."""

    def agreed() -> tuple[str, int] | None:
        told = {(state["leader"], state["term"]) for state in map(cluster.state, cluster.ids) if state}
        return told.pop() if len(told) == 1 and None not in next(iter(told)) else None

    return wait_for(agreed, 60, "the nodes name one leader")
