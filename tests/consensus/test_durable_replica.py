"""Durable nodes over real sockets and real files: compaction, restart, snapshots."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from oncegate.consensus import StateMissing
from oncegate.consensus.config import KIB
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.proof.sim.engine.durable_machine import STATE_FILE, DurableMachine
from tests.consensus.cluster import Cluster, until

SETTINGS = {
    "command_bytes_max": 16 * KIB,
    "append_bytes_max": 16 * KIB,
    "journal_segment_bytes": 64 * KIB,
    "log_kept_bytes": 0,
    "log_memory_bytes_max": 32 * KIB,
    "snapshot_chunk_bytes": 8 * KIB,
}


@contextlib.asynccontextmanager
async def durable(directory, names=("n1", "n2", "n3"), **settings):
    storages = []

    def make_machine(name):
        storages.append(DirectoryStorage(directory / f"{name}-state"))
        return DurableMachine(storages[-1], every=50)

    cluster = Cluster(directory, names, make_machine, **{**SETTINGS, **settings})
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
        for storage in storages:
            storage.close()
    assert not cluster.halts


async def propose(replica, count, size=1000):
    for start in range(0, count, 20):
        await asyncio.gather(*[replica.propose(b"%06d" % number + bytes(size)) for number in range(start, start + 20)])


async def test_a_follower_that_was_away_for_long_is_brought_back_by_a_snapshot(tmp_path):
    async with durable(tmp_path) as cluster:
        name, late, _ = await cluster.by_role()
        behind = cluster.replicas[late].status().last_index
        await cluster.stop(late)
        leader = cluster.replicas[name]
        await propose(leader, 1000)
        await until(lambda: leader._engine.log.base.index > behind + 100)
        await cluster.start(late)
        await propose(leader, 40)
        last = leader.status().last_index
        await cluster.replicas[late].wait_applied(last, timeout_s=20)
        assert cluster.machines[late].installs == 1
        assert cluster.machines[late].log == cluster.machines[name].log
        assert cluster.replicas[late]._engine.log.base.index > behind + 100


async def test_a_node_restarts_from_its_state_and_its_directory_stays_small(tmp_path):
    async with durable(tmp_path, ("only",)) as cluster:
        for _ in range(3):
            await propose(cluster.replicas["only"], 600)
            await until(lambda: cluster.replicas["only"].status().journal_bytes < 400 * KIB)
            before = cluster.machines["only"].log
            await cluster.stop("only")
            await cluster.start("only")
            last = before[-1][0]
            await cluster.replicas["only"].wait_applied(last, timeout_s=10)
            assert cluster.machines["only"].log[: len(before)] == before
        assert sum(file.stat().st_size for file in (tmp_path / "only").iterdir()) < 12 * 64 * KIB


async def test_a_transfer_goes_on_after_the_connection_was_lost(tmp_path):
    async with durable(tmp_path, snapshot_bytes_per_s=400 * KIB) as cluster:
        name, late, _ = await cluster.by_role()
        await cluster.stop(late)
        leader = cluster.replicas[name]
        await propose(leader, 800)
        await until(lambda: leader._engine.log.base.index > 200)
        sizes = []
        sent = leader._transport.send

        def send(peer, message):
            if type(message).__name__ == "SnapshotChunk":
                sizes.append(len(message.data))
            return sent(peer, message)

        leader._engine._send = send
        leader._engine.leading.replication._send = send
        await cluster.start(late)
        for lost in (8, 20):
            await until(lambda lost=lost: len(sizes) >= lost)
            cluster.replicas[late]._transport._peers[name].abort()
        await until(lambda: cluster.machines[late].installs)
        state_bytes = (tmp_path / f"{name}-state" / STATE_FILE).stat().st_size
        # What was under way when the connection broke is sent twice, and nothing else.
        assert sum(sizes) < state_bytes + 12 * 8 * KIB


async def test_a_directory_whose_state_is_gone_is_refused_and_given_back(tmp_path):
    async with durable(tmp_path, ("only",)) as cluster:
        await propose(cluster.replicas["only"], 600)
        await until(lambda: cluster.replicas["only"]._engine.log.base.index > 0)
        await cluster.stop("only")
        (tmp_path / "only-state" / STATE_FILE).rename(tmp_path / "hidden")
        for _ in range(2):
            with pytest.raises(StateMissing, match="base"):
                await cluster.start("only")
        (tmp_path / "hidden").rename(tmp_path / "only-state" / STATE_FILE)
        await cluster.start("only")
