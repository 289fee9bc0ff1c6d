"""The wall clock of running replicas jumps by a day, forth and back: nothing depends on it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.harness.scene import running, until
from tests.faults.harness.wall_clock import DAY_S, Unavailable, WallClock

pytestmark = pytest.mark.faults


async def test_wall_clock_stepped_by_a_day_costs_neither_the_leader_nor_a_command(tmp_path: Path) -> None:
    try:
        clocks = {name: WallClock(tmp_path, name) for name in ("n1", "n2", "n3")}
    except Unavailable as reason:
        pytest.skip(str(reason))
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
        status = await scene.client.status(leader)
        assert (status["term"], status["ready"]) == (term, True), "a clock cost an election"
        await scene.finish()
