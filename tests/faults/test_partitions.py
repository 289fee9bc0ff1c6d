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
from tests.faults.harness.scene import ELECTION_S_MAX, Scene, running, until

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

SEVERAL_TIME_OUTS_S = 2.5 * ELECTION_S_MAX


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


async def assert_rejoins_quietly(scene: Scene, node: str, leader: str) -> None:
    """Heal; ``node`` follows and catches up, and neither term nor leader changes."""
    before = await scene.term_and_leader(leader)
    scene.links.heal()
    scene.cluster.thaw(node)
    await scene.caught_up(node, leader)
    await scene.progress(500)
    assert await scene.term_and_leader(leader) == before, "a node that came back cost an election"


@pytest.mark.parametrize("how", ["hold", "lose"])
@pytest.mark.parametrize("cut", ["isolate", "deafen", "mute"])
async def test_leader_that_is_cut_off_steps_down_reads_nothing_and_deposes_nobody_when_back(
    scene: Scene, cut: str, how: How
) -> None:
    """Deaf, its heartbeats keep the others from an election: only its own step-down lets the cluster go on."""
    old = await scene.leader()
    getattr(scene.links, cut)(old, how=how)
    await assert_reads_refused(scene, old, 20)
    new = await scene.leader(*scene.others(old))
    await stepped_down(scene, old)
    await assert_reads_refused(scene, old, 5)
    await scene.progress(1000)
    await assert_rejoins_quietly(scene, old, new)


@pytest.mark.parametrize("away", ["isolate, hold", "isolate, lose", "deafen, hold", "mute, hold", "freeze"])
async def test_follower_that_was_away_for_several_time_outs_deposes_nobody_when_back(scene: Scene, away: str) -> None:
    leader = await scene.leader()
    before = await scene.term_and_leader(leader)
    follower = scene.others(leader)[0]
    cut, _, how = away.partition(", ")
    if cut == "freeze":
        scene.cluster.freeze(follower)
    else:
        getattr(scene.links, cut)(follower, how=how)
    if cut == "isolate":
        await assert_reads_refused(scene, follower, 20)
    await asyncio.sleep(SEVERAL_TIME_OUTS_S)  # The fault itself: in each time-out it asks for votes.
    await scene.progress(1000)
    assert await scene.term_and_leader(leader) == before
    await assert_rejoins_quietly(scene, follower, leader)


async def test_one_link_cut_leaves_one_leader_and_progress(scene: Scene) -> None:
    """A chain: both ends reach the middle and not each other, whoever of them leads."""
    leader = await scene.leader()
    far, middle = scene.others(leader)
    scene.links.cut([(leader, far), (far, leader)])
    await asyncio.sleep(SEVERAL_TIME_OUTS_S)  # The fault itself: ``far`` hears no leader.
    await scene.progress(1000)
    statuses = await scene.statuses(leader, middle)
    assert sum(status["ready"] for status in statuses.values()) == 1
    # The middle hears the leader, so its pre-vote is refused to the far end: nobody is deposed.
    assert statuses[leader]["ready"], "a follower that lost one link deposed a leader that has a quorum"


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
            await assert_rejoins_quietly(scene, old, new)
        await scene.finish()


async def test_without_any_link_nothing_is_acknowledged_and_all_resumes_when_healed(scene: Scene) -> None:
    scene.links.split(*([name] for name in scene.cluster.ids))
    await asyncio.gather(*(assert_reads_refused(scene, node, 10) for node in scene.cluster.ids))
    for node in scene.cluster.ids:
        await stepped_down(scene, node)
    done = scene.client.history.commands
    await asyncio.gather(*(assert_reads_refused(scene, node, 10) for node in scene.cluster.ids))
    assert scene.client.history.commands == done, "a command was acknowledged without a quorum"
    scene.links.heal()
    await scene.progress(1000)


async def test_slow_links_that_break_all_the_time_lose_and_repeat_nothing(scene: Scene, soak: int) -> None:
    stop = asyncio.Event()

    async def read(node: str) -> None:
        while not stop.is_set():
            with contextlib.suppress(NoAnswer):
                await scene.client.read(node)
            await asyncio.sleep(0.005)

    reads = len(scene.client.history.reads)
    readers = [asyncio.create_task(read(name)) for name in scene.cluster.ids]
    scene.links.slow(delay_s=0.005, jitter_s=0.02, bytes_per_s=20e6)
    scene.links.storm(every_s=0.25)
    await scene.progress(10_000 * soak, deadline_s=60 * soak)
    scene.links.heal()
    await scene.progress(1000)
    stop.set()
    await asyncio.gather(*readers)
    assert len(scene.client.history.reads) > reads


@pytest.mark.parametrize("wanted", ["leader", "follower"])
async def test_member_behind_a_slow_link_does_not_slow_the_others_down(scene: Scene, wanted: str) -> None:
    """With one slow follower the majority is fast; with a slow leader everything is slow and nothing breaks."""
    leader = await scene.leader()
    slow = leader if wanted == "leader" else scene.others(leader)[0]
    for other in scene.others(slow):
        for way in (scene.links.way(slow, other), scene.links.way(other, slow)):
            way.delay_s = 0.1
    before = await scene.term_and_leader(leader)
    # At 0.2 s a round trip a slow majority would take 60 rounds of 64 commands more than ten seconds.
    await scene.progress(4000 if wanted == "follower" else 1000, deadline_s=10)
    assert await scene.term_and_leader(leader) == before
