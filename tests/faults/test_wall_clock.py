"""The wall clock of running replicas jumps by a day, forth and back: nothing depends on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from oncegate.proof.check.equipment import DAY_S, WallClock
from oncegate.proof.check.errors import Unavailable
from tests.faults.harness.scene import ELECTION_S_MAX, Scene, running, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clocked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Scene, dict[str, WallClock]]]:
    """Three replicas, each with a clock of its own."""
    directory = tmp_path_factory.mktemp("clocks")
    try:
        clocks = {name: WallClock(directory, name) for name in ("n1", "n2", "n3")}
    except Unavailable as reason:
        pytest.skip(str(reason))
    prefix = {name: clock.prefix for name, clock in clocks.items()}
    async with running(directory / "cluster", linked=False, prefix=prefix) as scene:
        yield scene, clocks


async def test_wall_clock_stepped_by_a_day_costs_neither_the_leader_nor_a_command(
    clocked: tuple[Scene, dict[str, WallClock]],
) -> None:
    scene, clocks = clocked
    # Others of this machine may starve a leader, too: an election in each of three rounds is the clocks'.
    for _ in range(3):
        leader = await scene.leader()
        before = await scene.term_and_leader(leader)
        await step_all(scene, clocks, leader)
        # Idle, only timers speak: heartbeats that waited for the wall clock to come back would cost an election.
        await asyncio.sleep(2.5 * ELECTION_S_MAX)
        if kept := await scene.term_and_leader(leader) == before:
            break
    assert kept, "a clock cost an election"
    await scene.finish()


async def step_all(scene: Scene, clocks: dict[str, WallClock], leader: str) -> None:
    """Step each clock by days, there and back, while commands go through; the leader's ends two days ago."""
    follower, other = scene.others(leader)
    async with scene.client.loaded(64):
        for stepped, days in ((leader, 1), (follower, -1), (leader, -1), (follower, 1), (other, 1), (leader, 0)):
            await scene.progress(500)
            clocks[stepped].step(days * DAY_S)

            async def jumped(stepped: str = stepped, days: int = days) -> bool:
                off = await scene.client.ask(stepped, "wall_clock") - time.time()
                return bool(abs(off - days * DAY_S) < DAY_S / 10)

            await until(jumped, what=f"the clock of {stepped} stands {days} days off")
            await scene.progress(500)
            await scene.client.read(stepped)
    clocks[leader].step(-2 * DAY_S)


async def test_followers_whose_clocks_went_back_a_day_still_replace_a_silent_leader(
    clocked: tuple[Scene, dict[str, WallClock]],
) -> None:
    scene, clocks = clocked
    leader = await scene.leader()
    async with scene.client.loaded(64):
        await scene.progress(500)
        scene.cluster.freeze(leader)
        for name in scene.others(leader):
            # Their time-outs run already; by the wall clock they would end in a day.
            clocks[name].step(-DAY_S)
        await scene.leader(*scene.others(leader), deadline_s=20)
        await scene.progress(500)
        scene.cluster.thaw(leader)
    await scene.finish()
