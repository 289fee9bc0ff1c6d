"""A file system without room: writes are refused as overload, reads go on, nobody dies, room makes it whole again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from oncegate.proof.check.equipment import SmallDisk
from oncegate.proof.check.errors import Unavailable
from tests.faults.harness.raw_client import RawClient
from tests.faults.harness.replica_cluster import ReplicaCluster
from tests.faults.harness.scene import Scene, until

pytestmark = pytest.mark.faults

DISK_BYTES = 24 * 1024 * 1024


@contextlib.asynccontextmanager
async def on_small_disks(directory: Path, *names: str) -> AsyncIterator[tuple[Scene, dict[str, SmallDisk]]]:
    """A cluster in which these nodes have a small file system of their own below their data directory."""
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(ReplicaCluster(directory, linked=False))
        disks = {}
        for name in names:
            try:
                disks[name] = stack.enter_context(SmallDisk(directory / name, DISK_BYTES))
            except Unavailable as reason:
                pytest.skip(str(reason))
            cluster.prefix[name] = disks[name].prefix
            cluster.places[name] = directory / name / "data"
        cluster.start()
        async with RawClient(cluster.clients) as client:
            scene = Scene(cluster, client)
            await scene.settled()
            yield scene, disks


async def test_all_disks_full_refuse_writes_as_overload_and_go_on_reading_until_there_is_room(tmp_path: Path) -> None:
    async with on_small_disks(tmp_path, "n1", "n2", "n3") as (scene, disks):
        history = scene.client.history
        async with scene.client.loaded(64, size=1000):
            await scene.progress(1000)
            for disk in disks.values():
                disk.fill()

            def refused() -> bool:
                assert all(scene.cluster.is_running(name) for name in scene.cluster.ids), "a full disk ended a node"
                return history.refusals["OVERLOADED"] > 500

            await until(refused, what="writes are refused as OVERLOADED")
            for name in scene.cluster.ids:
                assert isinstance(await scene.client.read(name), int), f"{name} reads nothing on a full disk"
            for disk in disks.values():
                disk.give_back()
            await scene.progress(5000)
        await scene.finish()


async def test_follower_with_a_full_disk_stops_nobody_and_catches_up_when_there_is_room(tmp_path: Path) -> None:
    async with on_small_disks(tmp_path, "n1", "n2", "n3") as (scene, disks):
        follower = scene.others(await scene.leader())[0]
        async with scene.client.loaded(64, size=1000):
            await scene.progress(1000)
            disks[follower].fill()
            # More than its prepared segments hold, and less than the file systems of the others.
            await scene.progress(5000)
            assert scene.cluster.is_running(follower), "a full disk ended the node"
            await asyncio.gather(*(scene.client.read(name) for name in scene.others(follower)))
            disks[follower].give_back()
            await scene.progress(100)
        await scene.finish()


async def test_node_that_a_full_disk_ended_has_lost_nothing_when_it_is_back(tmp_path: Path) -> None:
    async with on_small_disks(tmp_path, "n1", "n2", "n3") as (scene, disks):
        victim = scene.others(await scene.leader())[0]
        async with scene.client.loaded(64, size=1000):
            await scene.progress(1000)
            disks[victim].fill()
            await scene.progress(5000)
            scene.cluster.kill(victim)
            disks[victim].give_back()
            scene.cluster.start(victim)
            await scene.progress(100)
        await scene.finish()
