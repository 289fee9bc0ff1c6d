"""``/v1/flows``: declared once, cut into batches that never change, watched, consumed with a fence."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import google_crc32c
import pyarrow as pa

from tests.conftest import Api
from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    assert_problem,
    batch_lines,
    operations,
    put,
    range_headers,
    sealed,
)

BY_TWO = {"source": "rows", "max_items": 2, "linger_ms": 3_600_000}


async def _flow(api: Api, name: str = "f", **declaration: Any) -> Any:
    status, _, state = await api.call("PUT", f"/v1/flows/{name}", {**BY_TWO, **declaration})
    assert status == 200, state
    return state


async def _write(api: Api, client_id: str, first: int, last: int) -> None:
    await api.operate(client_id, *(put(i, f"k{i}", {"n": i}) for i in range(first, last + 1)), first_incomplete=first)


async def test_flow_is_declared_described_and_listed(api: Api, client_id: str) -> None:
    made = await _flow(api, consumers=["spark"], retention_ms=1000)
    counts = {"first_batch": 1, "last_batch": 0, "items": 0, "open_items": 0, "watermark": 0, "retained_bytes": 0}
    bounds = {
        "retention_ms": 1000,
        "retention_bytes": 0,
        "event_time": "",
        "event_ms": 0,
        "shed_lag_bytes": 0,
        "shed_level": 0,
        "shed_items": 0,
        "consumer_expiry_ms": 0,
        "max_items": 2,
        "max_bytes": 2**23,
        "linger_ms": 3_600_000,
    }
    lags = ("lag_batches", "lag_items", "lag_ms", "lag_bytes", "event_lag_ms")
    zero = dict.fromkeys(("cursor", "fence", "replays", "idle_ms", "event_ms", *lags), 0)
    spark = {**zero, "required": True, "attached": False, "expired": False, "trend": "unknown"}
    _, _, cluster = await api.call("GET", "/v1/cluster")
    about = {"flow": "f", "source": "rows", "target": None, "version": 1, "held": ""}
    about["cluster_identity"] = cluster["identity"]
    assert made == {**about, **counts, **bounds, "consumers": {"spark": spark}}
    again = await _flow(api, consumers=["spark"], retention_ms=1000)
    again["consumers"]["spark"]["idle_ms"] = 0  # cluster time went on
    assert again == made
    spark["trend"] = "ok"
    described = (await api.call("GET", "/v1/flows/f"))[2]
    described["consumers"]["spark"]["idle_ms"] = 0
    assert described == {**made, "consumers": {"spark": spark}}
    _, _, listed = await api.call("GET", "/v1/flows")
    assert [flow["flow"] for flow in listed["flows"]] == ["events", "f"], "a stream table has a flow of its own name"
    assert listed["flows"][1]["consumers"]["spark"]["trend"] == "ok"
    await _write(api, client_id, 1, 5)
    _, _, state = await api.call("GET", "/v1/flows/f")
    assert (state["first_batch"], state["last_batch"], state["items"], state["open_items"]) == (1, 2, 4, 1)
    assert (state["consumers"]["spark"]["lag_batches"], state["consumers"]["spark"]["lag_items"]) == (2, 4)


async def test_impossible_declarations_cost_no_log_entry(api: Api, client_id: str) -> None:
    _, _, before = await api.call("GET", "/v1/cluster")
    impossible: list[Any] = [
        {}, [], "f", {"source": 1}, {"source": ""}, {**BY_TWO, "max_items": 0}, {**BY_TWO, "max_items": "2"},
        {**BY_TWO, "max_bytes": 2**60}, {**BY_TWO, "linger_ms": -1}, {**BY_TWO, "retention_ms": 10**18},
        {**BY_TWO, "consumers": "spark"}, {**BY_TWO, "consumers": ["a", "a"]}, {**BY_TWO, "consumers": ["A"]},
        {**BY_TWO, "name": "other"}, {**BY_TWO, "max_itmes": 5}, {**BY_TWO, "target": ""},
    ]  # fmt: skip
    for declaration in impossible:
        assert_problem(await api.call("PUT", "/v1/flows/f", declaration), "BAD_REQUEST")
    assert_problem(await api.call("PUT", "/v1/flows/F", BY_TWO), "BAD_REQUEST")
    too_long = {**BY_TWO, "target": "x" * 20_000}
    assert_problem(await api.call("PUT", "/v1/flows/f", too_long), "PAYLOAD_TOO_LARGE")
    _, _, after = await api.call("GET", "/v1/cluster")
    assert after["log_index"] == before["log_index"]
    assert_problem(await api.call("PUT", "/v1/flows/f", {**BY_TWO, "source": "nowhere"}), "NOT_FOUND")
    assert_problem(await api.call("GET", "/v1/flows/f"), "NOT_FOUND")


async def test_batch_is_immutable_and_named_by_its_checksum(api: Api, client_id: str) -> None:
    await _flow(api)
    await _write(api, client_id, 1, 2)
    status, headers, payload = await api.call("GET", "/v1/flows/f/batches/1")
    assert status == 200
    assert headers["Content-Type"] == ARROW
    assert headers["ETag"] == f'"crc32c-{google_crc32c.value(payload):08x}"'
    assert "immutable" in headers["Cache-Control"]
    assert int(headers["Oncegate-Commit"]) >= 2
    table = pa.ipc.open_stream(payload).read_all()
    assert table.schema.metadata[b"oncegate.flow"] == b"f"
    assert table.column_names == ["commit", "key", "value", "time_ms", "client_id", "sequence", "traceparent"]
    assert table.column("key").to_pylist() == ["k1", "k2"]
    assert table.column("commit").to_pylist() == [1, 2]
    assert table.column("value").to_pylist() == ['{"n":1}', '{"n":2}']
    assert table.column("client_id").to_pylist() == [int(client_id, 16)] * 2
    await _write(api, client_id, 3, 8)
    await api.operate(client_id, {"sequence": 9, "op": "delete", "table": "rows", "key": "k1"})
    assert (await api.call("GET", "/v1/flows/f/batches/1"))[2] == payload
    status, unchanged, body = await api.call("GET", "/v1/flows/f/batches/1", headers={"If-None-Match": headers["ETag"]})
    assert (status, body, unchanged["ETag"]) == (304, b"", headers["ETag"])


async def test_items_carry_the_trace_context_of_the_request_that_applied_them(api: Api, client_id: str) -> None:
    await _flow(api, max_items=4)
    first, other, ranged, keyed = (f"00-{number:032x}-b7ad6b7169203331-01" for number in range(1, 5))

    async def operate(trace: str | None, *puts: Any) -> None:
        headers = {} if trace is None else {"traceparent": trace}
        assert (await api.call("POST", "/v1/operations", operations(client_id, *puts), headers=headers))[0] == 200

    await operate(first, put(1, "a", 1), put(2, "b", 1))
    await operate(other, put(2, "b", 1))
    await operate(None, put(3, "c", 1))
    await api.call("PUT", "/v1/tables/rows/rows/k", 1, headers={"Idempotency-Key": '"k"', "traceparent": keyed})
    lines = await batch_lines(api, "f")
    assert [line.get("traceparent") for line in lines] == [first, first, None, keyed], "a replay is no item"
    _, _, payload = await api.call("GET", "/v1/flows/f/batches/1")
    assert pa.ipc.open_stream(payload).read_all().column("traceparent").to_pylist() == [first, first, None, keyed]
    headers = {**range_headers(client_id, 10, JSON_LINES), "traceparent": ranged}
    body = b'{"key":"a","value":1}\n{"key":"b","value":2}\n'
    assert (await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers))[0] == 200
    await operate(other, put(12, "c", 3, "events"))
    last = (await sealed(api, "events"))["last_batch"]
    lines = [line for number in range(1, last + 1) for line in await batch_lines(api, "events", number)]
    assert [line.get("traceparent") for line in lines] == [ranged, ranged, other]


async def test_batch_not_sealed_is_not_found_and_batch_dropped_is_gone(api: Api, client_id: str) -> None:
    await _flow(api, consumers=["spark"], retention_ms=0)
    await _write(api, client_id, 1, 6)
    assert_problem(await api.call("GET", "/v1/flows/f/batches/4"), "NOT_FOUND")
    assert_problem(await api.call("GET", "/v1/flows/none/batches/1"), "NOT_FOUND")
    for number in ("0", "-1", "x", "1.0", str(2**53)):
        assert_problem(await api.call("GET", f"/v1/flows/f/batches/{number}"), "BAD_REQUEST")
    consumer = "/v1/flows/f/consumers/spark"
    _, _, attached = await api.call("POST", f"{consumer}/attach", {"nonce": "n"})
    await api.call("POST", f"{consumer}/cursor", {"batch": 2, "fence": attached["fence"]})
    state = (await api.call("GET", "/v1/flows/f"))[2]
    assert (state["first_batch"], state["watermark"]) == (3, 2)
    assert_problem(await api.call("GET", "/v1/flows/f/batches/2"), "RETENTION_EXCEEDED")
    assert await _events(api, 1, "/v1/flows/f/watch?after=0") == [(3, 3)], "told a batch that was dropped"
    assert (await api.call("GET", "/v1/flows/f/batches/3"))[0] == 200
    back = {"batch": 0, "fence": attached["fence"], "replay": True}
    assert_problem(await api.call("POST", f"{consumer}/cursor", back), "RETENTION_EXCEEDED")


async def test_impossible_moves_and_attaches_are_refused(api: Api, client_id: str) -> None:
    await _flow(api)
    consumer = "/v1/flows/f/consumers/c"
    await api.call("POST", f"{consumer}/attach", {"nonce": "n"})
    attaches: list[Any] = [{}, {"nonce": ""}, {"nonce": 5}, {"nonce": "x" * 65}, []]
    for body in attaches:
        assert_problem(await api.call("POST", f"{consumer}/attach", body), "BAD_REQUEST")
    for body in ({}, {"batch": -1, "fence": 1}, {"batch": 0, "fence": 0}, {"batch": 0, "fence": 1, "replay": 1}):
        assert_problem(await api.call("POST", f"{consumer}/cursor", body), "BAD_REQUEST")
    for path in ("/v1/flows/none/consumers/c", "/v1/flows/f/consumers/never"):
        assert_problem(await api.call("POST", f"{path}/cursor", {"batch": 0, "fence": 1}), "NOT_FOUND")
    assert_problem(await api.call("POST", "/v1/flows/none/consumers/c/attach", {"nonce": "n"}), "NOT_FOUND")
    assert_problem(await api.call("POST", "/v1/flows/f/consumers/C/attach", {"nonce": "n"}), "BAD_REQUEST")


async def _events(api: Api, count: int, path: str = "/v1/flows/f/watch", **headers: str) -> list[tuple[int, int]]:
    """Return (id, batch) of the first ``count`` events."""
    found: list[tuple[int, int]] = []
    async with api._http.get(path, headers=headers) as stream:
        assert stream.content_type == "text/event-stream"
        assert "Oncegate-Commit" in stream.headers
        while len(found) < count:
            event = (await asyncio.wait_for(stream.content.readuntil(b"\n\n"), 20)).decode()
            if event.startswith(":"):
                continue
            fields = dict(line.split(": ", 1) for line in event.strip().splitlines())
            assert fields["event"] == "sealed"
            found.append((int(fields["id"]), json.loads(fields["data"])["batch"]))
    return found


async def test_watcher_is_told_each_batch_once_and_resumes_where_it_stopped(api: Api, client_id: str) -> None:
    await _flow(api)
    await _write(api, client_id, 1, 6)
    assert await _events(api, 3, "/v1/flows/f/watch?after=0") == [(1, 1), (2, 2), (3, 3)]
    assert await _events(api, 2, **{"Last-Event-ID": "1"}) == [(2, 2), (3, 3)]
    async with api._http.get("/v1/flows/f/watch") as stream:  # from now on
        for batch in range(4, 24):
            await _write(api, client_id, 2 * batch - 1, 2 * batch)
            event = await asyncio.wait_for(stream.content.readuntil(b"\n\n"), 5)
            assert event.startswith(b"id: %d\n" % batch)
    for query in ("after=x", "after=-1"):
        assert_problem(await api.call("GET", f"/v1/flows/f/watch?{query}"), "BAD_REQUEST")
    assert_problem(await api.call("GET", "/v1/flows/f/watch", headers={"Last-Event-ID": "x"}), "BAD_REQUEST")
    assert_problem(await api.call("GET", "/v1/flows/none/watch"), "NOT_FOUND")
    assert (await api.call("HEAD", "/v1/flows/f/watch"))[0] == 405
