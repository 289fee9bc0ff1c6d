"""Links cut both ways, one way and one by one: no promise is broken, and the cluster goes on where it can.

A way is cut in two manners: ``hold`` delivers late what was sent meanwhile (stale messages of a deposed leader among
it), ``lose`` drops it.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from oncegate.proof.check.links import How
from tests.faults.harness.raw_client import NoAnswer
from tests.faults.harness.raw_wire import Refused
from tests.faults.harness.scene import Scene, running, until

pytestmark = pytest.mark.faults

both_manners = pytest.mark.parametrize("how", ["hold", "lose"])


async def assert_reads_refused(scene: Scene, node: str, times: int) -> None:
    """A node without a quorum answers no linearizable read, before and after it knows."""

    async def one() -> None:
        # The connection ends only if the node does; it does not.
        answer = await scene.client.read(node)
        assert isinstance(answer, Refused), f"{node} answered a read with index {answer} while it was cut off"
        assert answer.outcome == "not_applied"

    await asyncio.gather(*(one() for _ in range(times)))


async def stepped_down(scene: Scene, node: str) -> None:
    async def look() -> bool:
        return bool((await scene.client.status(node))["role"] != "leader")

    await until(look, what=f"{node} no longer leads")


async def term_and_leader(scene: Scene, leader: str) -> tuple[int, str]:
    status = await scene.client.status(leader)
    return status["term"], status["leader_id"]


async def assert_rejoins_quietly(scene: Scene, node: str, leader: str, *, how: How) -> None:
    """Heal; ``node`` follows and catches up, and neither term nor leader changes."""
    before = await term_and_leader(scene, leader)
    scene.links.heal()
    commit = (await scene.client.status(leader))["commit_index"]

    async def follows() -> bool:
        status = await scene.client.status(node)
        return bool(status["leader_id"] == leader and status["applied_index"] >= commit)

    await until(follows, what=f"{node} follows {leader} again ({how})")
    await scene.progress(500)
    assert await term_and_leader(scene, leader) == before, "a node that came back cost an election"


@both_manners
async def test_leader_cut_off_both_ways_steps_down_reads_nothing_and_deposes_nobody_when_back(
    tmp_path: Path, how: How
) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            old = await scene.leader()
            scene.links.isolate(old, how=how)
            await assert_reads_refused(scene, old, 20)
            new = await scene.leader(*scene.others(old))
            await stepped_down(scene, old)
            await assert_reads_refused(scene, old, 5)
            await scene.progress(1000)
            await assert_rejoins_quietly(scene, old, new, how=how)
        await scene.finish()


@both_manners
async def test_leader_that_is_heard_and_hears_nothing_steps_down_and_the_others_go_on(tmp_path: Path, how: How) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            old = await scene.leader()
            # Its heartbeats keep the others from an election: only its own step-down lets the cluster go on.
            scene.links.deafen(old, how=how)
            await assert_reads_refused(scene, old, 20)
            await stepped_down(scene, old)
            new = await scene.leader(*scene.others(old))
            await scene.progress(1000)
            await assert_rejoins_quietly(scene, old, new, how=how)
        await scene.finish()


@both_manners
async def test_leader_that_hears_and_is_not_heard_is_replaced_and_reads_nothing(tmp_path: Path, how: How) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            old = await scene.leader()
            scene.links.mute(old, how=how)
            await assert_reads_refused(scene, old, 20)
            new = await scene.leader(*scene.others(old))
            await scene.progress(1000)
            await stepped_down(scene, old)
            await assert_rejoins_quietly(scene, old, new, how=how)
        await scene.finish()


@both_manners
async def test_follower_cut_off_for_several_time_outs_deposes_nobody_when_back(tmp_path: Path, how: How) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            leader = await scene.leader()
            term = (await scene.client.status(leader))["term"]
            follower = scene.others(leader)[0]
            scene.links.isolate(follower, how=how)
            await assert_reads_refused(scene, follower, 20)
            await asyncio.sleep(3)  # The fault itself: several election time-outs, in each of which it asks for votes.
            assert await term_and_leader(scene, leader) == (term, leader)
            await assert_rejoins_quietly(scene, follower, leader, how=how)
        await scene.finish()


@pytest.mark.parametrize("direction", ["deaf", "mute"])
async def test_follower_cut_off_one_way_deposes_nobody(tmp_path: Path, direction: str) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            leader = await scene.leader()
            before = await term_and_leader(scene, leader)
            follower = scene.others(leader)[0]
            (scene.links.deafen if direction == "deaf" else scene.links.mute)(follower)
            await scene.progress(5000)
            await asyncio.sleep(3)  # The fault itself: several election time-outs.
            assert await term_and_leader(scene, leader) == before
            await assert_rejoins_quietly(scene, follower, leader, how="hold")
        await scene.finish()


async def test_one_link_cut_leaves_one_leader_and_progress(tmp_path: Path) -> None:
    """A chain: both ends reach the middle and not each other, whoever of them leads."""
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            leader = await scene.leader()
            far, middle = scene.others(leader)
            scene.links.cut([(leader, far), (far, leader)])
            await asyncio.sleep(3)  # The fault itself: ``far`` hears no leader for several time-outs.
            await scene.progress(1000)
            statuses = await scene.statuses(leader, middle)
            assert sum(status["ready"] for status in statuses.values()) == 1
            # The middle hears the leader, so its pre-vote is refused to the far end: nobody is deposed.
            assert statuses[leader]["ready"], "a follower that lost one link deposed a leader that has a quorum"
        await scene.finish()


async def test_cluster_of_five_split_in_halves_goes_on_in_the_larger_one_only(tmp_path: Path) -> None:
    async with running(tmp_path, 5) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            old = await scene.leader()
            others = scene.others(old)
            small, large = [old, others[0]], others[1:]
            scene.links.split(small, large)
            await asyncio.gather(*(assert_reads_refused(scene, node, 10) for node in small))
            new = await scene.leader(*large)
            await scene.progress(1000)
            for node in small:
                await stepped_down(scene, node)
            await assert_rejoins_quietly(scene, old, new, how="hold")
        await scene.finish()


async def test_without_any_link_nothing_is_acknowledged_and_all_resumes_when_healed(tmp_path: Path) -> None:
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            scene.links.split(*([name] for name in scene.cluster.ids))
            await asyncio.gather(*(assert_reads_refused(scene, node, 10) for node in scene.cluster.ids))
            for node in scene.cluster.ids:
                await stepped_down(scene, node)
            done = scene.client.history.commands
            await asyncio.gather(*(assert_reads_refused(scene, node, 10) for node in scene.cluster.ids))
            assert scene.client.history.commands == done, "a command was acknowledged without a quorum"
            scene.links.heal()
            await scene.progress(1000)
        await scene.finish()


async def test_slow_links_that_break_all_the_time_lose_and_repeat_nothing(tmp_path: Path, soak: int, seed: int) -> None:
    async with running(tmp_path, seed=seed) as scene:
        stop = asyncio.Event()

        async def read(node: str) -> None:
            while not stop.is_set():
                with contextlib.suppress(NoAnswer):
                    await scene.client.read(node)
                await asyncio.sleep(0.005)

        async with scene.client.loaded(64):
            readers = [asyncio.create_task(read(name)) for name in scene.cluster.ids]
            await scene.progress(1000)
            scene.links.slow(delay_s=0.005, jitter_s=0.02, bytes_per_s=20e6)
            scene.links.storm(every_s=0.25)
            await scene.progress(10_000 * soak, deadline_s=60 * soak)
            scene.links.heal()
            await scene.progress(1000)
            stop.set()
            await asyncio.gather(*readers)
        assert scene.client.history.reads
        await scene.finish()


@pytest.mark.parametrize("wanted", ["leader", "follower"])
async def test_member_behind_a_slow_link_does_not_slow_the_others_down(tmp_path: Path, wanted: str) -> None:
    """With one slow follower the majority is fast; with a slow leader everything is slow and nothing breaks."""
    async with running(tmp_path) as scene:
        async with scene.client.loaded(64):
            await scene.progress(1000)
            leader = await scene.leader()
            slow = leader if wanted == "leader" else scene.others(leader)[0]
            for other in scene.others(slow):
                for way in (scene.links.way(slow, other), scene.links.way(other, slow)):
                    way.delay_s = 0.1
            before = await term_and_leader(scene, leader)
            # At 0.2 s a round trip a slow majority would take 60 rounds of 64 commands more than ten seconds.
            await scene.progress(4000 if wanted == "follower" else 1000, deadline_s=10)
            assert await term_and_leader(scene, leader) == before
        await scene.finish()
