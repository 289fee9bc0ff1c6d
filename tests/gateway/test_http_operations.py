"""Writes over HTTP, one by one and in ranges: how verdicts travel, the same bytes at each retry.

What the verdicts are is proved of the machine (:mod:`tests.gateway.test_machine`), of its tables, and by the contract
that node and fake keep (``tests/client/test_contract.py``).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

from tests.conftest import Api
from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    MSGPACK,
    arrow_body,
    assert_problem,
    msgpack_range,
    operations,
    put,
    range_headers,
    sealed,
    send_range,
)

ROW = {"text": "hi", "n": [1, 2.5, None, True]}
ONE_OF_EACH = [
    put(1, "a", ROW),
    put(2, "a", "taken", condition={"absent": True}),
    {"sequence": 3, "op": "increment", "table": "rows", "key": "n", "by": 5},
    {"sequence": 4, "op": "delete", "table": "rows", "key": "a"},
    {"sequence": 5, "op": "get", "table": "rows", "key": "n"},
]


async def test_json_and_msgpack_carry_the_same_shapes(api: Api, client_id: str) -> None:
    request = operations(client_id, *ONE_OF_EACH, put(6, "x", 1, table="nowhere"))
    status, headers, from_json = await api.call("POST", "/v1/operations", request)
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    assert headers["Oncegate-Commit"] == "5"
    assert int(headers["Oncegate-Memory-Ms"]) == from_json["memory_ms"] == 60_000
    assert headers["Oncegate-Leader"].startswith("http://127.0.0.1:")
    results = from_json["results"]
    assert [r["status"] for r in results] == ["applied", "refused", "applied", "applied", "applied", "rejected"]
    assert [r.get("commit") for r in results] == [1, 2, 3, 4, 5, None]
    assert results[0] == {"sequence": 1, "status": "applied", "commit": 1, "version": 1, "replayed": False}
    assert (results[1]["code"], results[1]["version"], results[1]["value"]) == ("CONDITION_FAILED", 1, ROW)
    assert (results[5]["code"], results[5]["outcome"], results[5]["retryable"]) == ("NOT_FOUND", "not_applied", False)

    sent = {"data": msgspec.msgpack.encode(request)}
    status, headers, raw = await api.call("POST", "/v1/operations", **sent, headers={"Content-Type": MSGPACK})
    assert (status, headers["Content-Type"]) == (200, MSGPACK)
    from_msgpack = msgspec.msgpack.decode(raw)
    assert from_msgpack.keys() == from_json.keys() == {"results", "memory_ms"}
    assert from_msgpack["results"] == [*({**result, "replayed": True} for result in results[:5]), results[5]]
    both = {"Content-Type": MSGPACK, "Accept": "application/json"}
    _, headers, crossed = await api.call("POST", "/v1/operations", **sent, headers=both)
    assert headers["Content-Type"].startswith("application/json")
    assert crossed["results"] == from_msgpack["results"]


async def test_replays_are_byte_identical(api: Api, client_id: str) -> None:
    await api.call("POST", "/v1/operations", operations(client_id, *ONE_OF_EACH))
    body = json.dumps(operations(client_id, *ONE_OF_EACH)).encode()
    replays = []
    for _ in range(3):
        _, _, raw = await api.call("POST", "/v1/operations", data=body, headers={"Accept": MSGPACK})
        replays.append(msgspec.msgpack.encode(msgspec.msgpack.decode(raw)["results"]))
        await api.operate(client_id, put(100 + len(replays), "a", "changed since"))
    assert len(set(replays)) == 1
    _, headers, _ = await api.call("GET", "/v1/tables/rows/rows/a")
    assert headers["Oncegate-Commit"] == "8", "a replay took a commit number"


async def test_request_state_says_what_became_of_an_id(api: Api, client_id: str) -> None:
    (done,) = await api.operate(client_id, put(2, "a", 1))
    _, _, state = await api.call("GET", f"/v1/requests/{client_id}/2")
    ran = {"executed": True, "applied": True}
    assert state == {"state": "applied", "result": {**done, "replayed": True}, **ran}
    (refused,) = await api.operate(client_id, put(5, "a", 2, condition={"absent": True}))
    _, _, state = await api.call("GET", f"/v1/requests/{client_id}/5")
    assert state == {"state": "refused", "result": {**refused, "replayed": True}, "executed": True, "applied": False}
    assert (await api.call("GET", f"/v1/requests/{client_id}/3"))[2] == {"state": "never_seen"}
    assert (await api.call("GET", "/v1/requests/00000000000004d2/1"))[2] == {"state": "never_seen"}
    await api.operate(client_id, put(4, "a", 1), first_incomplete=3)
    assert (await api.call("GET", f"/v1/requests/{client_id}/2"))[2] == {"state": "acknowledged"}
    for path in ("x/1", f"{client_id}/0", f"{client_id}/x", f"{client_id}/{2**53}"):
        assert_problem(await api.call("GET", f"/v1/requests/{path}"), "BAD_REQUEST")


def _keys(first: int, last: int) -> list[str]:
    return [f"k{i}" for i in range(first, last + 1)]


def _part(first: int, last: int, commit: int, *, replayed: bool = False) -> dict[str, Any]:
    return {"first": first, "last": last, "status": "applied", "commit": commit, "replayed": replayed}


async def test_arrow_msgpack_and_json_lines_say_the_same(api: Api, client_id: str) -> None:
    assert await send_range(api, client_id, 1, _keys(1, 3), kind=ARROW) == [_part(1, 3, 1)]
    for kind in (MSGPACK, JSON_LINES, ARROW):
        replay = await send_range(api, client_id, 1, _keys(1, 3), kind=kind)
        assert replay == [_part(1, 3, 1, replayed=True)], kind
    assert await send_range(api, client_id, 4, _keys(4, 5), kind=MSGPACK) == [_part(4, 5, 4)]
    assert await send_range(api, client_id, 6, _keys(6, 6), kind=JSON_LINES) == [_part(6, 6, 6)]
    large = arrow_body(["k7"], ['{"n":7}'], pa.large_string())
    headers = {**range_headers(client_id, 7, ARROW), "Accept": MSGPACK}
    status, _, raw = await api.call("POST", "/v1/tables/events/ranges", data=large, headers=headers)
    assert status == 200
    assert msgspec.msgpack.decode(raw)["results"] == [_part(7, 7, 7)]
    for number in range(1, 8):
        _, _, row = await api.call("GET", f"/v1/tables/events/rows/k{number}")
        assert (row["value"], row["version"]) == ({"n": number}, number)


async def test_range_cut_differently_at_the_retry_is_replayed(api: Api, client_id: str) -> None:
    await send_range(api, client_id, 4, _keys(4, 6))
    overlapping = await send_range(api, client_id, 1, _keys(1, 9))
    assert overlapping == [_part(1, 3, 4), _part(4, 6, 1, replayed=True), _part(7, 9, 7)]
    for first, last, commit in ((1, 2, 4), (2, 3, 5), (4, 6, 1), (8, 9, 8)):
        again = await send_range(api, client_id, first, _keys(first, last))
        assert again == [_part(first, last, commit, replayed=True)]
    assert (await sealed(api, "events"))["items"] == 9


async def test_range_needs_a_stream_table_and_a_session(api: Api, client_id: str) -> None:
    headers, body = range_headers(client_id, 1, ARROW), arrow_body(["a"], ["1"])
    resident = "rows is a resident table, a range is for stream tables: send its rows to /v1/operations"
    for table, code, why in (("rows", "BAD_REQUEST", resident), ("nowhere", "NOT_FOUND", "no table nowhere")):
        status, head, done = await api.call("POST", f"/v1/tables/{table}/ranges", data=body, headers=headers)
        assert (status, head["Oncegate-Commit"]) == (200, "0")
        (part,) = done["results"]
        assert (part["status"], part["code"], part["outcome"]) == ("rejected", code, "not_applied")
        assert part["detail"] == why
    (unknown,) = await send_range(api, "00000000000004d2", 1, ["a"])
    assert (unknown["code"], unknown["outcome"]) == ("SESSION_EXPIRED", "unknown")


async def test_value_of_a_range_reads_back_whatever_json_it_is(api: Api, client_id: str) -> None:
    values: list[Any] = [
        None, True, 0, -(2**63), 2**64 - 1, 1e99, 1e-300, 0.123456789012345678901, "", "12345678901234567890",
        "[" * 100, "\u20ac\U0001f600\u0000", [], {}, {"a": {"b": [1, {"c": None}]}}, [[[[]]]],
    ]  # fmt: skip
    keys = [f"v{i}" for i in range(len(values))]
    body = msgpack_range(keys, [msgspec.json.encode(value).decode() for value in values])
    headers = range_headers(client_id, 1, MSGPACK)
    assert (await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers))[0] == 200
    for key, value in zip(keys, values, strict=True):
        assert (await api.call("GET", f"/v1/tables/events/rows/{key}"))[2]["value"] == value
        _, _, raw = await api.call("GET", f"/v1/tables/events/rows/{key}", headers={"Accept": MSGPACK})
        assert msgspec.msgpack.decode(raw)["value"] == value
