"""Feature levels: nothing is ordered that a member may not know, and an older build does not come back unseen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from oncegate.consensus.errors import CallFailed, PeerUnavailable
from oncegate.consensus.replica.replica import Replica
from oncegate.gateway.http.server import running
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import levels
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.machine.state.errors import StateVersionUnknown
from oncegate.gateway.node import levels as node_levels
from oncegate.gateway.node.levels import ASK_S, FOUNDING_S, LEVELS, READY_AFTER_S, Founding, check_all_know, serve
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, one_node, serving
from tests.gateway.state_harness import Fed
from tests.gateway.three_nodes import three

LATER = levels.NEWEST + 1


@pytest.fixture(autouse=True)
def _later_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """This build knows one more level, which brought a command."""
    monkeypatch.setattr(levels, "NEWEST", LATER)
    monkeypatch.setitem(levels.NEEDS, c.DropTable, LATER)


@asynccontextmanager
async def as_before(settings: Settings) -> AsyncIterator[Api]:
    """Run a node of a cluster that was founded before clusters began at their newest level."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Founding, "look", lambda self, loop: True)
        patch.setattr(Founding, "begin", lambda self, now_s: None)
        async with serving(settings) as (api, node):
            await until(lambda: bool(node.machine.identity), 60, "the cluster has its identity")
            yield api


async def test_new_cluster_begins_at_the_newest_level_and_one_that_was_there_stays(tmp_path: Path) -> None:
    async with serving(one_node(tmp_path / "new")) as (api, node):
        await until(lambda: bool(node.machine.identity), 60, "the cluster has its identity")
        assert node.machine.level == levels.NEWEST
    there = one_node(tmp_path / "there")
    async with as_before(there) as api:
        await api.call("PUT", "/v1/tables/t", {"kind": "resident"})
    async with serving(there) as (api, node):
        assert (await api.call("GET", "/v1/cluster"))[2]["level"] == levels.FIRST
        assert node.founding.look(asyncio.get_running_loop()), "nothing is asked"
        assert node.machine.level == levels.FIRST


class Clock:
    """A loop whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.create_task = asyncio.get_running_loop().create_task

    def time(self) -> float:
        return self.now


async def test_new_cluster_is_raised_once_the_last_member_has_come(caplog: pytest.LogCaptureFixture) -> None:
    peers, proposed = Peers(n2=serve(), n3=PeerUnavailable("n3", "not up", outcome="not_applied")), list[Any]()
    machine, clock = Machine(), Clock()
    loop = cast(asyncio.AbstractEventLoop, clock)
    founding = Founding(cast(Replica, peers), machine, lambda: ["n2", "n3"], proposed.append)
    assert not founding.look(loop), "the identity waits for the answers"
    for _ in range(5):
        await asyncio.sleep(0)
    assert founding.look(loop), "but not for a member that is not up"
    apply(machine, 1, 1, c.encode_entry(0, [c.Identify("1" * 32)]))
    peers.answers["n3"] = serve()
    assert founding.look(loop)
    assert founding._asking is None, "not so soon again"
    clock.now = ASK_S
    founding.look(loop)
    for _ in range(5):
        await asyncio.sleep(0)
    assert proposed == [c.RaiseLevel(levels.NEWEST)]
    apply(machine, 2, 1, c.encode_entry(0, proposed))
    clock.now += ASK_S
    assert founding.look(loop)
    assert founding._asking is None


def test_founding_may_be_under_way_for_as_long_as_a_node_with_an_empty_state_waits_for_the_last_member() -> None:
    machine = Machine()
    founding = Founding(cast(Replica, Peers()), machine, list, [].append)
    founding.begin(100.0)
    apply(machine, 1, 1, c.encode_entry(0, [c.Identify("1" * 32), c.DeclareTable("t", "resident", 2**20)]))
    assert founding.is_under_way(100.0 + FOUNDING_S - 1), "the leader may have asked before the last member came"
    assert not founding.is_under_way(100.0 + FOUNDING_S)
    restarted = Founding(cast(Replica, Peers()), machine, list, [].append)
    restarted.begin(200.0)
    assert not restarted.is_under_way(200.0), "the cluster was there before"
    founding.begin(300.0)
    apply(machine, 2, 1, c.encode_entry(0, [c.RaiseLevel(levels.NEWEST)]))
    assert not founding.is_under_way(300.0)


async def test_node_of_a_new_cluster_is_not_ready_before_everything_may_be_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def asked(*_: Any) -> None:
        await answered.wait()

    monkeypatch.setattr(node_levels, "check_all_know", asked)
    monkeypatch.setattr(node_levels, "READY_AFTER_S", 600.0)
    settings = one_node(tmp_path)
    async with running(settings) as node, aiohttp.ClientSession(base_url=settings.address.http) as http:
        api = Api(http)
        await until(lambda: node.founding._asking is not None, 60, "the members are asked")
        assert "founded" in assert_problem(await api.call("GET", "/readyz"), "NOT_READY")["detail"]
        answered.set()
        async with asyncio.timeout(60):
            while (await api.call("GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.01)
        assert (await api.call("PUT", "/v1/tables/t", {"kind": "resident"}))[0] == 200
        incarnation = node.machine.tables["t"].incarnation
        assert (await api.call("DELETE", f"/v1/tables/t?incarnation={incarnation}"))[0] == 200, (
            "what came with the newest level"
        )


def test_only_a_cluster_in_which_nobody_has_written_waits_for_its_level_and_not_for_long() -> None:
    machine = Machine()
    founding = Founding(cast(Replica, Peers()), machine, list, [].append)
    assert not founding.is_awaited(0.0), "it has not begun"
    founding.begin(100.0)
    apply(machine, 1, 1, c.encode_entry(0, [c.Identify("1" * 32)]))
    assert founding.is_awaited(100.0), "the last member may come yet"
    assert not founding.is_awaited(100.0 + READY_AFTER_S)
    apply(machine, 2, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 2**20)]))
    assert not founding.is_awaited(100.0)


@pytest.mark.parametrize(
    "there", [c.DeclareTable("t", "resident", 1 << 20), c.Identify("1" * 32)], ids=["a table", "an identity"]
)
async def test_cluster_that_has_anything_is_not_new_and_nobody_is_asked(there: c.Command) -> None:
    machine, proposed = Machine(), list[Any]()
    apply(machine, 1, 1, c.encode_entry(0, [there]))
    founding = Founding(cast(Replica, Peers(n2=serve())), machine, lambda: ["n2"], proposed.append)
    assert founding.look(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert (founding._asking, proposed) == (None, [])


def test_command_of_the_level_to_come_is_to_be_sent_again_while_the_cluster_is_founded() -> None:
    command = c.DropTable("t", 1, force=False)
    with pytest.raises(OncegateError) as early:
        levels.check_level(command, levels.FIRST, founded=False)
    assert (early.value.code, early.value.retryable) == (Code.NOT_READY, True)
    with pytest.raises(OncegateError) as late:
        levels.check_level(command, levels.FIRST)
    assert (late.value.code, late.value.retryable) == (Code.CONFLICT, False)
    levels.check_level(command, levels.NEWEST)


async def test_command_above_the_level_is_refused_until_the_level_is_raised(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with as_before(files) as api:
        await _raised(api, monkeypatch)


async def _raised(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(levels.NEEDS, c.DeclareFlow, 2)
    await api.call("PUT", "/v1/tables/t", {"kind": "resident"})
    before = (await api.call("GET", "/v1/cluster"))[2]
    assert (before["level"], before["level_known"]) == (1, levels.NEWEST)
    refused = assert_problem(await api.call("PUT", "/v1/flows/f", {"source": "t"}), "CONFLICT")
    assert "level 2" in refused["detail"]
    assert (await api.call("GET", "/v1/cluster"))[2]["log_index"] == before["log_index"], "nothing was proposed"
    for _ in range(2):
        assert (await api.call("POST", "/v1/cluster/level", {"level": 2}))[2] == {"level": 2}
    assert (await api.call("PUT", "/v1/flows/f", {"source": "t"}))[0] == 200
    assert (await api.call("POST", "/v1/cluster/level", {"level": 1}))[2] == {"level": 2}, "it never falls"
    for unknown in (0, levels.NEWEST + 1):
        assert_problem(await api.call("POST", "/v1/cluster/level", {"level": unknown}), "BAD_REQUEST")


class Peers:
    """Members as a replica reaches them: each answers, refuses or is away."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    async def call(self, node_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        answer = self.answers[node_id]
        if isinstance(answer, Exception):
            raise answer
        return cast(bytes, answer)


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        (CallFailed("n3", "unknown call"), "n3 (an earlier build)"),
        (PeerUnavailable("n3", "not connected", outcome="not_applied"), "n3 (no answer)"),
        (b"\x92\x01\x01", "n3 (1)"),
        (b"", "n3 (no answer)"),
    ],
)
async def test_member_that_does_not_know_the_level_or_does_not_answer_is_named(behind: Any, said: str) -> None:
    peers = Peers(n2=serve(), n3=behind)
    with pytest.raises(OncegateError, match="CONFLICT") as refused:
        await check_all_know(2, cast(Replica, peers), lambda: ["n2", "n3"])
    assert refused.value.detail.endswith(f": {said}")
    await check_all_know(2, cast(Replica, peers), lambda: ["n2"])


def test_state_says_its_level(tmp_path: Path) -> None:
    fed = Fed(tmp_path)
    fed.do(c.RaiseLevel(2))
    fed.save()
    again = fed.reopened()
    assert again.machine.level == 2
    again.close()


def test_build_that_does_not_know_the_level_stops_at_the_entry_and_refuses_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = Fed(tmp_path)
    with pytest.raises(InvariantViolation, match="start this node with the build of the others"):
        fed.do(c.RaiseLevel(levels.NEWEST + 1))
    known = levels.NEWEST
    monkeypatch.setattr(levels, "NEWEST", known + 1)
    fed.do(c.RaiseLevel(known + 1))
    fed.save()
    fed.close()
    monkeypatch.setattr(levels, "NEWEST", known)
    with pytest.raises(
        StateVersionUnknown,
        match=f"feature level {known + 1}; this build reads {known}: start the build that wrote it",
    ):
        MachineState(tmp_path)


async def test_level_is_raised_when_every_other_member_has_been_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three(tmp_path) as cluster:
        leader = await cluster.leader()
        behind = next(node for name, node in cluster.nodes.items() if name != leader)
        before = behind._serve_call

        async def earlier(peer: str, payload: bytes) -> bytes:
            if payload[:1] == LEVELS:
                raise OncegateError(Code.BAD_REQUEST, f"{peer} sent an unknown call")
            return await before(peer, payload)

        monkeypatch.setattr(behind.replica._calls, "_on_call", earlier)
        path = f"{cluster.url(leader)}/v1/cluster/level"
        refused = assert_problem(await Api(cluster.http).call("POST", path, {}), "CONFLICT")
        assert f"{behind.settings.node} (an earlier build)" in refused["detail"]
