"""Bad input: a typed problem, the state as it was, the node alive."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from tests.gateway.http_contract import (
    ARROW,
    JSON_LINES,
    MSGPACK,
    arrow_body,
    arrow_table,
    assert_problem,
    declare,
    msgpack_range,
    put,
    range_headers,
    state_of,
)

if TYPE_CHECKING:
    from tests.conftest import Api

BODY_BYTES_MAX = 8 * 2**20


@asynccontextmanager
async def unchanged(api: Api) -> AsyncIterator[str]:
    """Two tables with something in them and a session; after the context nothing of it may differ."""
    await declare(api)
    await declare(api, "events", "stream")
    client_id = await api.session()
    await api.operate(client_id, put(1, "a", 1))
    before = await state_of(api)
    yield client_id
    assert await state_of(api) == before
    assert (await api.call("GET", "/readyz"))[0] == 200
    assert (await api.operate(client_id, put(2, "a", 2)))[0]["commit"] == 2


def _request(client_id: Any, *operations: Any, epoch: Any = 1, first_incomplete: Any = 1) -> dict[str, Any]:
    return {"client_id": client_id, "epoch": epoch, "first_incomplete": first_incomplete, "operations": operations}


async def test_body_that_is_no_json_or_no_msgpack_is_refused(api: Api) -> None:
    async with unchanged(api):
        bodies = [
            b"", b"{", b"[]", b"null", b"nonsense", b"\xff\xfe", b'{"client_id":"\\ud800"}', b"[" * 100_000, b"{}x",
            b"\0",
            b'{"client_id":"0000000000000001","epoch":1e999}', b"\xc1", b"\x81\x80\x01", b"\xdd\xff\xff\xff\xff",
            b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 100_000, b"\xc7\xff\x05", b"\xd9\xffabc",
        ]  # fmt: skip
        for body in bodies:
            for kind in ("application/json", MSGPACK, "application/x-www-form-urlencoded", "application/octet-stream"):
                for path in ("/v1/operations", "/v1/sessions", "/v1/sessions/0000000000000001/renew"):
                    answer = await api.call("POST", path, data=body, headers={"Content-Type": kind})
                    assert_problem(answer, "BAD_REQUEST")
                for path in ("/v1/flows/f", "/v1/tables/t"):
                    answer = await api.call("PUT", path, data=body, headers={"Content-Type": kind})
                    assert_problem(answer, "BAD_REQUEST")


async def test_body_of_another_content_type_than_it_says_is_refused(api: Api) -> None:
    async with unchanged(api) as client_id:
        request = _request(client_id, put(2, "a", 2))
        for body, kind in (
            (msgspec.msgpack.encode(request), "application/json"),
            (json.dumps(request).encode(), MSGPACK),
        ):
            answer = await api.call("POST", "/v1/operations", data=body, headers={"Content-Type": kind})
            assert_problem(answer, "BAD_REQUEST")
        bodies = {
            ARROW: arrow_body(["a"], ["1"]),
            MSGPACK: msgpack_range(["a"], ["1"]),
            JSON_LINES: b'{"key":"a","value":1}',
        }
        for said in bodies:
            for kind, body in bodies.items():
                if kind != said:
                    headers = range_headers(client_id, 2, said)
                    assert_problem(
                        await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers), "BAD_REQUEST"
                    )


async def test_operation_with_one_wrong_field_refuses_the_whole_request(api: Api) -> None:
    async with unchanged(api) as client_id:
        good = put(2, "a", 2)
        wrong: list[Any] = [
            {**good, "sequence": value} for value in (0, -1, 2**53, 2**64, 2**100, 1.5, "2", None, True)
        ]
        wrong += [{**good, "op": value} for value in ("", "PUT", "append", "get", 1, None)]
        wrong += [{**good, "table": value} for value in ("", "Rows", "a b", "a" * 65, "../x", 1, None)]
        wrong += [{**good, "key": value} for value in ("", "a\0b", 1, None, ["a"])]
        wrong += [{**good, "if": value} for value in ({}, {"absent": False}, {"absent": 1}, {"version": -1})]
        conditions: list[Any] = [{"version": 1, "absent": True}, {"other": 1}, [], "absent"]
        wrong += [{**good, "if": condition} for condition in conditions]
        wrong += [{**good, "value": 2**64}, {**good, "value": -(2**63) - 1}, {**good, "value": 10**400}]
        wrong += [{**good, "by": 1}, {name: good[name] for name in good if name != "value"}]
        wrong += [{**good, "op": "delete"}, {**good, "op": "increment"}, {}, [], 5, None]
        increment = {"sequence": 2, "op": "increment", "table": "rows", "key": "n"}
        wrong += [{**increment, "by": value} for value in (2**63, -(2**63) - 1, 1.5, "1", None)]
        deep: Any = 1
        for _ in range(65):
            deep = [deep]
        wrong.append({**good, "value": deep})
        for operation in wrong:
            answer = await api.call("POST", "/v1/operations", _request(client_id, put(3, "b", 1), operation))
            assert_problem(answer, "BAD_REQUEST")
        for request in (
            _request("1", good),
            _request(1, good),
            _request(client_id, good, epoch=0),
            _request(client_id, good, epoch="1"),
            _request(client_id, good, first_incomplete=0),
            _request(client_id, good, first_incomplete=-1),
            _request(client_id),
            {},
        ):
            assert_problem(await api.call("POST", "/v1/operations", request), "BAD_REQUEST")


async def test_msgpack_value_that_json_has_not_is_refused(api: Api) -> None:
    async with unchanged(api) as client_id:
        nothing_like_it: list[Any] = [
            b"bytes", float("nan"), float("inf"), {1: 2}, {(1,): 2}, msgspec.msgpack.Ext(5, b"x"), {"a": [b"x"]}
        ]  # fmt: skip
        for value in nothing_like_it:
            body = msgspec.msgpack.encode(_request(client_id, put(2, "a", value)))
            answer = await api.call("POST", "/v1/operations", data=body, headers={"Content-Type": MSGPACK})
            assert_problem(answer, "BAD_REQUEST")
            flow = msgspec.msgpack.encode({"source": "rows", "target": value})
            answer = await api.call("PUT", "/v1/flows/f", data=flow, headers={"Content-Type": MSGPACK})
            assert_problem(answer, "BAD_REQUEST")


async def test_oversized_key_value_and_request_are_refused(api: Api) -> None:
    async with unchanged(api) as client_id:
        for operations in (
            [put(2, "k" * 513, 1)],
            [put(2, "\u20ac" * 171, 1)],
            [put(2, "a", "x" * (256 * 1024))],
            [{**put(2, "a", 1), "if": {"value": "x" * (256 * 1024)}}],
            [put(i, "a", 1) for i in range(2, 4100)],
        ):
            answer = await api.call("POST", "/v1/operations", _request(client_id, *operations))
            assert_problem(answer, "PAYLOAD_TOO_LARGE")
        headers = range_headers(client_id, 2, ARROW)
        for body in (
            arrow_body(["k" * 513], ["1"]),
            arrow_body(["a"], [json.dumps("x" * 256 * 1024)]),
            arrow_body(["a"] * 10_001, ["1"] * 10_001),
        ):
            answer = await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers)
            assert_problem(answer, "PAYLOAD_TOO_LARGE")


async def test_unknown_table_rejects_the_operation_and_changes_nothing(api: Api) -> None:
    async with unchanged(api) as client_id:
        (result,) = await api.operate(client_id, put(2, "a", 2, table="nowhere"))
        assert (result["status"], result["code"]) == ("rejected", "NOT_FOUND")


async def test_body_over_the_limit_is_refused_however_it_comes(api: Api) -> None:
    async with unchanged(api):

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(BODY_BYTES_MAX // 2**20 + 1):
                yield b" " * 2**20

        for body in (io.BytesIO(b" " * (BODY_BYTES_MAX + 1)), chunks()):
            assert_problem(await api.call("POST", "/v1/operations", data=body), "PAYLOAD_TOO_LARGE")


async def test_compressed_body_is_refused_and_never_expanded(api: Api) -> None:
    async with unchanged(api):
        bomb = gzip.compress(b" " * 50 * 2**20)
        assert len(bomb) < 100_000
        for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "nonsense"):
            headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
            answer = await api.call("POST", "/v1/operations", data=bomb, headers=headers)
            assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")
            assert answer[1]["Accept-Encoding"] == "identity"


async def test_method_type_or_path_that_is_not_there_has_its_own_status(api: Api) -> None:
    async with unchanged(api):
        answer = await api.call("PATCH", "/v1/sessions", {})
        assert_problem(answer, "METHOD_NOT_ALLOWED")
        assert answer[1]["Allow"] == "POST"
        assert_problem(await api.call("GET", "/v1/nothing"), "NOT_FOUND")
        for kind in ("text/plain", "text/xml", ARROW, "multipart/form-data; boundary=x"):
            for method, path in (("POST", "/v1/operations"), ("PUT", "/v1/tables/t"), ("PUT", "/v1/flows/f")):
                answer = await api.call(method, path, data=b"{}", headers={"Content-Type": kind})
                assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")


async def test_web_page_cannot_make_a_browser_write(api: Api) -> None:
    """What a page of another site can send without a preflight, and what it would need one for."""
    body = b'{"nonce":"of-a-page"}'
    async with unchanged(api):
        for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}, {"Content-Type": "text/plain"}):
            answer = await api.call(
                "POST", "/v1/sessions", data=body, headers={**headers, "Origin": "https://a.example"}
            )
            assert_problem(answer, "UNSUPPORTED_MEDIA_TYPE")
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert_problem(await api.call("OPTIONS", "/v1/sessions", headers=preflight), "METHOD_NOT_ALLOWED")


async def test_too_large_a_body_is_refused_before_it_is_sent_if_its_sender_asks(api: Api) -> None:
    async with unchanged(api):
        status, body = await _raw(api, _post(b"Content-Length: 1000000000", b"Expect: 100-continue"))
        assert (status, msgspec.json.decode(body)["code"]) == (413, "PAYLOAD_TOO_LARGE")
        status, body = await _raw(api, _post(b"Content-Length: 5", b"Expect: more"))
        assert (status, msgspec.json.decode(body)["code"]) == (400, "BAD_REQUEST")
        status, body = await _raw(api, _post(b"Content-Length: 2", b"Expect: 100-continue", body=b"[]"))
        assert status == 100
        assert body.startswith(b"HTTP/1.1 400 "), body


async def test_range_with_wrong_headers_is_refused(api: Api) -> None:
    async with unchanged(api) as client_id:
        good = range_headers(client_id, 2, ARROW)
        body = arrow_body(["a"], ["1"])
        for name in ("Oncegate-Client", "Oncegate-Epoch", "Oncegate-First-Sequence", "Oncegate-First-Incomplete"):
            for text in (None, "", "x", "0", "-1", "1.0", "\u0661", str(2**53), "9" * 400):
                headers = {**good, name: text} if text is not None else {k: v for k, v in good.items() if k != name}
                answer = await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers)
                absurd = name == "Oncegate-First-Incomplete" and text == str(2**53)
                assert_problem(answer, "BAD_ACK" if absurd else "BAD_REQUEST")
        beyond = {**good, "Oncegate-First-Sequence": str(2**53 - 1)}
        two = arrow_body(["a", "b"], ["1", "2"])
        answer = await api.call("POST", "/v1/tables/events/ranges", data=two, headers=beyond)
        assert_problem(answer, "BAD_REQUEST")


async def test_range_that_is_no_range_is_refused(api: Api) -> None:
    strings, numbers = pa.array(["1"]), pa.array([1])
    no_ranges = [
        b"", b"nonsense", b"\xff\xff\xff\xff", arrow_body(["a"], ["1"])[:-40], arrow_body([], []),
        arrow_table({"key": strings}), arrow_table({"key": strings, "value": numbers}),
        arrow_table({"key": numbers, "value": strings}), arrow_table({"key": strings, "other": strings}),
        arrow_table({"key": strings, "value": strings, "more": strings}),
        arrow_table({"key": pa.array(["a", None]), "value": pa.array(["1", "1"])}),
        arrow_table({"key": pa.array(["a", "b"]), "value": pa.array(["1", None])}),
        arrow_table({"key": strings, "value": pa.array(["1"], pa.string_view())}),
        arrow_table({"key": strings, "value": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), strings)}),
        arrow_body([""], ["1"]), arrow_body(["a\0b"], ["1"]),
    ]  # fmt: skip
    texts = [
        "",
        "nonsense",
        "{",
        '"\\ud800"',
        "1 2",
        "NaN",
        "1e999",
        "[-1E+400]",
        "9" * 40,
        "-" + "9" * 19,
        "[" * 65 + "]" * 65,
    ]
    no_ranges += [arrow_body(["a"], [text]) for text in texts]
    async with unchanged(api) as client_id:
        for kind, bodies in (
            (ARROW, no_ranges),
            (
                MSGPACK,
                [msgpack_range(["a"], [text]) for text in texts]
                + [msgpack_range(["a", "b"], ["1"]), msgpack_range([], [])],
            ),
            (
                "application/json",
                [b"", b"\n\n", b'{"key":"a"}', b'{"value":1}', b'{"key":1,"value":1}', b'{"key":"a","value":1e999}'],
            ),
        ):
            headers = range_headers(client_id, 2, kind)
            for body in bodies:
                answer = await api.call("POST", "/v1/tables/events/ranges", data=body, headers=headers)
                assert_problem(answer, "BAD_REQUEST")


async def test_compressed_or_repeating_arrow_is_refused_before_it_is_expanded(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.dumps("x" * 100_000)
    bombs = [arrow_body(["a"] * 500, [value] * 500, compression=codec) for codec in ("zstd", "lz4")]
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 9000, pa.int8()), pa.array([value]))
    bombs.append(arrow_table({"key": pa.array(["a"] * 9000), "value": repeated}))
    bombs.append(arrow_body(["a"], ["1"], compression="zstd"))
    async with unchanged(api) as client_id:
        headers = range_headers(client_id, 2, ARROW)

        def never(body: bytes) -> None:
            raise AssertionError("a bomb was handed to Arrow's reader")

        with monkeypatch.context() as patched:
            patched.setattr(pa.ipc, "open_stream", never)
            for bomb in bombs:
                assert len(bomb) < 1_000_000
                answer = await api.call("POST", "/v1/tables/events/ranges", data=bomb, headers=headers)
                assert_problem(answer, "BAD_REQUEST")


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
    return b"\r\n".join([b"POST /v1/operations HTTP/1.1", b"Host: x", *headers, b"", body])


async def test_huge_content_length_is_refused_without_waiting_for_the_body(api: Api) -> None:
    async with unchanged(api):
        status, body = await _raw(api, _post(b"Content-Length: 1000000000000", body=b"{"))
        assert status == 413
        assert msgspec.json.decode(body)["code"] == "PAYLOAD_TOO_LARGE"


async def test_bytes_that_are_no_http_end_with_400_and_nothing_else(api: Api) -> None:
    async with unchanged(api):
        for request in (
            _post(b"Content-Length: 99999999999999999999999"),
            _post(b"Content-Length: -1"),
            _post(b"Transfer-Encoding: chunked", body=b"zz\r\nabc\r\n0\r\n\r\n"),
            _post(b"Transfer-Encoding: chunked", body=b"1\r\n{\r\nqq\r\n"),
            _post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n"),
            _post(b"no header"),
            _post(b"X: " + b"a" * 9000),
            b"GET /v1/tables/a\0b HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/tables/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /v1/tables/" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\r\n\r\n",
            b"NONSENSE\r\n\r\n",
        ):
            status, body = await _raw(api, request)
            assert status == 400, request[:80]
            assert msgspec.json.decode(body)["code"] == "BAD_REQUEST", body


async def test_client_that_goes_away_in_the_middle_is_no_error_of_the_node(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    async with unchanged(api):
        for _ in range(5):
            await _raw(api, _post(b"Content-Length: 100", body=b"{"), abort=True)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_long_and_strange_paths_are_refused(api: Api) -> None:
    async with unchanged(api):
        for name in ("a" * 5000, "%00", "%0a", "%ff", "%E2%82%AC", "A", "-a", "a%20b"):
            for path in (f"/v1/tables/{name}", f"/v1/flows/{name}", f"/v1/flows/{name}/batches/1"):
                status, head, body = await api.call("GET", path)
                assert_problem((status, head, body), "BAD_REQUEST")
