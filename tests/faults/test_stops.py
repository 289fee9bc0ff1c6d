"""Nodes that end or stand still under load (kill -9, SIGTERM, a transfer, SIGSTOP) lose and repeat nothing."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.faults.harness.raw_client import NoAnswer
from tests.faults.harness.raw_wire import Refused
from tests.faults.harness.scene import Scene, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

FROZEN_S = 10.0


@pytest.mark.parametrize("victims", ["leader", "follower", "majority", "all"])
async def test_what_was_acknowledged_survives_kills_of(scene: Scene, victims: str, soak: int, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4 * soak):
        await scene.progress(rng.randint(64, 3000))
        leader = await scene.leader()
        names = {
            "leader": [leader],
            "follower": [rng.choice(scene.others(leader))],
            "majority": rng.sample(scene.cluster.ids, 2),
            "all": scene.cluster.ids,
        }[victims]
        await asyncio.sleep(rng.uniform(0, 0.02))  # Not a wait: it makes the moment of the kill random.
        scene.cluster.kill(*names)
        if len(names) == 1:
            await scene.progress(64)  # The two that are left go on.
        scene.cluster.start()
    await scene.progress(64)


async def test_rolling_restart_under_load_loses_and_repeats_nothing(scene: Scene, soak: int) -> None:
    for _ in range(soak):
        for name in scene.cluster.ids:
            await scene.progress(500)
            assert scene.cluster.stop(name, timeout_s=30), f"{name} did not end in order"
            await scene.progress(500)
            scene.cluster.start(name)
            await scene.caught_up(name, await scene.leader())
    assert all("Traceback" not in scene.cluster.log(name) for name in scene.cluster.ids)


async def test_leadership_that_is_transferred_under_load_loses_and_repeats_nothing(scene: Scene, soak: int) -> None:
    for number in range(6 * soak):
        await scene.progress(500)
        leader = await scene.leader()
        target = scene.others(leader)[number % 2]
        assert await scene.client.ask(leader, "transfer", target) == "done"
        assert await scene.leader() == target
    await scene.progress(500)


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
    scene: Scene,
) -> None:
    """A follower that sleeps and wakes is in :mod:`tests.faults.test_partitions`."""
    stop, reads = asyncio.Event(), len(scene.client.history.reads)
    readers = [asyncio.create_task(reads_until(scene, name, stop)) for name in scene.cluster.ids]
    await scene.progress(2000)
    old = await scene.leader()
    term, _ = await scene.term_and_leader(old)
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
    before = await scene.term_and_leader(new)
    await scene.progress(2000)
    assert await scene.term_and_leader(new) == before, "waking up cost an election"
    stop.set()
    await asyncio.gather(*readers)
    assert {read.node for read in scene.client.history.reads[reads:]} == set(scene.cluster.ids)
