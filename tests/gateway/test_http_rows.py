"""Rows changed without the SDK: one request, one effect, and statuses that any HTTP client understands."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.http.routes import rows
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.gateway.testing.state import SharedState
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ClusterTimeMs
from tests.conftest import Api
from tests.gateway.http_contract import MSGPACK, assert_problem

ROW = "/v1/tables/rows/rows"


def key(text: str, **more: str) -> dict[str, str]:
    """Return headers with that idempotency key."""
    return {"Idempotency-Key": f'"{text}"', **{name.replace("_", "-"): value for name, value in more.items()}}


def place(client_id: str, sequence: int, first_incomplete: int = 1, **more: str) -> dict[str, str]:
    """Return headers with a place in a session."""
    request = {"Oncegate-Request": f"{client_id}/{sequence}", "Oncegate-First-Incomplete": str(first_incomplete)}
    return {**request, **{name.replace("_", "-"): value for name, value in more.items()}}


def assert_refusal(answer: tuple[int, Any, Any], status: int, code: str) -> Any:
    """Check that an answer is the problem of a business refusal; return its body."""
    found, headers, body = answer
    assert (found, body["code"], body["status"]) == (status, code, status)
    assert headers["Content-Type"].startswith("application/problem+json")
    assert (body["outcome"], body["retryable"]) == ("not_applied", False)
    return body


async def test_key_applies_once_and_a_replay_is_the_same_bytes(api: Api, client_id: str) -> None:
    bodies, seen = [], []
    for _ in range(3):
        async with api._http.post(f"{ROW}/n/increment", json={"by": 5}, headers=key("a-1")) as answer:
            assert answer.status == 200
            bodies.append(await answer.read())
            seen.append(answer.headers.get("Idempotent-Replayed"))
            request_id = answer.headers["Oncegate-Request"]
            assert 0 < int(answer.headers["Oncegate-Memory-Ms"]) <= 24 * 3_600_000
            assert int(answer.headers["Oncegate-Time-Ms"]) >= 0
            assert answer.headers["ETag"] == '"1"'
    assert len(set(bodies)) == 1
    assert seen == [None, "true", "true"]
    assert json.loads(bodies[0]) == {"request": request_id, "commit": 1, "version": 1, "value": 5}
    state = (await api.call("GET", f"/v1/requests/{request_id}"))[2]
    assert (state["state"], state["result"]["value"]) == ("applied", 5)
    assert (await api.call("POST", f"/v1/requests/{request_id}/resolve"))[2] == state


async def test_key_reused_for_another_method_path_or_body_is_refused(api: Api, client_id: str) -> None:
    await api.call("PUT", f"{ROW}/a", {"x": 1, "y": 2}, headers=key("k"))
    spelled = b'{"y" : 2, "x": 1}'
    assert (await api.call("PUT", f"{ROW}/a", data=spelled, headers=key("k")))[1]["Idempotent-Replayed"] == "true"
    for method, path, body, more in (
        ("PUT", f"{ROW}/a", {"x": 1}, {}),
        ("PUT", f"{ROW}/b", {"x": 1, "y": 2}, {}),
        ("PUT", f"{ROW}/a", {"x": 1, "y": 2}, {"If_Match": "*"}),
        ("DELETE", f"{ROW}/a", None, {}),
        ("POST", f"{ROW}/a/append", {"item": 1}, {}),
        ("POST", f"{ROW}/a/increment", None, {}),
    ):
        assert_problem(await api.call(method, path, body, headers=key("k", **more)), "PAYLOAD_MISMATCH")
    _, headers, row = await api.call("GET", f"{ROW}/a")
    assert (row["value"], headers["Oncegate-Commit"]) == ({"x": 1, "y": 2}, "1")


async def test_place_in_a_session_works_like_an_operation(api: Api, client_id: str) -> None:
    status, headers, body = await api.call("PUT", f"{ROW}/a", 1, headers=place(client_id, 1))
    assert (status, body) == (200, {"request": f"{client_id}/1", "commit": 1, "version": 1})
    assert int(headers["Oncegate-Memory-Ms"]) <= 60_000
    (same,) = await api.operate(client_id, {"sequence": 1, "op": "put", "table": "rows", "key": "a", "value": 1})
    assert same["replayed"] is True
    again = await api.call("PUT", f"{ROW}/a", 1, headers=place(client_id, 1))
    assert (again[1]["Idempotent-Replayed"], again[2]) == ("true", body)
    assert_problem(await api.call("PUT", f"{ROW}/a", 2, headers=place(client_id, 1)), "PAYLOAD_MISMATCH")
    assert (await api.call("DELETE", f"{ROW}/a", headers=place(client_id, 2, 2)))[0] == 200
    stale = await api.call("PUT", f"{ROW}/a", 1, headers=place(client_id, 1))
    assert_problem(stale, "STALE")
    assert "Oncegate-Memory-Ms" in stale[1]
    await api.call("POST", f"/v1/sessions/{client_id}/take-over", {"nonce": "other"})
    assert_problem(await api.call("PUT", f"{ROW}/a", 1, headers=place(client_id, 3, 3)), "FENCED")
    newer = place(client_id, 3, 3, Oncegate_Epoch="2")
    assert (await api.call("PUT", f"{ROW}/a", 1, headers=newer))[0] == 200


async def test_sealed_place_is_refused_and_says_that_it_was_not_applied(api: Api, client_id: str) -> None:
    await api.call("POST", f"/v1/requests/{client_id}/1/resolve")
    status, _, body = await api.call("PUT", f"{ROW}/a", 1, headers=place(client_id, 1))
    assert (status, body["code"], body["outcome"]) == (410, "STALE", "not_applied")


async def test_preconditions_are_tested_in_the_transition_and_their_refusals_replay(api: Api, client_id: str) -> None:
    created = await api.call("PUT", f"{ROW}/a", "one", headers=key("1", If_None_Match="*"))
    etag = created[1]["ETag"]
    refused = assert_refusal(
        await api.call("PUT", f"{ROW}/a", "two", headers=key("2", If_None_Match="*")), 412, "CONDITION_FAILED"
    )
    assert (refused["version"], refused["value"], refused["commit"]) == (1, "one", 2)
    changed = await api.call("PUT", f"{ROW}/a", "two", headers=key("3", If_Match=etag))
    assert changed[1]["ETag"] == '"3"'
    for headers in (key("4", If_Match=etag), key("5", If_Match='"99"')):
        assert_refusal(await api.call("DELETE", f"{ROW}/a", headers=headers), 412, "CONDITION_FAILED")
    assert_refusal(await api.call("PUT", f"{ROW}/b", 1, headers=key("6", If_Match="*")), 412, "CONDITION_FAILED")
    deleted = await api.call("DELETE", f"{ROW}/a", headers=key("7", If_Match="*"))
    assert (deleted[0], "ETag" in deleted[1]) == (200, False)
    again = await api.call("PUT", f"{ROW}/a", "two", headers=key("2", If_None_Match="*"))
    assert assert_refusal(again, 412, "CONDITION_FAILED") == refused
    assert again[1]["Idempotent-Replayed"] == "true"
    assert (await api.call("GET", f"{ROW}/a"))[0] == 404


async def test_change_that_does_not_fit_the_row_is_refused_with_the_row(api: Api, client_id: str) -> None:
    await api.call("POST", f"{ROW}/l/append", {"item": {"n": 1}}, headers=key("1"))
    await api.call("POST", f"{ROW}/n/increment", {"by": -3}, headers=key("2"))
    for path, body, code, value in (
        ("l/increment", None, "NOT_AN_INTEGER", [{"n": 1}]),
        ("n/append", {"item": 1}, "NOT_A_LIST", -3),
    ):
        answer = await api.call("POST", f"{ROW}/{path}", body, headers=key(code))
        assert assert_refusal(answer, 409, code)["value"] == value


async def test_increment_stays_between_its_floor_and_its_ceiling(api: Api, client_id: str) -> None:
    for at, (by, bound, status) in enumerate(
        [(3, {"ceiling": 2}, 412), (3, {"ceiling": 3}, 200), (-4, {"floor": 0}, 412), (-3, {"floor": 0}, 200)]
    ):
        answer = await api.call("POST", f"{ROW}/n/increment", {"by": by, **bound}, headers=key(str(at)))
        assert answer[0] == status, answer
    assert (await api.call("GET", f"{ROW}/n"))[2]["value"] == 0


async def test_key_that_ends_like_a_change_and_a_msgpack_body_work(api: Api, client_id: str) -> None:
    packed = {**key("m"), "Content-Type": MSGPACK, "Accept": "application/json"}
    assert (await api.call("PUT", f"{ROW}/a/increment", data=b"\x2a", headers=packed))[0] == 200
    assert (await api.call("POST", f"{ROW}/a/increment/increment", headers=key("n")))[2]["value"] == 43
    assert (await api.call("GET", f"{ROW}/a/increment"))[2]["value"] == 43


async def test_same_key_at_the_same_time_runs_once(api: Api, client_id: str) -> None:
    """Case 4 for keys: each attempt gets the result or hears that the first is still running."""
    calls = [api.call("POST", f"{ROW}/n/increment", headers=key("k")) for _ in range(10)]
    answers = await asyncio.gather(*calls)
    for status, _, body in answers:
        assert status == 200 or body["code"] == "IN_PROGRESS"
    assert 200 in [status for status, _, _ in answers]
    assert (await api.call("GET", f"{ROW}/n"))[2]["value"] == 1


async def test_key_whose_first_request_still_runs_is_in_progress(
    api: Api, client_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = {"\0kbusy"}
    with monkeypatch.context() as patch:
        real = rows.under_key
        patch.setattr(
            rows, "under_key", lambda exchange, *rest: (exchange.running.update(busy), real(exchange, *rest))[1]
        )
        answer = await api.call("PUT", f"{ROW}/a", 1, headers=key("busy"))
        assert_problem(answer, "IN_PROGRESS")
        assert answer[2]["retry_after_ms"] > 0
        assert (await api.call("PUT", f"{ROW}/a", 1, headers=key("free")))[0] == 200


async def test_key_may_name_a_cluster_time_that_has_been_and_no_other(api: Api, client_id: str) -> None:
    now = (await api.call("GET", "/v1/cluster"))[2]["cluster_time_ms"]
    assert (await api.call("PUT", f"{ROW}/a", 1, headers=key(f"oncegate-{now}-x")))[0] == 200
    answer = await api.call("PUT", f"{ROW}/a", 1, headers=key(f"oncegate-{now + 10**9}-x"))
    assert_problem(answer, "BAD_REQUEST")
    assert f"the key is from the future: it names the cluster time {now + 10**9}" in answer[2]["detail"]


def test_key_that_is_too_old_is_told_so_in_words() -> None:
    state = SharedState()
    state.declare("rows")
    op = request_bodies.operation(wire.Operation(1, "put", "rows", "a", 1), 0)

    def use(key: str, named_ms: int) -> wire.OperationResult:
        (result,) = state.apply(c.Keyed(1_000, [c.KeyedOp(key, ClusterTimeMs(named_ms), op)])).body.results
        return result

    state.advance(5)
    assert use("koncegate-5000-x", 5_000).status == "applied"
    state.advance(2)
    refused = use("koncegate-4000-y", 4_000)
    assert refused.code == "SESSION_EXPIRED"
    assert "the key is too old: it names the cluster time 4000, keys first used at 5000 and before" in refused.detail


async def test_bare_key_is_the_key_that_it_is_quoted(api: Api, client_id: str) -> None:
    name = "0f9c5a52-1f1f-4a57-9a51-6a53a6b0a1c1"
    for number, written in enumerate((name, f'"{name}"', f' "{name}";a=1')):
        status, headers, _ = await api.call("PUT", f"{ROW}/a", 1, headers={"Idempotency-Key": written})
        assert (status, headers.get("Idempotent-Replayed")) == (200, "true" if number else None)


PLACE = {"Oncegate-Request": "0000000000000001/1", "Oncegate-First-Incomplete": "1"}
NO_KEYS = ('""', '"open', '"a" "b"', '"a", "b"', '"\u00e9"', '"a\\b"', f'"{"x" * 256}"', "a b", "a,b", "\u00e9")
NOBODY: list[dict[str, str]] = [
    {},
    *({"Idempotency-Key": text} for text in NO_KEYS),
    {**key("a"), **PLACE},
    {"Oncegate-Request": "0000000000000001/1"},
    *({**PLACE, "Oncegate-Request": request} for request in ("0000000000000001", "0000000000000001/0")),
    {**PLACE, "Oncegate-First-Incomplete": "x"},
    {**PLACE, "Oncegate-Epoch": "0"},
    *({**key("a"), "If-Match": tag} for tag in ("1", 'W/"1"', '"1", "2"', '"0"')),
    {**key("a"), "If-None-Match": '"1"'},
    {**key("a"), "If-None-Match": "*", "If-Match": "*"},
]


async def test_request_that_does_not_say_who_it_is_or_what_it_asks_is_refused(api: Api, client_id: str) -> None:
    for headers in NOBODY:
        assert_problem(await api.call("PUT", f"{ROW}/a", 1, headers=headers), "BAD_REQUEST")
    assert (await api.call("GET", f"{ROW}/a"))[0] == 404


async def test_escaped_and_parametrised_keys_are_read_as_the_draft_has_them(api: Api, client_id: str) -> None:
    await api.call("PUT", f"{ROW}/a", 1, headers={"Idempotency-Key": r'"a\"b\\"'})
    again = await api.call("PUT", f"{ROW}/a", 1, headers={"Idempotency-Key": r' "a\"b\\" ;x=1'})
    assert again[1]["Idempotent-Replayed"] == "true"


IMPOSSIBLE: list[tuple[str, str, bytes, str]] = [
    ("PUT", f"{ROW}/a", b"", "BAD_REQUEST"),
    ("PUT", f"{ROW}/a", b"{", "BAD_REQUEST"),
    ("PUT", f"{ROW}/a", b'"' + b"x" * 256 * 1024 + b'"', "PAYLOAD_TOO_LARGE"),
    ("PUT", f"{ROW}/{'x' * 513}", b"1", "PAYLOAD_TOO_LARGE"),
    ("PUT", "/v1/tables/nowhere/rows/a", b"1", "NOT_FOUND"),
    ("PUT", "/v1/tables/NO/rows/a", b"1", "BAD_REQUEST"),
    ("POST", f"{ROW}/a/increment", b'{"by":"x"}', "BAD_REQUEST"),
    ("POST", f"{ROW}/a/increment", b'{"by":9223372036854775808}', "BAD_REQUEST"),
    ("POST", f"{ROW}/a/increment", b'{"times":1}', "BAD_REQUEST"),
    ("POST", f"{ROW}/a/append", b"", "BAD_REQUEST"),
    ("POST", f"{ROW}/a/append", b"{}", "BAD_REQUEST"),
]


async def test_impossible_change_is_a_typed_problem_and_uses_no_key_up(api: Api, client_id: str) -> None:
    for method, path, body, code in IMPOSSIBLE:
        assert_problem(await api.call(method, path, data=body, headers=key("k")), code)
    assert (await api.call("PUT", f"{ROW}/a", 1, headers=key("k")))[0] == 200


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("after=a&from=c", "cde"),
        ("after=c&from=b", "de"),
        ("after=e&to=c&reverse=true", "ba"),
        ("after=b&to=d&reverse=true", "a"),
        ("after=c&to=c", ""),
    ],
)
async def test_page_goes_on_after_a_key_within_its_bounds(api: Api, client_id: str, query: str, keys: str) -> None:
    for name in "abcde":
        assert (await api.call("PUT", f"{ROW}/{name}", 1, headers=key(name)))[0] == 200
    _, _, page = await api.call("GET", f"{ROW}?{query}")
    assert "".join(row["key"] for row in page["rows"]) == keys


@pytest.mark.parametrize("transaction", [False, True])
async def test_key_whose_request_was_not_ordered_is_free_for_the_next_one(
    transaction: bool, api: Api, client_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end what was never under way: its key would be in progress for ever."""

    def full(*_: Any) -> None:
        raise OncegateError(Code.OVERLOADED, "too much waits", retry_after_ms=7)

    write = {"op": "increment", "table": "rows", "key": "n"}
    path, body = ("/v1/transactions", {"writes": [write]}) if transaction else (f"{ROW}/n/increment", {})
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Node, "attempt", full)
            assert_problem(await api.call("POST", path, body, headers=key("k")), "OVERLOADED")
    for replayed in (None, "true", "true"):
        status, headers, told = await api.call("POST", path, body, headers=key("k"))
        assert (status, headers.get("Idempotent-Replayed")) == (200, replayed), told
    assert (await api.call("GET", f"{ROW}/n"))[2]["value"] == 1
