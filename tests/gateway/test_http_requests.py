"""``/v1/requests``: what became of a request id, and the seal that settles it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.gateway.http_contract import JSON_LINES, assert_problem, declare, put, range_headers, send_range

if TYPE_CHECKING:
    from tests.conftest import Api


async def test_resolve_returns_the_result_or_seals_and_get_says_so(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    (first,) = await api.operate(client_id, {"sequence": 1, "op": "increment", "table": "rows", "key": "n"})
    status, headers, body = await api.call("POST", f"/v1/requests/{client_id}/1/resolve")
    assert (status, body) == (200, {"state": "applied", "result": {**first, "replayed": True}})
    assert int(headers["Oncegate-Memory-Ms"]) > 0
    for _ in range(2):
        assert (await api.call("POST", f"/v1/requests/{client_id}/2/resolve"))[2] == {"state": "sealed"}
    assert (await api.call("GET", f"/v1/requests/{client_id}/2"))[2] == {"state": "sealed"}
    (late,) = await api.operate(client_id, put(2, "n", 9))
    assert (late["status"], late["code"], late["outcome"], late["retryable"]) == (
        "rejected",
        "STALE",
        "not_applied",
        False,
    )
    assert (await api.call("GET", "/v1/tables/rows/rows/n"))[2]["value"] == 1


async def test_resolve_races_attempts_in_flight_and_tells_the_truth(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    op = {"op": "increment", "table": "rows", "key": "n"}
    attempts = [api.operate(client_id, {"sequence": s, **op}) for s in range(1, 21)]
    asked = [api.call("POST", f"/v1/requests/{client_id}/{s}/resolve") for s in range(1, 21)]
    mixed = [call for pair in zip(attempts, asked, strict=True) for call in pair]
    answers = await asyncio.gather(*mixed)
    fates = [answer[2]["state"] for answer in answers[1::2]]
    assert set(fates) <= {"applied", "sealed"}
    assert [results[0]["status"] == "applied" for results in answers[::2]] == [fate == "applied" for fate in fates]
    status, _, row = await api.call("GET", "/v1/tables/rows/rows/n")
    assert (row["value"] if status == 200 else 0) == fates.count("applied")


async def test_ids_inside_ranges_are_resolved_and_sealed_ones_split_them(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    await api.call("POST", f"/v1/requests/{client_id}/2/resolve")
    parts = await send_range(api, client_id, 1, ["a", "b", "c"])
    assert [(part["first"], part["last"], part["status"], part.get("code")) for part in parts] == [
        (1, 1, "applied", None),
        (2, 2, "rejected", "STALE"),
        (3, 3, "applied", None),
    ]
    assert parts[1]["outcome"] == "not_applied"
    state = (await api.call("POST", f"/v1/requests/{client_id}/3/resolve"))[2]
    assert (state["state"], state["result"]["commit"]) == ("applied", 2)


async def test_owner_acknowledges_with_a_resolve_to_make_room(api: Api) -> None:
    await declare(api)
    client_id = await api.session(window=2)
    await api.operate(client_id, put(1, "a", 1), put(2, "a", 2))
    path = f"/v1/requests/{client_id}/3/resolve"
    assert_problem(await api.call("POST", path), "WINDOW_FULL")
    assert (await api.call("POST", path, {"epoch": 1, "first_incomplete": 3}))[2] == {"state": "sealed"}
    assert (await api.call("GET", f"/v1/requests/{client_id}/2"))[2] == {"state": "acknowledged"}
    assert_problem(await api.call("POST", path, {"epoch": 2, "first_incomplete": 3}), "FENCED")


IMPOSSIBLE: list[tuple[str, object, str]] = [
    ("0000000000000009/1", None, "NOT_FOUND"),
    ("0000000000000001/0", None, "BAD_REQUEST"),
    ("1/1", None, "BAD_REQUEST"),
    ("0000000000000001/5", {"first_incomplete": 2}, "BAD_REQUEST"),
    ("0000000000000001/5", {"epoch": 0}, "BAD_REQUEST"),
    ("0000000000000001/5", {"epoch": 1, "first_incomplete": 6}, "BAD_ACK"),
    ("0000000000000001/5", {"epoch": 1, "first_incomplete": 2**64}, "BAD_ACK"),
    ("0000000000000001/5", ["x"], "BAD_REQUEST"),
]


async def test_impossible_resolve_is_refused_and_seals_nothing(api: Api) -> None:
    client_id = await api.session()
    for path, body, code in IMPOSSIBLE:
        assert_problem(await api.call("POST", f"/v1/requests/{path}/resolve", body), code)
    assert (await api.call("GET", f"/v1/requests/{client_id}/5"))[2] == {"state": "never_seen"}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NO_TRACES = [
    "", "x", TRACE.upper(), TRACE + "-x", TRACE[:-1], "01" + TRACE[2:],
    "00-" + "0" * 32 + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
]  # fmt: skip


async def test_traceparent_of_the_request_that_applied_an_operation_is_kept_with_its_record(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    client_id = await api.session()
    other = TRACE.replace("b7ad", "aaaa")

    async def trace_of(request_id: str) -> object:
        state = (await api.call("GET", f"/v1/requests/{request_id}"))[2]
        assert state["state"] == "applied"
        return state.get("traceparent")

    async def operate(sequence: int, trace: str) -> None:
        request = {"client_id": client_id, "epoch": 1, "first_incomplete": 1}
        body = {**request, "operations": [put(sequence, "a", sequence)]}
        assert (await api.call("POST", "/v1/operations", body, headers={"traceparent": trace}))[0] == 200

    await operate(1, TRACE)
    await operate(1, other)
    assert await trace_of(f"{client_id}/1") == TRACE, "a replay has its own trace, the record keeps the first"
    for number, trace in enumerate(NO_TRACES, 2):
        await operate(number, trace)
        assert await trace_of(f"{client_id}/{number}") is None
    body = b'{"key":"a","value":1}\n{"key":"b","value":2}\n'
    ranged = {**range_headers(client_id, 20, JSON_LINES), "traceparent": TRACE}
    assert (await api.call("POST", "/v1/tables/events/ranges", data=body, headers=ranged))[0] == 200
    assert await trace_of(f"{client_id}/21") == TRACE
    keyed = {"Idempotency-Key": '"k"', "traceparent": TRACE}
    _, headers, _ = await api.call("PUT", "/v1/tables/rows/rows/k", 1, headers=keyed)
    assert await trace_of(headers["Oncegate-Request"]) == TRACE
