"""The wall clock of running replicas jumps by a day, forth and back: nothing depends on it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from oncegate.proof.check.equipment import DAY_S, WallClock
from oncegate.proof.check.errors import Unavailable
from tests.faults.harness.scene import ELECTION_S_MAX, running, until

pytestmark = pytest.mark.faults


def make_clocks(directory: Path) -> dict[str, WallClock]:
    """A clock for each node, or a skip."""
    try:
        return {name: WallClock(directory, name) for name in ("n1", "n2", "n3")}
    except Unavailable as reason:
        pytest.skip(str(reason))


async def test_wall_clock_stepped_by_a_day_costs_neither_the_leader_nor_a_command(tmp_path: Path) -> None:
    clocks = make_clocks(tmp_path)
    prefix = {name: clock.prefix for name, clock in clocks.items()}
    async with running(tmp_path / "cluster", linked=False, prefix=prefix) as scene:
        leader = await scene.leader()
        term = (await scene.client.status(leader))["term"]
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
        # Idle, only timers speak: heartbeats that waited for the wall clock to come back would cost an election.
        await asyncio.sleep(2.5 * ELECTION_S_MAX)
        status = await scene.client.status(leader)
        assert (status["term"], status["ready"]) == (term, True), "a clock cost an election"
        await scene.finish()


async def test_followers_whose_clocks_went_back_a_day_still_replace_a_silent_leader(tmp_path: Path) -> None:
    clocks = make_clocks(tmp_path)
    prefix = {name: clock.prefix for name, clock in clocks.items()}
    async with running(tmp_path / "cluster", linked=False, prefix=prefix) as scene:
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
