"""SIGSTOP for 10 s under load: a node that sleeps and wakes breaks no promise, leader or follower."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.faults.harness.raw_client import NoAnswer
from tests.faults.harness.raw_wire import Refused
from tests.faults.harness.scene import Scene, running, until

pytestmark = pytest.mark.faults

FROZEN_S = 10.0


async def reads_until(scene: Scene, node: str, stop: asyncio.Event) -> None:
    """Read at one node again and again; what it answers is in the history, and is checked with it."""
    while not stop.is_set():
        try:
            answer = await scene.client.read(node, timeout_s=FROZEN_S + 5)
        except NoAnswer:
            await asyncio.sleep(0.05)
            continue
        if isinstance(answer, Refused):
            await asyncio.sleep(0.01)


async def test_leader_frozen_for_ten_seconds_is_replaced_steps_down_when_it_wakes_and_reads_nothing_stale(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as scene:
        stop = asyncio.Event()
        async with scene.client.loaded(64):
            readers = [asyncio.create_task(reads_until(scene, name, stop)) for name in scene.cluster.ids]
            await scene.progress(2000)
            old = await scene.leader()
            term = (await scene.client.status(old))["term"]
            frozen_at = time.monotonic()
            scene.cluster.freeze(old)
            new = await scene.leader(*scene.others(old))
            await scene.progress(2000)
            # It sleeps with reads of ours in its sockets, and with a lease's worth of belief that it leads.
            await asyncio.sleep(max(0.0, frozen_at + FROZEN_S - time.monotonic()))
            scene.cluster.thaw(old)

            async def stepped_down() -> bool:
                status = await scene.client.status(old)
                return bool(status["role"] == "follower" and status["leader_id"] == new and status["term"] > term)

            await until(stepped_down, what="the old leader follows the new one")
            before = (await scene.client.status(new))["term"]
            await scene.progress(2000)
            assert (await scene.client.status(new))["term"] == before, "waking up cost an election"
            stop.set()
            await asyncio.gather(*readers)
        assert {read.node for read in scene.client.history.reads} == set(scene.cluster.ids)
        await scene.finish()


async def test_follower_frozen_for_ten_seconds_stops_nobody_and_deposes_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            leader = await scene.leader()
            term = (await scene.client.status(leader))["term"]
            follower = scene.others(leader)[0]
            scene.cluster.freeze(follower)
            frozen_at = time.monotonic()
            await scene.progress(5000)
            await asyncio.sleep(max(0.0, frozen_at + FROZEN_S - time.monotonic()))
            scene.cluster.thaw(follower)
            commit = (await scene.client.status(leader))["commit_index"]

            async def caught_up() -> bool:
                return bool((await scene.client.status(follower))["applied_index"] >= commit)

            await until(caught_up, what="the follower has caught up")
            status = await scene.client.status(leader)
            assert (status["role"], status["term"]) == ("leader", term)
        await scene.finish()
