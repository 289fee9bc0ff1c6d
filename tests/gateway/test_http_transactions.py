"""``POST /v1/transactions``: several rows and tables under one key or request id."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.rifl.errors import OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, operations

KEY = {"Idempotency-Key": '"move-1"'}
MOVE = {
    "conditions": [{"table": "rows", "key": "open", "if": {"value": True}}],
    "writes": [
        {"op": "increment", "table": "rows", "key": "a", "by": -3, "floor": 0},
        {"op": "increment", "table": "rows", "key": "b", "by": 3},
        {"op": "put", "table": "events", "key": "a", "value": "moved"},
    ],
}


async def call(api: Api, body: Any, headers: dict[str, str] = KEY) -> tuple[int, Any, Any]:
    return await api.call("POST", "/v1/transactions", body, headers=headers)


async def test_transfer_is_refused_whole_then_applied_once_under_its_key(api: Api, client_id: str) -> None:
    status, headers, body = await call(api, MOVE)
    assert (status, body["code"], body["failed"], body["outcome"]) == (
        412, "CONDITION_FAILED", "conditions[0]", "not_applied",
    )  # fmt: skip
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    assert (await call(api, MOVE))[2] == body, "recorded, and replayed"
    await api.call("PUT", "/v1/tables/rows/rows/open", True, headers={"Idempotency-Key": '"open"'})
    status, _, short = await call(api, MOVE, {"Idempotency-Key": '"move-2"'})
    assert (status, short["failed"]) == (412, "writes[0]")
    await api.call("POST", "/v1/tables/rows/rows/a/increment", {"by": 5}, headers={"Idempotency-Key": '"fill"'})
    key = {"Idempotency-Key": '"move-3"'}
    status, headers, first = await call(api, MOVE, key)
    assert (status, [write.get("value") for write in first["writes"]]) == (200, [2, 3, None])
    assert [write["commit"] for write in first["writes"]] == list(range(first["commit"] - 2, first["commit"] + 1))
    assert "Idempotent-Replayed" not in headers
    status, headers, again = await call(api, MOVE, key)
    assert (status, headers["Idempotent-Replayed"], again) == (200, "true", first)
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    rows = [(await api.call("GET", f"/v1/tables/{row}"))[2]["value"] for row in ("rows/rows/a", "rows/rows/b")]
    assert rows == [2, 3]
    assert_problem(await call(api, {**MOVE, "conditions": []}, key), "PAYLOAD_MISMATCH")


async def test_transaction_under_a_request_id_of_a_session_is_resolved_like_a_write(api: Api, client_id: str) -> None:
    headers = {"Oncegate-Request": f"{client_id}/4", "Oncegate-First-Incomplete": "1"}
    body = {"writes": [{"op": "put", "table": "rows", "key": "a", "value": 1}]}
    status, answered, first = await call(api, body, headers)
    assert (status, answered["Oncegate-Request"], first["request"]) == (200, f"{client_id}/4", f"{client_id}/4")
    _, _, state = await api.call("GET", f"/v1/requests/{client_id}/4")
    assert (state["state"], state["result"]["writes"]) == ("applied", first["writes"])
    operation = {"sequence": 4, "op": "transaction", **body}
    sent = {"client_id": client_id, "epoch": 1, "first_incomplete": 1, "operations": [operation]}
    _, _, among = await api.call("POST", "/v1/operations", sent)
    assert (among["results"][0]["replayed"], among["results"][0]["writes"]) == (True, first["writes"])


PUT = {"op": "put", "table": "rows", "key": "a", "value": 1}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"writes": []}, "writes is empty"),
        ({"conditions": []}, "writes"),
        ({"writes": [{**PUT, "ttl": 1}]}, "ttl"),
        ({"writes": [PUT], "condition": []}, "condition"),
        ({"writes": [{**PUT, "op": "transaction"}]}, "writes[0].op"),
        ({"writes": [PUT, {**PUT, "floor": 0}]}, "writes[1]"),
        ({"writes": [{**PUT, "table": "A"}]}, "table"),
        ({"writes": [{**PUT, "key": ""}]}, "key is empty"),
        ({"writes": [PUT], "conditions": [{"table": "rows", "key": "a"}]}, "conditions[0]"),
        ({"writes": [PUT], "conditions": [{"session": "1"}]}, "client id"),
        ({"writes": [PUT], "conditions": [{"session": "1" * 16, "table": "rows"}]}, "of a row or of a session"),
        ({"writes": [PUT], "conditions": [{"table": "rows", "key": "a", "if": {"at_least": 1.5}}]}, "conditions[0].if"),
        (
            {"writes": [PUT], "conditions": [{"table": "rows", "key": "a", "if": {"at_most": 2**63}}]},
            "conditions[0].if",
        ),
        ({"writes": [{"op": "increment", "table": "rows", "key": "a", "ceiling": 2**63}]}, "64 bits"),
    ],
)
async def test_what_is_no_transaction_is_refused_and_named(api: Api, client_id: str, body: Any, said: str) -> None:
    refused = assert_problem(await call(api, body), "BAD_REQUEST")
    assert said in refused["detail"]
    assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 404


async def test_condition_that_is_no_object_is_refused_in_a_large_body_too(api: Api, client_id: str) -> None:
    writes = [{**PUT, "key": f"k{at}", "value": "v" * 1000} for at in range(40)]
    for body in ({"writes": [{**writes[0], "if": 5}, *writes[1:]]}, {"writes": [{**PUT, "if": 5}]}):
        refused = assert_problem(await call(api, body), "BAD_REQUEST")
        assert "if" in refused["detail"]


async def test_appends_of_transactions_count_like_all_others(api: Api, client_id: str) -> None:
    append = {"op": "append", "table": "rows", "key": "l", "item": 1}
    many = [{"sequence": at, "op": "transaction", "writes": [append] * 128} for at in range(1, 10)]
    assert_problem(await api.call("POST", "/v1/operations", operations(client_id, *many)), "PAYLOAD_TOO_LARGE")
    assert (await api.call("POST", "/v1/operations", operations(client_id, *many[:8])))[0] == 200


async def test_row_cannot_end_with_the_session_of_a_key_and_the_refusal_says_so(api: Api) -> None:
    writes = [{"op": "put", "table": "rows", "key": key, "value": 1, "bound": key == "b"} for key in "ab"]
    body = assert_problem(await call(api, {"writes": writes}), "BAD_REQUEST")
    assert body["detail"] == "writes[1].bound: under an Idempotency-Key there is no session to end with"


@pytest.mark.parametrize("more", [{"value": 1}, {"by": 1}, {"if": {"absent": True}}, {"ttl_ms": 5}, {"table": "rows"}])
async def test_transaction_among_operations_has_nothing_of_a_single_write(
    api: Api, client_id: str, more: dict[str, Any]
) -> None:
    sent = {"sequence": 1, "op": "transaction", "writes": [{"op": "delete", "table": "rows", "key": "k"}], **more}
    assert_problem(await api.call("POST", "/v1/operations", operations(client_id, sent)), "BAD_REQUEST")


async def test_bounds_of_a_transaction(api: Api, client_id: str) -> None:
    condition = {"table": "rows", "key": "a", "if": {"absent": True}}
    for body in ({"writes": [PUT] * 129}, {"writes": [PUT], "conditions": [condition] * 129}):
        assert_problem(await call(api, body), "PAYLOAD_TOO_LARGE")
    large = {"writes": [{**PUT, "key": f"k{n}", "value": "x" * 200_000} for n in range(22)]}
    for encode, kind in ((msgspec.json.encode, wire.JSON), (msgspec.msgpack.encode, wire.MSGPACK)):
        with pytest.raises(OncegateError, match="over 4194304 bytes"):
            request_bodies.transaction(encode(large), kind)
    body = {"writes": [{**PUT, "key": f"k{n}"} for n in range(128)], "conditions": [condition] * 128}
    assert (await call(api, body))[0] == 200
    packed = msgspec.msgpack.encode({"writes": [{**PUT, "key": f"p{n}", "value": ["x" * 1_000]} for n in range(128)]})
    headers = {"Idempotency-Key": '"packed"', "Content-Type": wire.MSGPACK, "Accept": wire.JSON}
    status, _, done = await api.call("POST", "/v1/transactions", data=packed, headers=headers)
    assert (status, len(done["writes"])) == (200, 128)
    assert (await api.call("GET", "/v1/tables/rows/rows/p127"))[2]["value"] == ["x" * 1_000]


async def test_missing_table_is_named_and_nothing_else_happens(api: Api, client_id: str) -> None:
    body = {"writes": [PUT, {**PUT, "table": "nowhere"}]}
    refused = assert_problem(await call(api, body), "NOT_FOUND")
    assert "writes[1], table nowhere" in refused["detail"]
    assert (await api.call("GET", "/v1/tables/rows/rows/a"))[0] == 404
