"""Real processes: a leader of followers that store nothing answers in time, says why by name, and goes on by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.equipment import Equipment, missing
from tests.conftest import Api, each_node
from tests.gateway.http_contract import assert_problem, declare, operations, put

pytestmark = pytest.mark.faults

TAKEN_S = 60.0
VALUE = "x" * 100_000


@pytest.fixture
async def stalling(tmp_path: Path) -> AsyncIterator[tuple[CheckCluster, dict[str, Api], str]]:
    """Three nodes on small disks with a table, and who leads."""
    if Equipment.DISK in missing():
        pytest.skip(missing()[Equipment.DISK])
    with CheckCluster(tmp_path / "nodes", equipment={Equipment.DISK}) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        leader = await asyncio.to_thread(cluster.leader)
        async with each_node(cluster) as nodes:
            await declare(nodes[leader])
            yield cluster, nodes, leader
        sys.stdout.write(cluster.log_tails())


async def _written_until_refused(api: Api) -> tuple[dict[str, int], Any, Any]:
    """Write until nothing is taken any more: how often each answer came, the last refusal, a body in doubt."""
    client_id, sequence, answers = await api.session("stall"), 0, dict[str, int]()
    doubt = refusal = None
    async with asyncio.timeout(2 * TAKEN_S):
        while refusal is None:
            sequence += 1
            body = operations(client_id, put(sequence, "a", VALUE), first_incomplete=max(1, sequence - 16))
            answer = await api.call("POST", "/v1/operations", body)
            code = "" if answer[0] == 200 else answer[2]["code"]
            answers[code] = answers.get(code, 0) + 1
            if code == "TIMEOUT" and answer[2]["outcome"] == "unknown":
                doubt = body
            elif code == "NOT_READY":
                refusal = answer
    return answers, refusal, doubt


async def _ready(api: Api) -> tuple[int, Any, Any]:
    """Ask for readiness; the answer may take half a second, and what a busy machine adds."""
    began_s = time.monotonic()
    answer = await api.call("GET", "/readyz")
    assert time.monotonic() - began_s < 4, "it waited for the others"
    return answer


async def _recovered(api: Api) -> None:
    async with asyncio.timeout(TAKEN_S):
        while (await api.call("GET", "/readyz"))[0] != 200:
            await asyncio.sleep(0.1)


@pytest.mark.timeout(240)
async def test_leader_of_followers_without_room_names_them_and_recovers_without_a_restart(
    stalling: tuple[CheckCluster, dict[str, Api], str],
) -> None:
    cluster, nodes, leader = stalling
    followers = sorted(set(cluster.ids) - {leader})
    named = f"the disks of {', '.join(followers)} are full"
    for name in followers:
        cluster.disks[name].fill()
    answers, refusal, doubt = await _written_until_refused(nodes[leader])
    assert answers.keys() <= {"", "TIMEOUT", "NOT_READY"}, answers
    assert named in assert_problem(refusal, "NOT_READY")["detail"]
    assert named in assert_problem(await _ready(nodes[leader]), "NOT_READY")["detail"]
    words = [sys.executable, "-m", "oncegate", "status", "--endpoint", cluster.endpoint(leader)]
    shown = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
    assert named in shown.stderr, shown
    assert named in cluster.log(leader)
    for name in followers:
        cluster.disks[name].give_back()
    await _recovered(nodes[leader])
    if doubt is not None:
        status, _, again = await nodes[leader].call("POST", "/v1/operations", doubt)
        assert (status, again["results"][0]["status"]) == (200, "applied")
    for api in nodes.values():
        await api.session("after")


@pytest.mark.timeout(240)
async def test_what_stands_still_is_told_apart_from_what_has_no_room(
    stalling: tuple[CheckCluster, dict[str, Api], str],
) -> None:
    cluster, nodes, leader = stalling
    full, frozen = sorted(set(cluster.ids) - {leader})
    cluster.disks[full].fill()
    cluster.freeze(frozen)
    try:
        _, refusal, _ = await _written_until_refused(nodes[leader])
        detail = assert_problem(refusal, "NOT_READY")["detail"]
        assert f"the disk of {full} is full; {frozen} " in detail, detail
        assert (await _ready(nodes[leader]))[0] == 503
    finally:
        cluster.thaw(frozen)
    await _recovered(nodes[leader])


@pytest.mark.timeout(120)
async def test_readiness_beside_a_frozen_leader_is_told_at_once(
    stalling: tuple[CheckCluster, dict[str, Api], str],
) -> None:
    cluster, nodes, leader = stalling
    cluster.freeze(leader)
    try:
        for name in set(cluster.ids) - {leader}:
            status, _, _ = await _ready(nodes[name])
            assert status in (200, 503)
    finally:
        cluster.thaw(leader)
