"""Each fault does to real nodes what its name says, and what was acknowledged outlives it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.consensus.log.segment import SECTOR_BYTES
from oncegate.gateway.local.blocking_http import get_json
from oncegate.proof.check.damage import used
from oncegate.proof.check.nemesis import members
from oncegate.proof.check.nemesis.fault import LEADER
from oncegate.proof.check.nemesis.machines import FLIPS
from oncegate.proof.check.nemesis.nemesis import clock_off_s
from tests.nemesis.conftest import Scene

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

TORN_SECTOR = b"\x81" * SECTOR_BYTES
ALL = ("n1", "n2", "n3")


def process_state(pid: int) -> str:
    """What the kernel says of a process: R, S, T and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def log_of(scene: Scene, node_id: str) -> str:
    """What a node has said in all its lives."""
    return (scene.cluster.directory / f"{node_id}.log").read_text()


@pytest.mark.parametrize(("name", "targets"), [("kill_leader", (LEADER,)), ("kill_all", ALL)])
async def test_kill_ends_processes_at_once(scene: Scene, name: str, targets: tuple[str, ...]) -> None:
    before = {node_id: scene.cluster.pid(node_id) for node_id in ALL}
    async with scene.under(name, *targets) as fault:
        assert len(fault.targets) == len(targets)
        for node_id in fault.targets:
            assert scene.cluster.returncode(node_id) == -signal.SIGKILL
        if len(targets) == 1:
            await scene.progress()  # the two that are left go on
    assert all(scene.cluster.pid(node_id) != before[node_id] for node_id in fault.targets)


async def test_frozen_leader_is_replaced_and_wakes_up_as_a_follower(scene: Scene) -> None:
    cluster = scene.cluster
    async with scene.under("freeze_leader", LEADER) as fault:
        (leader,) = fault.targets
        await scene.until(lambda: process_state(cluster.pid(leader)) == "T", "the process stands still")
        await scene.until(lambda: cluster.leader_now(0.0), "another leads")
        assert cluster.leader_now() != leader
    await scene.until(lambda: cluster.state(leader)["role"] == "follower", "the old one follows")


@pytest.mark.parametrize("how", ["hold", "lose"])
async def test_leader_in_a_partition_serves_nobody_and_the_others_go_on(scene: Scene, how: str) -> None:
    cluster = scene.cluster
    async with scene.under("partition_leader", LEADER, how=how) as fault:
        (leader,) = fault.targets
        others = [node_id for node_id in ALL if node_id != leader]
        assert sorted(cluster.links.troubled) == sorted(
            way for other in others for way in (f"{leader}->{other}", f"{other}->{leader}")
        )
        await scene.until(lambda: all(cluster.is_ready(node_id) for node_id in others), "the others are ready")
        assert not cluster.is_ready(leader)
        await scene.progress()
    assert not cluster.links.troubled


async def test_node_that_is_restarted_inside_a_partition_does_not_get_out_of_it(scene: Scene) -> None:
    cluster = scene.cluster
    async with scene.under("partition_halves", "n1", how="lose"):
        cluster.kill("n1")
        cluster.start("n1")
        await scene.until(lambda: cluster.state("n1") is not None, "n1 answers")
        # The lesser id dials by itself after three seconds: it must find the cut there, too.
        patience = time.monotonic() + 5
        await scene.until(lambda: time.monotonic() > patience or cluster.is_ready("n1"), "its patience ends")
        assert not cluster.is_ready("n1")


@pytest.mark.parametrize(
    ("name", "targets", "cut"),
    [
        ("partition_one_way", ("n2",), {"n2->n1", "n2->n3"}),
        ("partition_ring", ALL, {"n1->n3", "n3->n2", "n2->n1"}),
        ("partition_majority_ring", ALL, {"n1->n2", "n2->n1"}),
    ],
)
async def test_partition_cuts_these_directions_and_no_other(
    scene: Scene, name: str, targets: tuple[str, ...], cut: set[str]
) -> None:
    async with scene.under(name, *targets, how="hold"):
        assert set(scene.cluster.links.troubled) == cut
        passed = {way: scene.cluster.links.way(*way.split("->")).bytes_passed for way in cut}
        other = next(ends for ends in (("n3", "n1"), ("n1", "n2")) if "->".join(ends) not in cut)
        before = scene.cluster.links.way(*other).bytes_passed
        if name != "partition_ring":
            await scene.until(lambda: scene.cluster.links.way(*other).bytes_passed > before, "others pass")
        assert {way: scene.cluster.links.way(*way.split("->")).bytes_passed for way in cut} == passed


async def test_slow_links_make_every_write_wait_for_them(scene: Scene) -> None:
    # Together less than a heartbeat: reads that take longer are asked anew with each one.
    async with scene.under("slow_links", delay_s=0.03, jitter_s=0.001):
        began = time.monotonic()
        await scene.client.get("counters", "c0", consistency="linearizable")
        assert time.monotonic() - began >= 0.06, "a majority was asked without the delay of two links"


@pytest.mark.parametrize(("name", "how"), [("lossy_links", {"loss": 1.0}), ("reset_links", {"every_s": 0.02})])
async def test_links_that_break_are_made_anew(scene: Scene, name: str, how: dict[str, Any]) -> None:
    links = scene.cluster.links
    before = set(links.connections())
    async with scene.under(name, **how):
        await scene.until(lambda: not before & set(links.connections()), "every connection was reset")


async def test_frames_that_were_forged_on_the_way_cost_connections_and_change_nothing(scene: Scene) -> None:
    links = scene.cluster.links
    ways = [links.way(a, b) for a in links.names for b in links.names if a != b]
    async with scene.under("forged_links", forgery=0.05):
        await scene.until(lambda: sum(way.frames_forged for way in ways) > 20, "frames were forged")
        await scene.progress()


async def test_a_starved_processor_makes_the_cluster_slow_and_no_more(scene: Scene) -> None:
    async with scene.under("starved_processor", for_each_core=2):
        wanted = 2 * (os.cpu_count() or 1)
        # A process that has just begun its program has no arguments yet.
        await scene.until(lambda: len(_busy()) >= wanted, f"{wanted} busy processes")
        busy = _busy()
        await scene.progress()
    assert not any(path.exists() for path in busy)


def _busy() -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if _cmdline(path) == str(os.getpid())]


def _cmdline(path: Path) -> str:
    """The last argument of a process."""
    try:
        return path.read_text().split("\0")[-2]
    except (OSError, IndexError):
        return ""


async def test_thin_links_pass_no_more_than_they_may(scene: Scene) -> None:
    links = scene.cluster.links
    async with scene.under("thin_links", bytes_per_s=100_000.0):
        way = links.way("n1", "n2")
        began, before = time.monotonic(), way.bytes_passed
        await scene.progress()
        # One read may have been counted before its time is over.
        assert way.bytes_passed - before <= 100_000 * (time.monotonic() - began) + 2 * 64 * 1024


async def test_full_disks_refuse_writes_as_overload_until_there_is_room(scene: Scene) -> None:
    cluster = scene.cluster
    codes: list[str] = []

    async def fill(http: aiohttp.ClientSession, worker: int) -> None:
        while "OVERLOADED" not in codes:
            headers = {"Idempotency-Key": f'"full-{worker}-{len(codes)}"'}
            try:
                async with http.put(f"/v1/tables/paddings/rows/{worker}", data=body, headers=headers) as answer:
                    codes.append("" if answer.status < 300 else (await answer.json())["code"])
            except TimeoutError:
                codes.append("no answer")  # taken into the leader's log, and no follower has room for it

    body = json.dumps("x" * 60_000)
    async with scene.under("full_disk", *ALL):
        assert all(disk.free_bytes == 0 for disk in cluster.disks.values())
        headers = {"Content-Type": "application/json"}
        patience = aiohttp.ClientTimeout(total=3)
        async with aiohttp.ClientSession(cluster.endpoint("n1"), headers=headers, timeout=patience) as http:
            async with asyncio.timeout(60):
                await asyncio.gather(*(fill(http, worker) for worker in range(24)))
        assert set(codes) <= {"", "no answer", "OVERLOADED", "TIMEOUT"}
        assert all(cluster.is_running(node_id) for node_id in ALL), "a full disk ended a node"


async def test_slow_disks_make_every_write_wait_for_a_flush(scene: Scene) -> None:
    async with scene.under("slow_disk", *ALL, delay_s=0.2), scene.client.session() as session:
        began = time.monotonic()
        await session.put("paddings", "slow", 1)
        assert time.monotonic() - began >= 0.2, "acknowledged before a flush"


async def test_power_loss_takes_unflushed_bytes_and_nothing_that_was_acknowledged(scene: Scene) -> None:
    async with scene.under("power_loss", *ALL, kept=0.5, seed=1):
        lost = [int(word.rstrip(",")) for word in counts_of(scene.said)]
        assert len(lost) == 3
        assert sum(lost) > 0, "nothing was lost: the fault tests nothing"


def counts_of(said: str) -> list[str]:
    """The counts of ``bytes lost: n1 12, n2 0``."""
    return said.partition(": ")[2].split()[1::2]


async def test_torn_tail_of_every_journal_is_recovered(scene: Scene) -> None:
    async with scene.under("torn_tail", *ALL):
        assert scene.said.count(".segment") == 3, "a journal was not torn"
        for node_id in ALL:
            assert TORN_SECTOR in journal(scene, node_id)
    for node_id in ALL:
        assert TORN_SECTOR not in journal(scene, node_id), f"{node_id} kept what was never flushed"


def journal(scene: Scene, node_id: str) -> bytes:
    """The last segment of a node's journal that holds records."""
    return used(scene.cluster.data(node_id) / "raft")[-1].read_bytes()


@pytest.mark.parametrize("damage", ["ballot: bit of the payload", "last record: bit of the term"])
async def test_node_with_a_flipped_bit_refuses_by_name_and_is_replaced(scene: Scene, damage: str) -> None:
    assert damage in FLIPS
    async with scene.under("flipped_bit", "n3", damage=damage):
        await scene.progress()
    assert scene.said == "refused by name, and was replaced"
    assert not scene.cluster.crashes


async def test_node_with_a_damaged_block_serves_nothing_until_it_is_repaired(scene: Scene) -> None:
    cluster = scene.cluster
    async with scene.under("damaged_block", "n3"):
        assert "is damaged" in cluster.state("n3")["damage"], "the fault tests nothing"
        assert not cluster.is_ready("n3")
        await scene.progress()
    assert scene.said.endswith("is damaged, repaired from a peer")
    assert cluster.state("n3")["damage"] == ""
    assert not cluster.spoiled


class Counters:
    """Reads the counters of a restored cluster."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.before: list[int] = []
        self.found: list[int] = []

    def begin(self, node: str) -> bool:
        """Note what was acknowledged."""
        self.before = list(self._scene.load.counted)
        return True

    def end(self, endpoint: str) -> int:
        """Read."""
        rows = [get_json(f"{endpoint}/v1/tables/counters/rows/c{worker}") for worker in range(len(self.before))]
        self.found = [row["value"] for row in rows if row is not None]
        return len(self.found)

    def give_up(self, why: str) -> None:
        """There are none."""
        raise AssertionError(why)


async def test_backup_under_load_is_restored_with_all_that_was_acknowledged_before(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = Counters(scene)
    monkeypatch.setattr(scene.cluster, "restored_reads", counters)
    async with scene.under("backup_restored", "n2"):
        after = list(scene.load.counted)
    assert scene.said == "restored, 4 rows read"
    assert all(
        low <= found <= high + 1 for low, found, high in zip(counters.before, counters.found, after, strict=True)
    )


async def test_member_joins_learns_votes_and_goes(scene: Scene) -> None:
    async with scene.under("member_added", "n4"):
        assert members.voters(scene.cluster) == dict.fromkeys((*ALL, "n4"), True)
        await scene.until(lambda: scene.cluster.is_ready("n4"), "n4 serves")
    assert members.voters(scene.cluster) == dict.fromkeys(ALL, True)
    assert not scene.cluster.is_running("n4")


async def test_learner_that_stays_away_counts_in_no_majority(scene: Scene) -> None:
    async with scene.under("learner_added", "n4"):
        assert members.voters(scene.cluster) == {**dict.fromkeys(ALL, True), "n4": False}
        await scene.progress()
    assert members.voters(scene.cluster) == dict.fromkeys(ALL, True)


@pytest.mark.parametrize("name", ["member_removed", "member_replaced"])
async def test_member_that_went_comes_back_with_an_empty_directory(scene: Scene, name: str) -> None:
    async with scene.under(name, "n2"):
        assert not scene.cluster.is_running("n2")
        assert not scene.cluster.data("n2").exists()
        await scene.progress()
    assert members.voters(scene.cluster) == dict.fromkeys(ALL, True)


async def test_rolling_restart_restarts_each_node_in_order(scene: Scene) -> None:
    before = {node_id: scene.cluster.pid(node_id) for node_id in ALL}
    async with scene.under("rolling_restart", *ALL):
        assert scene.said == "restarted one after the other"
    assert all(scene.cluster.pid(node_id) != before[node_id] for node_id in ALL)
    assert all(f"node {node_id} stops" in log_of(scene, node_id) for node_id in ALL)


async def test_leadership_is_handed_to_the_one_that_was_named(scene: Scene) -> None:
    leader = await asyncio.to_thread(scene.cluster.leader)
    to = next(node_id for node_id in ALL if node_id != leader)
    async with scene.under("transfer_leader", LEADER, to=to) as fault:
        assert fault.targets == (leader,)
        assert scene.said == f"{leader} led; {to} leads"


class Job:
    """A process beside the nodes."""

    name = "spark"

    def __init__(self) -> None:
        self.running = True

    def kill(self) -> None:
        """End it."""
        self.running = False

    def start(self) -> None:
        """Start it again."""
        self.running = True

    def is_running(self) -> bool:
        """Whether it lives."""
        return self.running


async def test_job_that_the_workload_registered_is_killed_and_started_again(scene: Scene) -> None:
    job = Job()
    scene.cluster.register(job)
    async with scene.under("kill_spark", "spark"):
        assert not job.is_running()
    assert job.is_running()


async def test_clock_of_a_node_jumps_and_comes_back(clocked: Scene) -> None:
    async with clocked.under("clock_step", LEADER, offset_s=-80_000.0) as fault:
        (leader,) = fault.targets
        others = [node_id for node_id in ALL if node_id != leader]
        await clocked.until(lambda: abs(clock_off_s(clocked.cluster, leader) + 80_000) < 100, "its clock is off")
        assert all(abs(clock_off_s(clocked.cluster, node_id)) < 100 for node_id in others)
    assert abs(clock_off_s(clocked.cluster, leader)) < 100


async def test_clock_of_a_node_runs_too_fast(clocked: Scene) -> None:
    async with clocked.under("clock_drift", "n2", rate=4.0):
        first = await asyncio.to_thread(clock_off_s, clocked.cluster, "n2")
        await clocked.until(lambda: clock_off_s(clocked.cluster, "n2") > first + 4, "its clock gains")


async def test_node_whose_certificate_ended_is_alone_until_it_has_a_new_one(guarded: Scene) -> None:
    cluster = guarded.cluster
    leader = await asyncio.to_thread(cluster.leader)
    assert "by TLS" in log_of(guarded, leader)
    async with guarded.under("expired_certificate", LEADER) as fault:
        assert fault.targets == (leader,)
        others = [node_id for node_id in ALL if node_id != leader]
        await guarded.until(lambda: all(cluster.is_ready(node_id) for node_id in others), "the others are ready")
        assert not cluster.is_ready(leader)
        assert any("certificate has expired" in log_of(guarded, node_id) for node_id in ALL), "the fault tests nothing"
        await guarded.progress()
    assert cluster.is_ready(leader)


async def test_records_of_tls_that_were_forged_on_the_way_change_nothing(guarded: Scene) -> None:
    links = guarded.cluster.links
    ways = [links.way(a, b) for a in links.names for b in links.names if a != b]
    async with guarded.under("forged_links", forgery=0.05):
        await guarded.until(lambda: sum(way.frames_forged for way in ways) > 20, "records were forged")
        await guarded.progress()


async def test_tenant_that_floods_is_refused_what_is_beyond_its_rate_and_the_others_go_on(guarded: Scene) -> None:
    async with guarded.under("flooding_tenant", tenant="rated", workers=32):
        await guarded.progress(100)
    assert {"ok", "QUOTA"} <= {answered.split()[0] for answered in guarded.said.split(", ")}, guarded.said


async def test_nodes_of_two_builds_serve_together(upgraded: Scene) -> None:
    cluster = upgraded.cluster

    def runs_the_build_before(node_id: str) -> bool:
        environment = Path(f"/proc/{cluster.pid(node_id)}/environ").read_bytes()
        return f"PYTHONPATH={cluster.earlier_build}".encode() in environment.split(b"\0")

    async with upgraded.under("earlier_build", "n1", "n2"):
        assert [runs_the_build_before(node_id) for node_id in ALL] == [True, True, False]
        await upgraded.progress()
    assert not any(runs_the_build_before(node_id) for node_id in ALL)
