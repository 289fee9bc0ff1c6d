"""A node on its saved state: restarts replay nothing that is saved, and a full disk refuses writes, not reads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from oncegate.consensus.ports import DurableState, SavedPoint
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import durable, state_digest
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import declare, put, sealed, send_range
from tests.gateway.state_harness import held, ship
from tests.gateway.test_node_restart import life

if TYPE_CHECKING:
    from oncegate.gateway.node.node import Node


@pytest.fixture
def files(tmp_path: Path) -> Settings:
    http_port, peer_port = free_ports(2)
    return Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "n1")


async def _save(node: Node) -> SavedPoint:
    status = node.replica.status()
    point = SavedPoint(status.applied_index, status.term, b"")
    node.begin_save(point)
    assert await asyncio.to_thread(node.state.wait_saved, 20)
    assert node.saved == point
    return point


async def _work(api: Api) -> str:
    await declare(api)
    await declare(api, "events", "stream")
    await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1})
    client_id = await api.session(lease_ms=600_000)
    await api.operate(client_id, put(1, "a", {"x": 1}), put(2, "b", 2), put(3, "gone", 2))
    await send_range(api, client_id, 4, ["e1", "e2", "e3"])
    await sealed(api, "events")
    return client_id


async def test_node_is_a_durable_state_and_replays_only_what_came_after_a_save(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
        assert isinstance(node, DurableState)
        assert node.saved is None
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status != 200:
                pass
        api = Api(http)
        client_id = await _work(api)
        point = await _save(node)
        await api.operate(client_id, {"sequence": 7, "op": "delete", "table": "rows", "key": "gone"}, put(8, "c", 3))
        status, _, text = await api.call("GET", "/metrics")
        assert status == 200
        assert f"oncegate_state_saved_index {float(point.index)}" in text.decode()
    replayed: list[int] = []
    apply = Machine.apply

    def noted(machine: Machine, index: int, term: int, data: bytes) -> list[Any]:
        replayed.append(index)
        return apply(machine, index, term, data)

    monkeypatch.setattr(Machine, "apply", noted)
    async with life(files) as api:
        assert (await api.call("GET", "/v1/tables/rows/rows/gone"))[0] == 404
        assert (await api.call("GET", "/v1/tables/rows/rows/c"))[2]["value"] == 3
        assert (await api.call("GET", "/v1/tables/events/rows/e2"))[0] == 200
        (again,) = await api.operate(client_id, put(8, "c", 3))
        assert again["replayed"] is True
    assert min(replayed) == point.index + 1


async def test_node_refuses_writes_and_answers_reads_while_its_state_cannot_be_saved(
    files: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "RETRY_S", 0.01)
    with held(monkeypatch) as gate:
        async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
            async with asyncio.timeout(20):
                while (await http.get("/readyz")).status != 200:
                    pass
            api = Api(http)
            client_id = await _work(api)
            node.begin_save(SavedPoint(node.replica.status().applied_index, 1, b""))
            monkeypatch.setattr(node.state, "_fresh_bytes_max", 1)
            body = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [put(9, "d", 1)]}
            status, _, problem = await api.call("POST", "/v1/operations", body)
            assert (status, problem["code"]) == (429, "OVERLOADED")
            assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 200
            gate.set()
            assert await asyncio.to_thread(node.state.wait_saved, 20)
            assert (await api.operate(client_id, put(9, "d", 1)))[0]["status"] == "applied"


async def test_damaged_block_is_not_served_and_stops_the_node(files: Settings) -> None:
    async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status != 200:
                pass
        api = Api(http)
        await _work(api)
        await _save(node)
    (store,) = (files.data_dir / "state").glob("store-*")
    for file in store.glob("*.sst"):
        data = bytearray(file.read_bytes())
        for offset in range(20, len(data) * 3 // 4, 50):
            data[offset] ^= 1
        file.write_bytes(data)
    with pytest.raises(Exception, match=str(store)):
        async with running(files):
            pytest.fail("a damaged state is served")


async def test_installed_snapshot_is_served_at_once_and_its_batches_are_asked_for(
    files: Settings, tmp_path: Path
) -> None:
    async with running(files) as node, aiohttp.ClientSession(base_url=files.address.http) as http:
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status != 200:
                pass
        api = Api(http)
        await _work(api)
        await _save(node)
        http_port, peer_port = free_ports(2)
        other = Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "other")
        async with running(other) as follower:
            # Its log would begin anew with the state; here only the state and its readers are looked at.
            follower.replica._engine._saving = None  # type: ignore[union-attr]
            waiting = asyncio.create_task(follower.reads.reach("session", node.machine.commit))
            sink = await asyncio.to_thread(ship, node.state, follower.state)
            sink.install()
            await waiting
            assert state_digest(follower.machine) == state_digest(node.machine)
            assert (await follower.reads.row("rows", "a")).value == b'{"x":1}'
            await until(lambda: follower.fetcher.missing, 20, "the follower misses batches")
            with pytest.raises(OncegateError) as refused:
                await asyncio.wait_for(follower.reads.batch("events", 1), 15)
            assert refused.value.code is Code.NOT_FOUND
            follower.store.put("events", 1, node.store.get("events", 1))
            assert await follower.reads.batch("events", 1) == await node.reads.batch("events", 1)
