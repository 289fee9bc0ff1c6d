"""Bad input: a typed problem, the state as it was, the node alive.

What is bad in a body is listed where bodies are decoded (:mod:`tests.gateway.test_edge`, for ranges
:mod:`tests.gateway.test_edge_range`); here each of it comes over HTTP, with what only HTTP can get wrong.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from oncegate.gateway.http.request_bodies import CONTROL_BYTES_MAX
from oncegate.gateway.http.server import ROUTES
from oncegate.rifl.errors import Code
from tests.conftest import Api
from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    MSGPACK,
    arrow_body,
    arrow_table,
    assert_problem,
    msgpack_range,
    one_node,
    operations,
    path_of,
    put,
    range_headers,
    serving,
    state_of,
)
from tests.gateway.test_edge import (
    NO_JSON_IN_MSGPACK,
    NO_REQUESTS,
    WRONG_OF_A_REQUEST,
    WRONG_OF_AN_OPERATION,
    operation,
)
from tests.gateway.test_edge_range import NO_COLUMNS, NO_LINES, NO_STREAMS, NO_VALUES

BODY_BYTES_MAX = 8 * 2**20
RANGES = "/v1/tables/events/ranges"


@pytest.fixture
async def unchanged(api: Api, client_id: str) -> AsyncIterator[str]:
    """Two tables with something in them and a session; after the test nothing of it may differ."""
    await api.operate(client_id, put(1, "a", 1))
    before = await state_of(api)
    yield client_id
    assert await state_of(api) == before
    assert (await api.call("GET", "/readyz"))[0] == 200
    assert (await api.operate(client_id, put(2, "a", 2)))[0]["commit"] == 2


async def post(api: Api, path: str, body: bytes, kind: str = "application/json") -> tuple[int, Any, Any]:
    return await api.call("POST", path, data=body, headers={"Content-Type": kind})


async def test_body_that_is_no_json_or_no_msgpack_is_refused(api: Api, unchanged: str) -> None:
    bodies = [*NO_REQUESTS, b'{"client_id":"\\ud800"}', b'{"client_id":"0000000000000001","epoch":1e999}', b"{}x"]
    bodies += [*NO_JSON_IN_MSGPACK.values(), b"\xc7\xff\x05", b"\xd9\xffabc"]
    for body in bodies:
        of_control = "BAD_REQUEST" if len(body) <= CONTROL_BYTES_MAX else "PAYLOAD_TOO_LARGE"
        for kind in ("application/json", MSGPACK, "application/x-www-form-urlencoded", "application/octet-stream"):
            assert_problem(await post(api, "/v1/operations", body, kind), "BAD_REQUEST")
            for path in ("/v1/sessions", "/v1/sessions/0000000000000001/renew"):
                assert_problem(await post(api, path, body, kind), of_control)
            for path in ("/v1/flows/f", "/v1/tables/t"):
                answer = await api.call("PUT", path, data=body, headers={"Content-Type": kind})
                assert_problem(answer, of_control)


async def test_body_of_another_content_type_than_it_says_is_refused(api: Api, unchanged: str) -> None:
    request = operations(unchanged, put(2, "a", 2))
    assert_problem(await post(api, "/v1/operations", msgspec.msgpack.encode(request)), "BAD_REQUEST")
    assert_problem(await post(api, "/v1/operations", json.dumps(request).encode(), MSGPACK), "BAD_REQUEST")
    bodies = {
        ARROW: arrow_body(["a"], ["1"]),
        MSGPACK: msgpack_range(["a"], ["1"]),
        JSON_LINES: b'{"key":"a","value":1}',
    }
    for said in bodies:
        for body in (body for kind, body in bodies.items() if kind != said):
            answer = await api.call("POST", RANGES, data=body, headers=range_headers(unchanged, 2, said))
            assert_problem(answer, "BAD_REQUEST")


async def test_one_wrong_field_refuses_the_whole_request(api: Api, unchanged: str) -> None:
    good = {"table": "rows", "key": "a", "sequence": 2}
    requests = [
        (code, operations(unchanged, put(3, "b", 1), operation(**{**good, **wrong})))
        for code, many in WRONG_OF_AN_OPERATION.items()
        for wrong in many
    ]
    requests += [
        (code, {**operations(unchanged, put(3, "b", 1)), **wrong})
        for code, many in WRONG_OF_A_REQUEST.items()
        for wrong in many
    ]
    for code, request in [*requests, (Code.BAD_REQUEST, {})]:
        answer = await api.call("POST", "/v1/operations", data=io.BytesIO(json.dumps(request).encode()))
        assert_problem(answer, code)


async def test_msgpack_value_that_json_has_not_is_refused(api: Api, unchanged: str) -> None:
    for value in map(msgspec.Raw, NO_JSON_IN_MSGPACK.values()):
        request = msgspec.msgpack.encode(operations(unchanged, put(2, "a", value)))
        assert_problem(await post(api, "/v1/operations", request, MSGPACK), "BAD_REQUEST")
        flow = msgspec.msgpack.encode({"source": "rows", "target": value})
        answer = await api.call("PUT", "/v1/flows/f", data=flow, headers={"Content-Type": MSGPACK})
        assert_problem(answer, "BAD_REQUEST" if len(flow) <= CONTROL_BYTES_MAX else "PAYLOAD_TOO_LARGE")


async def test_range_that_is_no_range_is_refused(api: Api, unchanged: str) -> None:
    no_ranges = {
        ARROW: [*NO_STREAMS.values(), *(arrow_body(["a"], [text]) for text in NO_VALUES), arrow_body([], [])],
        MSGPACK: [*NO_COLUMNS, *(msgpack_range(["a"], [text]) for text in NO_VALUES)],
        JSON_LINES: NO_LINES,
    }
    too_large = [
        arrow_body(["k" * 513], ["1"]),
        arrow_body(["a"], [json.dumps("x" * 256 * 1024)]),
        arrow_body(["a"] * 10_001, ["1"] * 10_001),
    ]
    refused = [("BAD_REQUEST", kind, body) for kind, bodies in no_ranges.items() for body in bodies]
    for code, kind, body in [*refused, *(("PAYLOAD_TOO_LARGE", ARROW, body) for body in too_large)]:
        answer = await api.call("POST", RANGES, data=body, headers=range_headers(unchanged, 2, kind))
        assert_problem(answer, code)


async def test_range_with_wrong_headers_is_refused(api: Api, unchanged: str) -> None:
    good, body = range_headers(unchanged, 2, ARROW), arrow_body(["a"], ["1"])
    for name in ("Oncegate-Client", "Oncegate-Epoch", "Oncegate-First-Sequence", "Oncegate-First-Incomplete"):
        for text in (None, "", "x", "0", "-1", "1.0", "\u0661", str(2**53), "9" * 400):
            headers = {**good, name: text} if text is not None else {k: v for k, v in good.items() if k != name}
            answer = await api.call("POST", RANGES, data=body, headers=headers)
            absurd = name == "Oncegate-First-Incomplete" and text == str(2**53)
            assert_problem(answer, "BAD_ACK" if absurd else "BAD_REQUEST")
    beyond = {**good, "Oncegate-First-Sequence": str(2**53 - 1)}
    answer = await api.call("POST", RANGES, data=arrow_body(["a", "b"], ["1", "2"]), headers=beyond)
    assert_problem(answer, "BAD_REQUEST")


async def test_body_over_the_limit_is_refused_however_it_comes(api: Api, unchanged: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 2**20 + 1):
            yield b" " * 2**20

    for body in (io.BytesIO(b" " * (BODY_BYTES_MAX + 1)), chunks()):
        assert_problem(await api.call("POST", "/v1/operations", data=body), "PAYLOAD_TOO_LARGE")


async def test_compressed_body_is_refused_and_never_expanded(api: Api, unchanged: str) -> None:
    bomb = gzip.compress(b" " * 50 * 2**20)
    assert len(bomb) < 100_000
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "nonsense"):
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        answer = await api.call("POST", "/v1/operations", data=bomb, headers=headers)
        assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")
        assert answer[1]["Accept-Encoding"] == "identity"


async def test_compressed_or_repeating_arrow_is_refused_before_it_is_expanded(
    api: Api, unchanged: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.dumps("x" * 100_000)
    bombs = [arrow_body(["a"] * 500, [value] * 500, compression=codec) for codec in ("zstd", "lz4")]
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int8()), pa.array([value]))
    bombs += [arrow_table({"key": pa.array(["a"] * 9000), "value": repeated})]
    bombs += [arrow_body(["a"], ["1"], compression="zstd")]

    def never(body: bytes) -> None:
        raise AssertionError("a bomb was handed to Arrow's reader")

    monkeypatch.setattr(pa.ipc, "open_stream", never)
    for bomb in bombs:
        assert len(bomb) < 1_000_000
        answer = await api.call("POST", RANGES, data=bomb, headers=range_headers(unchanged, 2, ARROW))
        assert_problem(answer, "BAD_REQUEST")


async def test_unknown_method_media_type_or_path_has_its_own_status(api: Api, unchanged: str) -> None:
    answer = await api.call("PATCH", "/v1/sessions", {})
    assert_problem(answer, "METHOD_NOT_ALLOWED")
    assert answer[1]["Allow"] == "GET,HEAD,POST"
    for method, path in (("GET", "/v1/operations"), ("PATCH", "/v1/tables/rows"), ("PATCH", "/v1/cluster")):
        assert_problem(await api.call(method, path), "METHOD_NOT_ALLOWED")
    for path in ("/", "/v1", "/v2/operations", "/v1/operations/", "/v1/tables/rows/rows/", "/v1/flows/f/batches"):
        assert_problem(await api.call("GET", path), "NOT_FOUND")
    for kind in ("text/plain", "text/xml", ARROW, "multipart/form-data; boundary=x"):
        for method, path in (("POST", "/v1/operations"), ("PUT", "/v1/tables/t"), ("PUT", "/v1/flows/f")):
            answer = await api.call(method, path, data=b"{}", headers={"Content-Type": kind})
            assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")
    for name in ("a" * 5000, "%00", "%0a", "%ff", "%E2%82%AC", "A", "-a", "a%20b"):
        for path in (f"/v1/tables/{name}", f"/v1/flows/{name}", f"/v1/flows/{name}/batches/1"):
            assert_problem(await api.call("GET", path), "BAD_REQUEST")


async def test_web_page_cannot_make_a_browser_write(api: Api, unchanged: str) -> None:
    """No route that changes something takes a request from a page of another origin, whatever its type."""
    base = api._http._base_url
    assert base is not None
    changing = [(route.method, path_of(route)) for route in ROUTES if route.method != "GET"]
    assert len(changing) > 20
    for origin in ("https://a.example", "null", f"http://a.example:{base.port}", f"http://{base.host}", ""):
        page = {"Origin": origin}
        for method, path in changing:
            for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
                answer = await api.call(method, path, data=b'{"nonce":"p"}', headers={"Content-Type": kind, **page})
                assert (answer[0], answer[2]["code"]) == (403, "FORBIDDEN"), (method, path, origin)
        preflight = {**page, "Access-Control-Request-Method": "POST"}
        assert_problem(await api.call("OPTIONS", "/v1/sessions", headers=preflight), "METHOD_NOT_ALLOWED")
        assert (await api.call("GET", "/v1/flows", headers=page))[0] == 200
    own = {"Origin": f"http://{base.host}:{base.port}"}
    assert_problem(await api.call("POST", "/v1/cluster/leader", {"to": "n9"}, headers=own), "CONFLICT")


async def test_page_that_points_its_name_at_a_node_gets_nothing_from_it(api: Api, unchanged: str) -> None:
    """DNS rebinding: the browser sends the page's name as Host, and its own origin is the page's."""
    others = ("a.example", "a.example:7400", "localhost.a.example", "127.0.0.1.a.example", "127.0.0.1@a.example", "[")
    for host in others:
        for route in ROUTES:
            line = f"{route.method} {path_of(route)} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
            status, body = await _raw(api, f"{line}Connection: close\r\nContent-Length: 0\r\n\r\n".encode())
            assert status in (400, 403), (host, route.path)
            assert b"allowed_hosts" in body or status == 400
    for host in ("localhost:1", "n1.localhost", "LOCALHOST.", "127.0.0.1", "[::1]:7400", "10.0.0.7"):
        assert (await _raw(api, f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()))[0] == 200, host
    assert (await _raw(api, b"GET /livez HTTP/1.0\r\n\r\n"))[0] == 200


async def test_names_that_a_node_is_told_are_answered_and_no_others(tmp_path: Path) -> None:
    names = ["gate.example", ".pods.example"]
    async with serving(one_node(tmp_path, allowed_hosts=names)) as (api, _):
        for host, status in (
            ("gate.example", 200), ("GATE.example:7400", 200), ("a.pods.example", 200), ("b.a.pods.example", 200),
            ("pods.example", 403), ("apods.example", 403), ("x.gate.example", 403),
        ):  # fmt: skip
            assert (await _raw(api, f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()))[0] == status, host


async def _raw(api: Api, request: bytes, *, abort: bool = False) -> tuple[int, bytes]:
    """Send bytes on a connection of their own; return status and what follows the headers."""
    base = api._http._base_url
    assert base is not None
    reader, writer = await asyncio.open_connection(base.host, base.port)
    try:
        writer.write(request)
        await writer.drain()
        if abort:
            writer.transport.abort()
            return 0, b""
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        return int(head.split()[1]), await asyncio.wait_for(reader.read(4096), 10)
    finally:
        writer.close()


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST /v1/operations HTTP/1.1", b"Host: localhost", *headers, b"", body])


async def test_too_large_a_body_is_refused_before_it_is_sent(api: Api, unchanged: str) -> None:
    for request, status, code in (
        (_post(b"Content-Length: 1000000000000", body=b"{"), 413, "PAYLOAD_TOO_LARGE"),
        (_post(b"Content-Length: 1000000000", b"Expect: 100-continue"), 413, "PAYLOAD_TOO_LARGE"),
        (_post(b"Content-Length: 5", b"Expect: more"), 400, "BAD_REQUEST"),
    ):
        answered, body = await _raw(api, request)
        assert (answered, msgspec.json.decode(body)["code"]) == (status, code)
    status, body = await _raw(api, _post(b"Content-Length: 2", b"Expect: 100-continue", body=b"[]"))
    assert (status, body[:13]) == (100, b"HTTP/1.1 400 ")


async def test_bytes_that_are_no_http_end_with_400_and_nothing_else(api: Api, unchanged: str) -> None:
    for request in (
        _post(b"Content-Length: 99999999999999999999999"),
        _post(b"Content-Length: -1"),
        _post(b"Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n"),
        _post(b"Transfer-Encoding: chunked", body=b"1\r\n{\r\nqq\r\n"),
        _post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
        _post(b"no header"),
        _post(b"X: " + b"a" * 9000),
        b"GET /v1/tables/a\0b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/tables/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/tables/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n",
        b"NONSENSE\r\n\r\n",
    ):
        status, body = await _raw(api, request)
        assert (status, msgspec.json.decode(body)["code"]) == (400, "BAD_REQUEST"), request[:80]


async def test_client_that_goes_away_in_the_middle_is_no_error_of_the_node(
    api: Api, unchanged: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        await _raw(api, _post(b"Content-Length: 100", body=b"{"), abort=True)
    assert (await api.call("GET", "/readyz"))[0] == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
