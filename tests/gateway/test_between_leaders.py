"""Leadership moves, nodes restart, members come and go: callers of the SDK wait a little, and see no error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncegate.gateway.client import Client, Session
from oncegate.gateway.client.courier import Courier
from oncegate.gateway.local.blocking_http import send_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.node import between_leaders
from oncegate.gateway.node.between_leaders import BetweenLeaders, Lead
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.three_nodes import three

WORKERS = 8
REFUSAL = OncegateError(Code.NO_LEADER, retry_after_ms=50)


class Load:
    """Increments and linearizable reads through the SDK until it ends; an error of either fails the test."""

    def __init__(self, client: Client, session: Session) -> None:
        self._client = client
        self._session = session
        self._running = True
        self.done = 0

    async def worker(self, number: int) -> None:
        while self._running:
            await self._session.increment("t", "n")
            self.done += 1
            if number % 2:
                row = await self._client.get("t", "n")
                assert row is not None

    async def progress(self, count: int = 50) -> None:
        async with asyncio.timeout(30):
            wanted = self.done + count
            while self.done < wanted:
                await asyncio.sleep(0.005)

    def end(self) -> None:
        self._running = False


@asynccontextmanager
async def loaded(endpoints: list[str]) -> AsyncIterator[Load]:
    """Load a cluster; at the end each increment counts once."""
    async with Client(endpoints, timeout_s=30) as client:
        await client.declare_table("t")
        async with client.session() as session:
            load = Load(client, session)
            async with asyncio.TaskGroup() as group:
                for number in range(WORKERS):
                    group.create_task(load.worker(number))
                await load.progress()
                try:
                    yield load
                    await load.progress()
                finally:
                    load.end()
        row = await client.get("t", "n")
        assert row is not None
        assert row.value == load.done


async def test_leader_move_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals: list[str] = []
    refusal = Courier._refusal

    def noted(*arguments: Any) -> Exception:
        refusals.append(str(arguments[3:]))
        return refusal(*arguments)

    monkeypatch.setattr(Courier, "_refusal", noted)
    async with three(tmp_path) as cluster, loaded([cluster.url(name) for name in cluster.nodes]) as load:
        for _ in range(4):
            leader = await cluster.leader()
            status, _, _ = await Api(cluster.http).call("POST", f"{cluster.url(leader)}/v1/cluster/leader", {})
            assert status == 200
            await load.progress()
    assert not refusals, "each caller would have gone away, paused, and come back later than the next leader"


async def test_rolling_restart_and_a_member_that_comes_and_goes_cost_callers_no_error(tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        cluster.start()
        cluster.wait_ready()
        async with loaded(cluster.endpoints) as load:
            new = cluster.expand("n4")
            cluster.start("n4")
            members = f"{cluster.endpoints[0]}/v1/cluster/members"
            body: dict[str, object] = {
                "id": "n4", "host": new.host, "http_port": new.http_port, "peer_port": new.peer_port
            }  # fmt: skip
            await asyncio.to_thread(send_json, "POST", members, body, 70)
            await load.progress()
            for node_id in ("n1", "n2", "n3"):
                assert await asyncio.to_thread(cluster.stop, node_id), "it ended by itself"
                await load.progress()
                cluster.start(node_id)
                await asyncio.to_thread(cluster.wait_ready, node_id)
            await asyncio.to_thread(send_json, "POST", f"{cluster.endpoints[0]}/v1/cluster/leader", {"to": "n4"}, 30)
            await load.progress()
            await asyncio.to_thread(send_json, "DELETE", f"{members}/n4", None, 30)
            await load.progress()
        assert cluster.stop()


async def test_what_is_held_is_sent_to_the_next_leader_and_refused_when_there_is_none_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 50)
    sent: list[str] = []
    failed = asyncio.Queue[str]()
    between: BetweenLeaders[str] = BetweenLeaders(
        asyncio.get_running_loop(), sent.append, lambda one, refusal: failed.put_nowait(one)
    )
    between.hold("a", REFUSAL)
    between.hold("b", REFUSAL)
    assert (sent, failed.empty()) == ([], True)
    between.led()
    assert sent == ["a", "b"]
    between.hold("c", REFUSAL)
    assert await failed.get() == "c"
    between.hold("d", REFUSAL)
    assert failed.get_nowait() == "d", "nobody waits again for a leader that has been missing for long"
    between.led()
    between.hold("e", REFUSAL)
    assert failed.empty(), "the next time is another time"
    between.led()
    assert sent == ["a", "b", "e"]


async def test_what_was_held_is_sent_once_however_often_the_lead_moves() -> None:
    sent, refused = list[str](), list[str]()
    between = BetweenLeaders[str](asyncio.get_running_loop(), sent.append, lambda held, _: refused.append(held))
    for held in "ab":
        between.hold(held, OncegateError(Code.NO_LEADER))
        between.led()
        between.led()
    assert (sent, refused) == (["a", "b"], [])


async def test_read_that_begins_when_the_lead_has_been_missing_for_long_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    lead, now_s = Lead(), asyncio.get_running_loop().time()
    lead.change(known=False)
    lead._missed_at_s = now_s - 601
    async with asyncio.timeout(60):
        assert not await lead.wait(lead.moved, now_s)


@pytest.mark.parametrize("known", [True, False])
async def test_read_waits_for_a_leader_until_its_own_time_is_over(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_leaders, "HOLD_MS", 600_000)
    lead, now_s = Lead(), asyncio.get_running_loop().time()
    lead.change(known=known)
    async with asyncio.timeout(60):
        assert not await lead.wait(lead.moved, now_s, now_s + 0.01)
    waits = asyncio.ensure_future(lead.wait(lead.moved, now_s, now_s + 600))
    await asyncio.sleep(0)
    lead.change(known=True)
    async with asyncio.timeout(60):
        assert await waits
