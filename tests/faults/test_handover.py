"""Leaders that go in order: a stop with SIGTERM and a transfer lose nothing and repeat nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness.scene import running, until

pytestmark = pytest.mark.faults


async def test_rolling_restart_under_load_loses_and_repeats_nothing(tmp_path: Path, soak: int) -> None:
    async with running(tmp_path, linked=False) as scene:
        async with scene.client.loaded(64):
            for _ in range(soak):
                for name in scene.cluster.ids:
                    await scene.progress(500)
                    assert scene.cluster.stop(name, timeout_s=30), f"{name} did not end in order"
                    await scene.progress(500)
                    scene.cluster.start(name)
                    commit = (await scene.client.status(await scene.leader()))["commit_index"]

                    async def back(name: str = name, commit: int = commit) -> bool:
                        status = (await scene.statuses(name)).get(name)
                        return status is not None and status["applied_index"] >= commit

                    await until(back, what=f"{name} is back")
            assert all("Traceback" not in scene.cluster.log(name) for name in scene.cluster.ids)
        await scene.finish()


async def test_leadership_that_is_transferred_under_load_loses_and_repeats_nothing(tmp_path: Path, soak: int) -> None:
    async with running(tmp_path, linked=False) as scene:
        async with scene.client.loaded(64):
            for number in range(6 * soak):
                await scene.progress(500)
                leader = await scene.leader()
                target = scene.others(leader)[number % 2]
                answer = await scene.client.ask(leader, "transfer", target)
                assert answer == "done"
                assert await scene.leader() == target
            await scene.progress(500)
        await scene.finish()
