"""Bytes nobody thought of, sent to every path that takes a body: always typed, never a 500, never a hang."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import yarl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oncegate.gateway.http.routes.rows import REFUSALS
from oncegate.rifl.errors import REGISTRY
from tests.gateway.http_contract import ARROW, JSON_LINES, MSGPACK, arrow_body, declare, put, range_headers

if TYPE_CHECKING:
    from tests.conftest import Api

EXAMPLES = 300
ANSWER_S = 5.0

fuzzed = settings(
    max_examples=EXAMPLES,
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


async def _prepare(api: Api) -> None:
    await declare(api)
    await declare(api, "events", "stream")
    assert await api.session() == CLIENT
    await api.operate(CLIENT, put(1, "a", 1))


async def _send(api: Api, method: str, path: str | yarl.URL, **how: Any) -> None:
    async with asyncio.timeout(ANSWER_S), api._http.request(method, path, **how) as answer:
        body = await answer.read()
        assert answer.status < 500, (path, how, body)
        if answer.status >= 400:
            problem = msgspec.json.decode(body)
            refused = REFUSALS.get(problem["code"]) or REGISTRY[problem["code"]]
            assert problem["status"] == answer.status == refused.status
            assert answer.content_type == "application/problem+json"


async def _is_alive(api: Api) -> None:
    assert (await api.call("GET", "/readyz"))[0] == 200


async def test_no_body_makes_a_node_fail(api: Api) -> None:
    await _prepare(api)

    @fuzzed
    @given(st.data())
    def sent(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(bodies)))
        kind = data.draw(st.sampled_from(["application/json", MSGPACK]))
        shape = data.draw(bodies[path])
        body = _damaged(_encoded(shape, kind), data.draw(damage))
        method = "PUT" if path in ("/v1/flows/rows", "/v1/tables/rows") else "POST"
        headers = {"Content-Type": kind}
        if "/rows/rows/" in path:
            headers["Idempotency-Key"] = f'"{len(requests)}"'
        requests.append((method, path, {"data": body, "headers": headers}))

    requests: list[tuple[str, str, dict[str, Any]]] = []
    await asyncio.to_thread(sent)
    for method, path, how in requests:
        await _send(api, method, path, **how)
    await _is_alive(api)


async def test_no_range_makes_a_node_fail(api: Api) -> None:
    await _prepare(api)
    good = {
        ARROW: arrow_body(["a", "b"], ["1", '{"x":[2]}']),
        MSGPACK: msgspec.msgpack.encode({"keys": ["a", "b"], "values": ["1", '"x"']}),
        JSON_LINES: b'{"key":"a","value":1}\n{"key":"b","value":{"x":2}}\n',
    }
    requests: list[dict[str, Any]] = []

    @settings(fuzzed, max_examples=400)
    @given(
        kind=st.sampled_from(sorted(good)),
        first=st.integers(1, 20).map(str) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=8),
        changes=damage,
        cut=st.none() | st.integers(0, 400),
        other=st.none() | st.binary(max_size=64),
    )
    def sent(kind: str, first: str, changes: list[tuple[int, int]], cut: int | None, other: bytes | None) -> None:
        body = other if other is not None else _damaged(good[kind], changes)[:cut]
        headers = {**range_headers(CLIENT, 1, kind), "Oncegate-First-Sequence": first}
        requests.append({"data": body, "headers": headers})

    await asyncio.to_thread(sent)
    for how in requests:
        await _send(api, "POST", "/v1/tables/events/ranges", **how)
    await _is_alive(api)


async def test_no_path_or_query_makes_a_node_fail(api: Api) -> None:
    await _prepare(api)
    piece = st.text(st.characters(min_codepoint=0, max_codepoint=0x2FF), max_size=6).map(lambda s: _quoted(s.encode()))
    piece |= st.binary(max_size=4).map(_quoted) | st.sampled_from(["rows", "events", "1", CLIENT, "c", "f"])
    template = st.sampled_from(
        ["/v1/tables/{}", "/v1/tables/{}/rows/{}", "/v1/flows/{}/batches/{}", "/v1/sessions/{}", "/v1/requests/{}/{}",
         "/v1/tables/{}/rows?limit={}&after={}", "/v1/tables/{}/rows/{}?consistency=stale&min_commit={}", "/v1/{}/{}"]
    )  # fmt: skip
    requests: list[str] = []

    @settings(fuzzed, max_examples=300)
    @given(template, st.tuples(piece, piece, piece))
    def sent(template: str, pieces: tuple[str, str, str]) -> None:
        requests.append(template.format(*pieces))

    await asyncio.to_thread(sent)
    for path in requests:
        if "min_commit=" not in path or path.endswith(("=", "=0", "=1")) or not path[-1].isdigit():
            await _send(api, "GET", yarl.URL(path, encoded=True))
    await _is_alive(api)


def _quoted(data: bytes) -> str:
    return "".join(f"%{byte:02X}" for byte in data)


async def test_no_header_of_plain_requests_or_events_makes_a_node_fail(api: Api) -> None:
    await _prepare(api)
    text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)
    value = text | text.map(lambda text: f'"{text}"') | st.sampled_from(['"a"', "*", '"1"', f"{CLIENT}/2", "1", "%ff"])
    plain = st.dictionaries(
        st.sampled_from(
            ["Idempotency-Key", "Oncegate-Request", "Oncegate-First-Incomplete", "Oncegate-Epoch", "If-Match",
             "If-None-Match", "traceparent"]
        ),
        value,
        max_size=4,
    )  # fmt: skip
    event = st.dictionaries(
        st.sampled_from(["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time", "ce-x", "Content-Type"]),
        value | st.sampled_from(["1.0", "/s", "application/json", "application/cloudevents+json"]),
        max_size=6,
    )
    requests: list[tuple[str, str, dict[str, Any]]] = []

    @settings(fuzzed, max_examples=200)
    @given(plain, event, st.sampled_from([b"1", b"{}", b'"x"', b"[]", b"\xff"]))
    def sent(plain: dict[str, str], event: dict[str, str], body: bytes) -> None:
        requests.append(("PUT", "/v1/tables/rows/rows/a", {"data": body, "headers": plain}))
        requests.append(("POST", "/v1/tables/events/events", {"data": body, "headers": event}))

    await asyncio.to_thread(sent)
    for method, path, how in requests:
        await _send(api, method, path, **how)
    await _is_alive(api)
