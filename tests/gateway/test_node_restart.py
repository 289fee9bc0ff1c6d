"""A node that stops and starts again on its files: everything is there, and a retry is a replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, declare, put, sealed, send_range

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> Settings:
    """Settings of one node, the same for each of its lives."""
    http_port, peer_port = free_ports(2)
    return Settings(members=[f"n1=127.0.0.1:{http_port}:{peer_port}"], data_dir=tmp_path / "n1")


@asynccontextmanager
async def life(settings: Settings) -> AsyncIterator[Api]:
    """One life of the node, from a start to an orderly stop."""
    async with running(settings), aiohttp.ClientSession(base_url=settings.address.http) as http:
        async with asyncio.timeout(20):
            while (await http.get("/readyz")).status != 200:
                pass
        yield Api(http)


async def _everything(api: Api, client_id: str) -> dict[str, Any]:
    paths = [
        f"/v1/sessions/{client_id}", "/v1/tables/rows", "/v1/tables/events", "/v1/tables/rows/rows",
        "/v1/tables/events/rows/e2", "/v1/flows", f"/v1/requests/{client_id}/1", f"/v1/requests/{client_id}/7",
        "/v1/flows/f/batches/1", "/v1/flows/f/batches/2",
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for path in paths:
        status, headers, body = await api.call("GET", path)
        assert status == 200, (path, body)
        if isinstance(body, dict):
            body.pop("lease_ms_left", None)
            for flow in body.get("flows", []):
                for consumer in flow["consumers"].values():
                    consumer.pop("lag_ms")
        found[path] = (body, headers.get("ETag"), headers["Oncegate-Commit"])
    return found


async def test_restarted_node_has_everything_and_replays(files: Settings) -> None:
    operations = [
        put(1, "a", {"x": 1}),
        put(2, "a", 2, condition={"absent": True}),
        {"sequence": 3, "op": "increment", "table": "rows", "key": "n", "by": 5},
        {"sequence": 4, "op": "delete", "table": "rows", "key": "gone"},
    ]
    async with life(files) as api:
        await declare(api)
        await declare(api, "events", "stream")
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1, "consumers": ["spark"]})
        client_id = await api.session(lease_ms=600_000)
        results = await api.operate(client_id, *operations)
        ranged = await send_range(api, client_id, 5, ["e1", "e2", "e3"])
        consumer = "/v1/flows/f/consumers/spark"
        _, _, attached = await api.call("POST", f"{consumer}/attach", {"nonce": "one"})
        await api.call("POST", f"{consumer}/cursor", {"batch": 1, "fence": attached["fence"]})
        await api.session("closed-later")
        await api.call("DELETE", "/v1/sessions/0000000000000002?epoch=1")
        await sealed(api, "events")
        before = await _everything(api, client_id)
    for _ in range(2):
        async with life(files) as api:
            assert await _everything(api, client_id) == before
            assert await api.operate(client_id, *operations) == [{**result, "replayed": True} for result in results]
            again = await send_range(api, client_id, 5, ["e1", "e2", "e3"])
            assert again == [{**part, "replayed": True} for part in ranged]
            assert await api.session(lease_ms=600_000) == client_id
            assert (await api.call("POST", f"{consumer}/attach", {"nonce": "one"}))[2] == {"fence": 1, "cursor": 1}
            _, _, moved = await api.call("POST", f"{consumer}/cursor", {"batch": 1, "fence": 1})
            assert moved == {"cursor": 1}
            assert_problem(await api.call("GET", "/v1/sessions/0000000000000002"), "SESSION_EXPIRED")
            assert await _everything(api, client_id) == before
    async with life(files) as api:
        (new,) = await api.operate(client_id, put(8, "a", 9))
        assert (new["status"], new["commit"]) == ("applied", int(before["/v1/flows"][2]) + 1)
        assert await api.session("another") == "0000000000000003", "an id was given out twice"


async def test_open_segment_survives_a_stop_before_its_seal(files: Settings) -> None:
    async with life(files) as api:
        await declare(api)
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 3, "linger_ms": 3_600_000})
        client_id = await api.session()
        await api.operate(client_id, put(1, "a", 1), put(2, "b", 2))
        assert (await api.call("GET", "/v1/flows/f"))[2]["open_items"] == 2
    async with life(files) as api:
        assert (await api.call("GET", "/v1/flows/f"))[2]["open_items"] == 2
        await api.operate(client_id, put(3, "c", 3))
        state = await sealed(api, "f")
        assert (state["last_batch"], state["items"]) == (1, 3)


async def test_time_a_node_is_down_expires_no_session(files: Settings) -> None:
    async with life(files) as api:
        client_id = await api.session(lease_ms=1000)
    await asyncio.sleep(1.5)  # the property is about real time that passes, not about a condition
    async with life(files) as api:
        status, _, state = await api.call("GET", f"/v1/sessions/{client_id}")
        assert status == 200, state
        assert state["lease_ms_left"] > 0


async def test_open_watch_does_not_hold_up_a_stop(files: Settings) -> None:
    async with aiohttp.ClientSession(base_url=files.address.http) as http:
        async with running(files):
            api = Api(http)
            await declare(api, "events", "stream")
            watching = await http.get("/v1/flows/events/watch")
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 4
        watching.close()


async def test_second_node_on_the_same_files_is_refused(files: Settings) -> None:
    async with life(files) as api:
        with pytest.raises(Exception, match="open in another process"):
            async with running(files):
                pytest.fail("two processes would write one journal")
        assert (await api.call("GET", "/readyz"))[0] == 200


async def test_idempotency_keys_are_remembered_across_a_restart(files: Settings) -> None:
    path, key = "/v1/tables/rows/rows/n/increment", {"Idempotency-Key": '"once"'}
    async with life(files) as api:
        await declare(api)
        _, _, first = await api.call("POST", path, {"by": 5}, headers=key)
    async with life(files) as api:
        status, headers, again = await api.call("POST", path, {"by": 5}, headers=key)
        assert (status, again, headers["Idempotent-Replayed"]) == (200, first, "true")
        assert_problem(await api.call("POST", path, {"by": 6}, headers=key), "PAYLOAD_MISMATCH")
