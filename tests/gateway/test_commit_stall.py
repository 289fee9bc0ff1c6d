"""A leader whose followers store nothing says so by name, refuses further writes, and recovers by itself."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.consensus.core.progress import Progress
from oncegate.consensus.errors import Timeout
from oncegate.consensus.log.storage import DirectoryStorage
from oncegate.consensus.ports import PeerStatus, ReplicaStatus, Role
from oncegate.gateway.cli import cluster as cli
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node import commit_stall
from oncegate.gateway.node.commit_stall import STALLED_S, CommitStall, stall_of
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, founded, one_node, put, serving
from tests.gateway.test_full_disk_nodes import small_log

NAMES = ("n1", "n2", "n3")


def _peer(**more: Any) -> PeerStatus:
    rest = {"connected": True, "voter": True, "match_index": 9, "next_index": 10, "lag": 0, "in_flight_bytes": 0}
    return PeerStatus(**{**rest, "silent_s": 0.1, "disk_full": False, **more})


@pytest.fixture
async def status(files: Settings) -> AsyncIterator[ReplicaStatus]:
    """What the leader of three says; a node of its own gives the rest of it."""
    async with serving(files) as (_, node):
        yield dataclasses.replace(node.replica.status(), role=Role.LEADER, stalled_s=STALLED_S + 1.2)


@pytest.mark.parametrize(
    ("own_full", "peers", "why"),
    [
        (False, {"n2": _peer(disk_full=True, lag=3), "n3": _peer(silent_s=4.2)}, "the disk of n2 is full; n3 has not"),
        (True, {"n2": _peer(disk_full=True), "n3": _peer(disk_full=True)}, "the disks of n1, n2, n3 are full"),
        (False, {"n2": _peer(silent_s=4.4), "n3": _peer()}, "n2 has not answered for 4 s"),
        (False, {"n2": _peer(connected=False), "n3": _peer(lag=12)}, "n2 is not connected; n3 lacks 12 of its entries"),
        (False, {"n2": _peer(), "n3": _peer(voter=False, disk_full=True)}, "no majority has stored its entries"),
    ],
)
async def test_cause_of_a_stall_is_named(
    status: ReplicaStatus, own_full: bool, peers: dict[str, PeerStatus], why: str
) -> None:
    stalled = dataclasses.replace(status, peers=peers, disk_full=own_full)
    assert f"n1 leads and has committed nothing for 4 s: {why}" in stall_of(stalled)
    assert stall_of(dataclasses.replace(stalled, stalled_s=STALLED_S - 0.1)) == ""


def test_log_tells_the_beginning_and_the_end_of_a_stall_once(caplog: pytest.LogCaptureFixture) -> None:
    stall = CommitStall()
    with caplog.at_level(logging.WARNING):
        for said in ("", "", "n1 leads: 3 s", "n1 leads: 4 s", "", ""):
            stall.told(said)
    assert len(caplog.records) == 2


def test_follower_without_room_counts_as_full_until_it_takes_entries() -> None:
    progress = Progress(5, 0.0)
    progress.full(1.0)
    assert progress.disk_full
    progress.reconnected()
    assert progress.disk_full, "a connection says nothing of the disk"
    progress.has_room()
    assert not progress.disk_full


class Stalled:
    """Three nodes in this process with small logs; the disks of all but n1 can be full."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ports = free_ports(6)
        members = [f"{name}=127.0.0.1:{ports[2 * at]}:{ports[2 * at + 1]}" for at, name in enumerate(NAMES)]
        self.settings = {
            name: Settings(node=name, members=members, data_dir=directory / name, answer_ms_max=1_500) for name in NAMES
        }
        self.nodes: dict[str, Node] = {}
        self.full: set[str] = set()
        create = DirectoryStorage.create

        def created(storage: DirectoryStorage, name: str, size: int = 0) -> Any:
            if size and any(f"/{node}/" in storage.label("x") for node in self.full):
                raise OSError(errno.ENOSPC, "No space left on device")
            return create(storage, name, size)

        monkeypatch.setattr(DirectoryStorage, "create", created)

    async def run(self, stack: AsyncExitStack) -> None:
        for name in NAMES:
            self.nodes[name] = await stack.enter_async_context(running(self.settings[name], small_log))
        await until(lambda: any(node.leadership.leads for node in self.nodes.values()))
        leader = next(node for node in self.nodes.values() if node.leadership.leads)
        if leader is not self.nodes["n1"]:
            await until(lambda: leader.replica.status().peers["n1"].connected)
            await leader.replica.transfer_leadership("n1")
        await until(lambda: self.nodes["n1"].leadership.leads)
        await founded(self.nodes["n1"])


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_leader_with_full_followers_answers_in_time_names_them_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_stall, "STALLED_S", 1.0)
    cluster = Stalled(tmp_path, monkeypatch)
    async with AsyncExitStack() as stack:
        await cluster.run(stack)
        leader = cluster.nodes["n1"]
        api, follower = [Api(await stack.enter_async_context(_at(cluster, name))) for name in ("n1", "n2")]
        await declare(api)
        client_id = await api.session()
        cluster.full = {"n2", "n3"}
        value, sequence, answers = "x" * 20_000, 0, dict[str, int]()
        unknown = None
        async with asyncio.timeout(120):
            while "NOT_READY" not in answers:
                sequence += 1
                body = operations_of(client_id, sequence, value)
                status, _, answer = await api.call("POST", "/v1/operations", body)
                code = "" if status == 200 else answer["code"]
                answers[code] = answers.get(code, 0) + 1
                if code == "TIMEOUT":
                    assert answer["outcome"] == "unknown"
                    unknown = body
        assert unknown is not None, "what the log has cannot be called back"
        assert set(answers) <= {"", "TIMEOUT", "NOT_READY"}
        for one in (api, follower):
            refused = assert_problem(await one.call("POST", "/v1/operations", body), "NOT_READY")
            assert "the disks of n2, n3 are full" in refused["detail"], "by name, at every node"
        ready = assert_problem(await api.call("GET", "/readyz"), "NOT_READY")
        assert "the disks of n2, n3 are full" in ready["detail"]
        _, _, state = await api.call("GET", "/v1/cluster")
        assert "the disks of n2, n3 are full" in state["stalled"]
        _, _, figures = await api.call("GET", "/v1/cluster/figures")
        assert "full" in figures["members"][0]["figures"]["stalled"]
        text = (await api.call("GET", "/metrics"))[2].decode()
        assert 'oncegate_peer_disk_full{peer="n2"} 1.0' in text
        assert "oncegate_commit_stalled_seconds 0.0" not in text
        assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 200, "reads go on"
        cluster.full = set()
        # Nobody sends anything: what is in the log already ends the stall.
        await until(lambda: not leader.replica.stalled_s())
        async with asyncio.timeout(60):
            while (await api.call("GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.02)
        status, _, again = await api.call("POST", "/v1/operations", unknown)
        assert status == 200, again
        assert again["results"][0]["status"] == "applied"
        assert (await follower.call("POST", "/v1/operations", body))[0] == 200


def operations_of(client_id: str, sequence: int, value: str) -> dict[str, Any]:
    many = [put(sequence, "a", value)]
    return {"client_id": client_id, "epoch": 1, "first_incomplete": max(1, sequence - 8), "operations": many}


def _at(cluster: Stalled, name: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(base_url=cluster.settings[name].address.http)


async def test_readiness_is_told_within_half_a_second_whoever_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(one_node(tmp_path, answer_ms_max=600_000)) as (api, node):

        async def never(*, timeout_s: float) -> int:
            assert timeout_s <= 0.5
            await asyncio.sleep(timeout_s)
            raise Timeout("the read", timeout_s, outcome="not_applied")

        monkeypatch.setattr(node.replica, "read_index", never)
        async with asyncio.timeout(60):
            assert_problem(await api.call("GET", "/readyz"), "NOT_READY")


def test_status_shows_a_stall(capsys: pytest.CaptureFixture[str]) -> None:
    state = {"node": "n1", "role": "leader", "term": 1, "commit_index": 1, "applied_index": 1, "commit": 1}
    state |= {"version": "0", "leader": "n1", "stalled": "n1 leads and has committed nothing for 4 s: why"}
    member = {"id": "n1", "http": "http://127.0.0.1:1", "peer": "127.0.0.1:2", "role": "leader", "match": 1}
    state["members"] = [member]
    cli._show(state, {"n1": state}, {"n1": state})
    shown = capsys.readouterr()
    assert "leader, commits nothing" in shown.out
    assert "has committed nothing for 4 s: why" in shown.err
