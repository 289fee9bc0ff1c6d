"""Bytes nobody thought of, sent to every path that takes a body: always typed, never a 500, never a hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import yarl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.routes.rows import REFUSALS
from oncegate.rifl.errors import REGISTRY
from tests.conftest import Api
from tests.gateway.http_contract import ARROW, JSON_LINES, MSGPACK, arrow_body, msgpack_range, put, range_headers

ANSWER_S = 30.0

fuzzed = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)

numbers = st.integers() | st.sampled_from([0, 1, 2**53 - 1, 2**53, 2**63, 2**64]) | st.floats()
scalars = st.none() | st.booleans() | numbers | st.text(max_size=8) | st.binary(max_size=8)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
operation = st.fixed_dictionaries(
    {
        "sequence": st.integers(1, 4) | junk,
        "op": st.sampled_from(["put", "delete", "increment", "append", "get"]) | junk,
        "table": st.sampled_from(["rows", "events", "none"]) | junk,
        "key": st.text(min_size=1, max_size=4) | junk,
    },
    optional={"value": junk, "item": junk, "by": numbers, "if": junk | st.just({"absent": True})},
)
CLIENT = "0000000000000001"
bodies: dict[str, st.SearchStrategy[Any]] = {
    "/v1/operations": st.fixed_dictionaries(
        {
            "client_id": st.just(CLIENT) | junk,
            "epoch": st.just(1) | junk,
            "first_incomplete": st.just(1) | junk,
            "operations": st.lists(operation, max_size=4) | junk,
        }
    ),
    "/v1/sessions": st.fixed_dictionaries(
        {"nonce": st.text(max_size=4) | junk}, optional={"lease_ms": junk, "window": junk}
    ),
    f"/v1/sessions/{CLIENT}/renew": st.fixed_dictionaries({"epoch": st.just(1) | junk}),
    "/v1/flows/rows": st.fixed_dictionaries(
        {"source": st.sampled_from(["rows", "events"]) | junk},
        optional={"target": junk, "max_items": junk, "consumers": junk, "linger_ms": junk, "name": junk},
    ),
    "/v1/flows/events/consumers/c/attach": st.fixed_dictionaries({"nonce": junk}),
    "/v1/flows/events/consumers/c/cursor": st.fixed_dictionaries(
        {"batch": junk, "fence": junk}, optional={"replay": junk}
    ),
    f"/v1/requests/{CLIENT}/9/resolve": st.fixed_dictionaries(
        {}, optional={"epoch": st.just(1) | junk, "first_incomplete": st.just(1) | junk}
    ),
    "/v1/tables/rows/rows/n/increment": st.fixed_dictionaries({}, optional={"by": numbers | junk}),
    "/v1/tables/rows/rows/l/append": st.fixed_dictionaries({"item": junk}),
    "/v1/tables/rows": st.fixed_dictionaries({"kind": st.just("resident") | junk}, optional={"quota_bytes": numbers}),
}
damage = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3)


def _encoded(shape: Any, kind: str) -> bytes:
    """Encode what the encoder takes; what it does not (64 bits in msgpack) goes out as text."""
    try:
        return msgspec.msgpack.encode(shape) if kind == MSGPACK else msgspec.json.encode(shape)
    except OverflowError:
        return repr(shape).encode(errors="replace")


def _damaged(body: bytes, changes: list[tuple[int, int]]) -> bytes:
    data = bytearray(body)
    for at, byte in changes:
        if data:
            data[at % len(data)] = byte
    return bytes(data)


@pytest.fixture
async def prepared(api: Api, client_id: str) -> AsyncIterator[Api]:
    """A node with something to break; at the end it must be ready still."""
    assert client_id == CLIENT
    await api.operate(CLIENT, put(1, "a", 1))
    yield api
    assert (await api.call("GET", "/readyz"))[0] == 200


async def _drawn(count: int, **strategies: st.SearchStrategy[Any]) -> list[Any]:
    """Draw that many examples; what is sent is sent afterwards, on the loop of the test."""
    found: list[Any] = []
    await asyncio.to_thread(settings(fuzzed, max_examples=count)(given(**strategies)(lambda **one: found.append(one))))
    return found


async def _send(api: Api, method: str, path: str | yarl.URL, **how: Any) -> None:
    async with asyncio.timeout(ANSWER_S), api._http.request(method, path, **how) as answer:
        body = await answer.read()
        assert answer.status < 500, (path, how, body)
        if answer.status >= 400:
            problem = msgspec.json.decode(body)
            refused = REFUSALS.get(problem["code"]) or REGISTRY[problem["code"]]
            assert problem["status"] == answer.status == refused.status
            assert answer.content_type == "application/problem+json"


async def test_no_body_makes_a_node_fail(prepared: Api) -> None:
    sent = st.sampled_from(sorted(bodies)).flatmap(lambda path: st.tuples(st.just(path), bodies[path]))
    kinds = st.sampled_from(["application/json", MSGPACK])
    for number, one in enumerate(await _drawn(300, sent=sent, kind=kinds, changes=damage)):
        path, shape = one["sent"]
        method = "PUT" if path in ("/v1/flows/rows", "/v1/tables/rows") else "POST"
        headers = {"Content-Type": one["kind"]}
        if "/rows/rows/" in path:
            headers["Idempotency-Key"] = f'"{number}"'
        body = _damaged(_encoded(shape, one["kind"]), one["changes"])
        await _send(prepared, method, path, data=body, headers=headers)


async def test_no_range_makes_a_node_fail(prepared: Api) -> None:
    good = {
        ARROW: arrow_body(["a", "b"], ["1", '{"x":[2]}']),
        MSGPACK: msgpack_range(["a", "b"], ["1", '"x"']),
        JSON_LINES: b'{"key":"a","value":1}\n{"key":"b","value":{"x":2}}\n',
    }
    for one in await _drawn(
        400,
        kind=st.sampled_from(sorted(good)),
        first=st.integers(1, 20).map(str) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8),
        changes=damage,
        cut=st.none() | st.integers(0, 400),
        other=st.none() | st.binary(max_size=64),
    ):
        damaged = _damaged(good[one["kind"]], one["changes"])[: one["cut"]]
        headers = {**range_headers(CLIENT, 1, one["kind"]), "Oncegate-First-Sequence": one["first"]}
        body = damaged if one["other"] is None else one["other"]
        await _send(prepared, "POST", "/v1/tables/events/ranges", data=body, headers=headers)


def _quoted(data: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in data)


async def test_no_path_or_query_makes_a_node_fail(prepared: Api) -> None:
    piece = st.text(st.characters(min_codepoint=0, max_codepoint=0x2FF), max_size=6).map(lambda s: _quoted(s.encode()))
    piece |= st.binary(max_size=4).map(_quoted) | st.sampled_from(["rows", "events", "1", CLIENT, "c", "f"])
    templates = st.sampled_from(
        ["/v1/tables/{}", "/v1/tables/{}/rows/{}", "/v1/flows/{}/batches/{}", "/v1/sessions/{}", "/v1/requests/{}/{}",
         "/v1/tables/{}/rows?limit={}&after={}", "/v1/tables/{}/rows/{}?consistency=stale&min_commit={}", "/v1/{}/{}"]
    )  # fmt: skip
    for one in await _drawn(300, template=templates, pieces=st.tuples(piece, piece, piece)):
        path = one["template"].format(*one["pieces"])
        if "min_commit=" not in path or path.endswith(("=", "=0", "=1")) or not path[-1].isdigit():
            await _send(prepared, "GET", yarl.URL(path, encoded=True))


async def test_no_header_of_plain_requests_or_events_makes_a_node_fail(prepared: Api) -> None:
    text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
    value = text | text.map(lambda text: f'"{text}"') | st.sampled_from(['"a"', "*", '"1"', f"{CLIENT}/2", "1", "%ff"])
    of_rows = ["Idempotency-Key", "Oncegate-Request", "Oncegate-First-Incomplete", "Oncegate-Epoch", "If-Match"]
    of_events = ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time", "ce-x", "Content-Type"]
    meant = st.sampled_from(["1.0", "/s", "application/json", "application/cloudevents+json"])
    for one in await _drawn(
        200,
        plain=st.dictionaries(st.sampled_from([*of_rows, "If-None-Match", "traceparent"]), value, max_size=4),
        event=st.dictionaries(st.sampled_from(of_events), value | meant, max_size=6),
        body=st.sampled_from([b"1", b"{}", b'"x"', b"[]", b"\xff"]),
    ):
        await _send(prepared, "PUT", "/v1/tables/rows/rows/a", data=one["body"], headers=one["plain"])
        await _send(prepared, "POST", "/v1/tables/events/events", data=one["body"], headers=one["event"])
