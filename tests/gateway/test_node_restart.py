"""A node on its files: a restart has everything and replays only what is not saved, a retry is a replay.

A state that cannot be saved refuses writes and not reads; a damaged one is not served.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.consensus.ports import DurableState, SavedPoint
from oncegate.gateway.http.server import running
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import durable, state_digest
from oncegate.gateway.node import segment_fetch
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import (
    assert_problem,
    declare,
    one_node,
    operations,
    put,
    sealed,
    send_range,
    serving,
)
from tests.gateway.state_harness import held, ship


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
                    del consumer["lag_ms"], consumer["idle_ms"]  # cluster time goes on
        found[path] = (body, headers.get("ETag"), headers["Oncegate-Commit"])
    return found


async def test_restarted_node_has_everything_and_replays(files: Settings) -> None:
    writes = [
        put(1, "a", {"x": 1}),
        put(2, "a", 2, condition={"absent": True}),
        {"sequence": 3, "op": "increment", "table": "rows", "key": "n", "by": 5},
        {"sequence": 4, "op": "delete", "table": "rows", "key": "gone"},
    ]
    async with serving(files) as (api, _):
        await declare(api)
        await declare(api, "events", "stream")
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 1, "consumers": ["spark"]})
        client_id = await api.session(lease_ms=600_000)
        results = await api.operate(client_id, *writes)
        ranged = await send_range(api, client_id, 5, ["e1", "e2", "e3"])
        consumer = "/v1/flows/f/consumers/spark"
        _, _, attached = await api.call("POST", f"{consumer}/attach", {"nonce": "one"})
        await api.call("POST", f"{consumer}/cursor", {"batch": 1, "fence": attached["fence"]})
        await api.session("closed-later")
        await api.call("DELETE", "/v1/sessions/0000000000000002?epoch=1")
        await sealed(api, "events")
        before = await _everything(api, client_id)
    for _ in range(2):
        async with serving(files) as (api, _):
            assert await _everything(api, client_id) == before
            assert await api.operate(client_id, *writes) == [{**result, "replayed": True} for result in results]
            again = await send_range(api, client_id, 5, ["e1", "e2", "e3"])
            assert again == [{**part, "replayed": True} for part in ranged]
            assert await api.session(lease_ms=600_000) == client_id
            assert (await api.call("POST", f"{consumer}/attach", {"nonce": "one"}))[2] == {"fence": 1, "cursor": 1}
            _, _, moved = await api.call("POST", f"{consumer}/cursor", {"batch": 1, "fence": 1})
            assert moved == {"cursor": 1}
            assert_problem(await api.call("GET", "/v1/sessions/0000000000000002"), "SESSION_EXPIRED")
            assert await _everything(api, client_id) == before
    async with serving(files) as (api, _):
        (new,) = await api.operate(client_id, put(8, "a", 9))
        assert (new["status"], new["commit"]) == ("applied", int(before["/v1/flows"][2]) + 1)
        assert await api.session("another") == "0000000000000003", "an id was given out twice"


async def test_open_segment_survives_a_stop_before_its_seal(files: Settings) -> None:
    async with serving(files) as (api, _):
        await declare(api)
        await api.call("PUT", "/v1/flows/f", {"source": "rows", "max_items": 3, "linger_ms": 3_600_000})
        client_id = await api.session()
        await api.operate(client_id, put(1, "a", 1), put(2, "b", 2))
        assert (await api.call("GET", "/v1/flows/f"))[2]["open_items"] == 2
    async with serving(files) as (api, _):
        assert (await api.call("GET", "/v1/flows/f"))[2]["open_items"] == 2
        await api.operate(client_id, put(3, "c", 3))
        state = await sealed(api, "f")
        assert (state["last_batch"], state["items"]) == (1, 3)


async def test_time_a_node_is_down_expires_no_session(files: Settings) -> None:
    async with serving(files) as (api, _):
        client_id = await api.session(lease_ms=1000)
    await asyncio.sleep(1.5)  # the property is about real time that passes, not about a condition
    async with serving(files) as (api, _):
        status, _, state = await api.call("GET", f"/v1/sessions/{client_id}")
        assert status == 200, state
        assert state["lease_ms_left"] > 0


async def test_open_watch_does_not_hold_up_a_stop(files: Settings) -> None:
    async with aiohttp.ClientSession(base_url=files.address.http) as http:
        async with running(files):
            await declare(Api(http), "events", "stream")
            watching = await http.get("/v1/flows/events/watch")
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 4
        watching.close()


async def test_second_node_on_the_same_files_is_refused(files: Settings) -> None:
    async with serving(files) as (api, _):
        with pytest.raises(Exception, match="open in another process"):
            async with running(files):
                pytest.fail("two processes would write one journal")
        assert (await api.call("GET", "/readyz"))[0] == 200


async def test_idempotency_keys_are_remembered_across_a_restart(files: Settings) -> None:
    path, key = "/v1/tables/rows/rows/n/increment", {"Idempotency-Key": '"once"'}
    async with serving(files) as (api, _):
        await declare(api)
        _, _, first = await api.call("POST", path, {"by": 5}, headers=key)
    async with serving(files) as (api, _):
        status, headers, again = await api.call("POST", path, {"by": 5}, headers=key)
        assert (status, again, headers["Idempotent-Replayed"]) == (200, first, "true")
        assert_problem(await api.call("POST", path, {"by": 6}, headers=key), "PAYLOAD_MISMATCH")


async def _save(node: Node) -> SavedPoint:
    status = node.replica.status()
    point = SavedPoint(status.applied_index, status.term, b"")
    node.state.begin_save(point)
    assert await asyncio.to_thread(node.state.wait_saved, 20)
    assert node.state.saved == point
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
    async with serving(files) as (api, node):
        assert isinstance(node.state, DurableState)
        assert node.state.saved is None
        client_id = await _work(api)
        point = await _save(node)
        await api.operate(client_id, {"sequence": 7, "op": "delete", "table": "rows", "key": "gone"}, put(8, "c", 3))
        status, _, text = await api.call("GET", "/metrics")
        assert status == 200
        assert f"oncegate_state_saved_index {float(point.index)}" in text.decode()
    replayed: list[int] = []

    def noted(machine: Machine, index: int, term: int, data: bytes) -> list[Any]:
        replayed.append(index)
        return apply(machine, index, term, data)

    monkeypatch.setattr(durable, "apply", noted)
    async with serving(files) as (api, _):
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
        async with serving(files) as (api, node):
            client_id = await _work(api)
            node.state.begin_save(SavedPoint(node.replica.status().applied_index, 1, b""))
            monkeypatch.setattr(node.state, "_fresh_bytes_max", 1)
            refused = await api.call("POST", "/v1/operations", operations(client_id, put(9, "d", 1)))
            assert_problem(refused, "OVERLOADED")
            assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 200
            gate.set()
            assert await asyncio.to_thread(node.state.wait_saved, 20)
            assert (await api.operate(client_id, put(9, "d", 1)))[0]["status"] == "applied"


async def test_damaged_state_is_not_served_and_said_where(files: Settings) -> None:
    async with serving(files) as (api, node):
        await _work(api)
        await _save(node)
    (store,) = (files.data_dir / "state").glob("store-*")
    for file in store.glob("*.sst"):
        data = bytearray(file.read_bytes())
        for offset in range(20, len(data) * 3 // 4, 50):
            data[offset] ^= 1
        file.write_bytes(data)
    async with running(files), aiohttp.ClientSession(base_url=files.address.http) as http:
        for path in ("/readyz", "/v1/tables/rows/rows/a?consistency=stale", "/v1/flows"):
            refusal = assert_problem(await Api(http).call("GET", path), "NOT_READY")
            assert f"state/{store.name}" in refusal["detail"]


async def test_installed_snapshot_is_served_at_once_and_its_batches_are_asked_for(
    files: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_fetch, "ENSURE_TIMEOUT_S", 0.5)
    async with serving(files) as (api, node):
        await _work(api)
        await _save(node)
        async with serving(one_node(tmp_path / "other")) as (_, follower):
            # Its log would begin anew with the state; here only the state and its readers are looked at.
            follower.replica._engine._saving = None  # type: ignore[union-attr]
            waiting = asyncio.create_task(follower.reads.reach("session", node.machine.commit))
            sink = await asyncio.to_thread(ship, node.state, follower.state)
            sink.install()
            await waiting
            assert state_digest(follower.machine) == state_digest(node.machine)
            assert (await follower.reads.row("rows", "a")).value == b'{"x":1}'
            await until(lambda: follower.fetcher.missing, 60, "the follower misses batches")
            with pytest.raises(OncegateError) as refused:
                await asyncio.wait_for(follower.reads.batch("events", 1), 15)
            assert refused.value.code is Code.NOT_FOUND
            follower.store.put("events", 1, node.store.get("events", 1))
            assert await follower.reads.batch("events", 1) == await node.reads.batch("events", 1)


async def test_watch_of_a_table_that_is_dropped_right_behind_an_installed_snapshot_is_woken(
    files: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(files) as (api, node):
        await declare(api)
        await declare(api, "more")
        await _save(node)
        async with serving(one_node(tmp_path / "other")) as (other, follower):
            follower.replica._engine._saving = None  # type: ignore[union-attr]
            await declare(other)
            # It knows one table less than the snapshot has: as many as there are behind the drop.
            (await asyncio.to_thread(ship, node.state, follower.state)).install()
            follower.watching.open("more", "", follower.machine.commit, "", exact=False)
            told: list[set[str]] = []
            monkeypatch.setattr(follower.watching, "dropped", lambda tables: told.append(set(tables)))
            drop = c.DropTable("more", follower.machine.tables["more"].incarnation, force=True)
            follower.state.apply(10_000, 5, c.encode_entry(follower.machine.time_ms + 1, [drop]))
            assert told == [{"rows"}]
