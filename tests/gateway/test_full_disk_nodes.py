"""A node on a full disk: it says that it is not ready for writes, starts and reads nevertheless, or waits for room."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.gateway.http.server import running
from oncegate.gateway.local.blocking_http import send_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.settings import Settings
from oncegate.proof.check.equipment import SmallDisk
from oncegate.proof.check.errors import Unavailable
from tests.conftest import Api
from tests.gateway import three_nodes
from tests.gateway.http_contract import assert_problem, declare, operations, put
from tests.gateway.three_nodes import three

DISK_BYTES = 192 * 2**20
"""The least that a node starts on."""


def small_log(settings: Settings) -> Node:
    """A node whose log has small segments."""
    config = dataclasses.replace(
        replica_config(settings), journal_segment_bytes=200_000, command_bytes_max=50_000, append_bytes_max=50_000
    )
    return Node(settings, config)


async def test_readiness_ends_when_there_is_no_room_for_the_log_and_comes_back_with_it(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = DirectoryStorage.create

    def full(storage: DirectoryStorage, name: str, size: int = 0) -> Any:
        if size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(storage, name, size)

    async with running(files, small_log), aiohttp.ClientSession(base_url=files.address.http) as http:
        api = Api(http)
        await declare(api)
        client_id = await api.session()
        assert (await api.call("GET", "/readyz"))[0] == 200
        monkeypatch.setattr(DirectoryStorage, "create", full)
        sequence, refusal = 0, None
        while refusal is None:
            sequence += 1
            body = operations(client_id, put(sequence, "a", "x" * 20_000), first_incomplete=sequence)
            answer = await api.call("POST", "/v1/operations", body)
            if answer[0] != 200:
                refusal = assert_problem(answer, "OVERLOADED")
        assert "full" in assert_problem(await api.call("GET", "/readyz"), "NOT_READY")["detail"]
        assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 200, "reads go on"
        assert b"oncegate_disk_full 1.0" in (await api.call("GET", "/metrics"))[2]
        monkeypatch.setattr(DirectoryStorage, "create", create)

        async def ready() -> bool:
            return (await api.call("GET", "/readyz"))[0] == 200

        async with asyncio.timeout(20):
            while not await ready():
                await asyncio.sleep(0.05)
        assert (await api.call("POST", "/v1/operations", body))[0] == 200


class OnSmallDisk(LocalCluster):
    """A cluster of one whose directory is a small file system."""

    def __init__(self, directory: Path, disk: SmallDisk) -> None:
        super().__init__(directory, nodes=1, flags=("--log-kept-bytes", "0"))
        self._disk = disk
        self._place = directory / "disk"

    def command(self, node_id: str) -> list[str]:
        return [*self._disk.prefix, *super().command(node_id), "--data-dir", str(self._place / node_id)]


def test_node_that_starts_on_a_full_disk_answers_reads_and_without_any_room_waits_for_some(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path / "disk", DISK_BYTES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with disk, OnSmallDisk(tmp_path, disk) as cluster:
        cluster.start("n1")
        cluster.wait_ready()
        row = f"{cluster.endpoints[0]}/v1/tables/rows"
        send_json("PUT", row, {"kind": "resident"}, 10)
        cluster.kill("n1")
        disk.fill()
        cluster.start("n1")
        wait_for(lambda: cluster.state("n1"), 60, "it serves", state=lambda: cluster.log_tail("n1"))
        assert send_json("GET", row, None, 10)["name"] == "rows"
        assert "the room set aside is used" in cluster.log("n1")
        cluster.kill("n1")
        disk.fill()
        cluster.start("n1")
        wait_for(lambda: "waits for room to start" in cluster.log("n1"), 60, "it says that it waits")
        assert cluster.is_running("n1")
        disk.give_back()
        cluster.wait_ready()
        assert send_json("GET", row, None, 10)["name"] == "rows"
        cluster.kill("n1")
        disk.fill()
        cluster.start("n1")
        wait_for(lambda: cluster.state("n1"), 60, "the room was set aside again", state=lambda: cluster.log_tail("n1"))
        assert cluster.stop("n1")


async def test_follower_on_a_full_disk_is_not_ready(files: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead next, and nobody is to be sent to it for writes."""
    async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
        full = dataclasses.replace(node.replica.status(), disk_full=True)
        monkeypatch.setattr(node.replica, "status", lambda: full)
        monkeypatch.setattr(node.leadership, "leads", False)
        assert "full" in assert_problem(await Api(http).call("GET", "/readyz"), "NOT_READY")["detail"]


async def test_a_leader_whose_disk_alone_is_full_hands_leadership_over_and_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = DirectoryStorage.create
    full = tmp_path / "nobody's"

    def refused(storage: DirectoryStorage, name: str, size: int = 0) -> Any:
        if size and storage.label(name).startswith(f"{full}/"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(storage, name, size)

    monkeypatch.setattr(DirectoryStorage, "create", refused)
    monkeypatch.setattr(three_nodes, "running", lambda settings: running(settings, small_log))
    async with three(tmp_path) as nodes:
        led = await nodes.leader()
        full = tmp_path / led
        async with aiohttp.ClientSession(base_url=nodes.url(led)) as http:
            api = Api(http)
            async with asyncio.timeout(20):
                while (await api.call("GET", "/readyz"))[0] != 200:
                    await asyncio.sleep(0.02)
            await declare(api)
            client_id = await api.session()
            sequence, refusal = 0, None
            while refusal is None:
                sequence += 1
                body = operations(client_id, put(sequence, "a", "x" * 20_000), first_incomplete=sequence)
                answer = await api.call("POST", "/v1/operations", body)
                if answer[0] != 200:
                    refusal = assert_problem(answer, "OVERLOADED")
            assert "journal_room_bytes" in refusal["detail"]
            assert (await api.call("POST", "/v1/cluster/leader", {}))[0] < 300
            async with asyncio.timeout(20):
                while await nodes.leader() == led:
                    await asyncio.sleep(0.02)
                while (await api.call("POST", "/v1/operations", body))[0] != 200:
                    await asyncio.sleep(0.1)
            assert "full" in assert_problem(await api.call("GET", "/readyz"), "NOT_READY")["detail"], "it is full still"
