"""kill -9 under load at random moments: nothing acknowledged is lost, nothing is there twice, all nodes end equal."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.faults.harness.scene import running

pytestmark = pytest.mark.faults

OUTSTANDING = 64


@pytest.mark.parametrize("victims", ["leader", "follower", "majority", "all"])
async def test_what_was_acknowledged_survives_kills_of(tmp_path: Path, victims: str, soak: int, seed: int) -> None:
    rng = random.Random(seed)
    async with running(tmp_path, linked=False) as scene:
        async with scene.client.loaded(OUTSTANDING):
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
        await scene.finish()
