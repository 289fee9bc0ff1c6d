"""``POST /v1/tables/{table}/ranges``: many writes as one, each applied once however the range is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    MSGPACK,
    arrow_body,
    declare,
    msgpack_range,
    put,
    range_headers,
    sealed,
    send_range,
)

if TYPE_CHECKING:
    from tests.conftest import Api


def _keys(first: int, last: int) -> list[str]:
    return [f"k{i}" for i in range(first, last + 1)]


def _part(first: int, last: int, commit: int, *, replayed: bool = False) -> dict[str, Any]:
    return {"first": first, "last": last, "status": "applied", "commit": commit, "replayed": replayed}


async def test_arrow_msgpack_and_json_lines_say_the_same(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
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


async def test_range_cut_differently_at_the_retry_is_replayed(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    await send_range(api, client_id, 1, _keys(1, 10))
    for first, last in ((1, 4), (5, 10), (3, 7), (10, 10)):
        again = await send_range(api, client_id, first, _keys(first, last))
        assert again == [_part(first, last, first, replayed=True)]
    assert (await api.call("GET", "/v1/cluster"))[2]["commit"] == 10


async def test_only_the_new_part_of_an_overlapping_range_is_applied(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    await send_range(api, client_id, 4, _keys(4, 6))
    results = await send_range(api, client_id, 1, _keys(1, 9))
    assert results == [_part(1, 3, 4), _part(4, 6, 1, replayed=True), _part(7, 9, 7)]
    state = await sealed(api, "events")
    assert state["items"] == 9


async def test_range_and_single_operation_are_one_history(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    (single,) = await api.operate(client_id, put(2, "k2", {"n": 2}, table="events"))
    assert single["commit"] == 1
    results = await send_range(api, client_id, 1, _keys(1, 3))
    assert results == [_part(1, 1, 2), _part(2, 2, 1, replayed=True), _part(3, 3, 3)]
    (of_range,) = await api.operate(client_id, put(3, "k3", {"n": 3}, table="events"))
    assert (of_range["commit"], of_range["replayed"]) == (3, True)
    (differs,) = await api.operate(client_id, put(3, "k3", {"n": 4}, table="events"))
    assert differs["code"] == "PAYLOAD_MISMATCH"


async def test_changed_part_of_a_range_is_a_mismatch_and_the_rest_a_replay(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    await send_range(api, client_id, 1, _keys(1, 5))
    changed = [*_keys(1, 2), "other", *_keys(4, 5)]
    before, differing, after = await send_range(api, client_id, 1, changed)
    assert before == _part(1, 2, 1, replayed=True)
    assert (differing["first"], differing["last"], differing["status"]) == (3, 3, "rejected")
    assert (differing["code"], differing["outcome"]) == ("PAYLOAD_MISMATCH", "not_applied")
    assert after == _part(4, 5, 4, replayed=True)


async def test_acknowledged_part_of_a_range_is_stale(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    await send_range(api, client_id, 1, _keys(1, 4))
    await send_range(api, client_id, 5, _keys(5, 6), first_incomplete=3)
    stale, rest = await send_range(api, client_id, 1, _keys(1, 4))
    assert (stale["first"], stale["last"], stale["code"]) == (1, 2, "STALE")
    assert rest == _part(3, 4, 3, replayed=True)


async def test_window_counts_a_range_as_one_place(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session(window=2)
    assert (await send_range(api, client_id, 1, _keys(1, 50)))[0]["status"] == "applied"
    assert (await send_range(api, client_id, 51, _keys(51, 90)))[0]["status"] == "applied"
    (full,) = await send_range(api, client_id, 91, _keys(91, 92))
    assert (full["code"], full["retryable"]) == ("WINDOW_FULL", True)
    assert (await send_range(api, client_id, 91, _keys(91, 92), first_incomplete=51))[0]["status"] == "applied"


async def test_range_needs_a_stream_table_and_a_session(api: Api) -> None:
    await declare(api)
    client_id = await api.session()
    headers = range_headers(client_id, 1, ARROW)
    body = arrow_body(["a"], ["1"])
    refused = (
        (
            "rows",
            "BAD_REQUEST",
            "rows is a resident table, a range is for stream tables: send its rows to /v1/operations",
        ),
        ("nowhere", "NOT_FOUND", "no such table"),
    )
    for table, code, why in refused:
        status, head, done = await api.call("POST", f"/v1/tables/{table}/ranges", data=body, headers=headers)
        assert (status, head["Oncegate-Commit"]) == (200, "0")
        (part,) = done["results"]
        assert (part["status"], part["code"], part["outcome"]) == ("rejected", code, "not_applied")
        assert part["detail"] == why
    await declare(api, "events", "stream")
    (unknown,) = await send_range(api, "00000000000004d2", 1, ["a"])
    assert (unknown["code"], unknown["outcome"]) == ("SESSION_EXPIRED", "unknown")


async def test_value_of_a_range_reads_back_whatever_json_it_is(api: Api) -> None:
    await declare(api, "events", "stream")
    client_id = await api.session()
    values: list[Any] = [
        None, True, 0, -(2**63), 2**64 - 1, 1e99, 1e-300, 0.123456789012345678901, "", "12345678901234567890",
        "[" * 100,
        "\u20ac\U0001f600\u0000", [], {}, {"a": {"b": [1, {"c": None}]}}, [[[[]]]],
    ]  # fmt: skip
    texts = [msgspec.json.encode(value).decode() for value in values]
    keys = [f"v{i}" for i in range(len(values))]
    headers = range_headers(client_id, 1, MSGPACK)
    status, _, body = await api.call(
        "POST", "/v1/tables/events/ranges", data=msgpack_range(keys, texts), headers=headers
    )
    assert status == 200, body
    for key, value in zip(keys, values, strict=True):
        assert (await api.call("GET", f"/v1/tables/events/rows/{key}"))[2]["value"] == value
        headers = {"Accept": MSGPACK}
        _, _, raw = await api.call("GET", f"/v1/tables/events/rows/{key}", headers=headers)
        assert msgspec.msgpack.decode(raw)["value"] == value
