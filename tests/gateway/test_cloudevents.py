"""CloudEvents in: three modes, one canonical form, all attributes kept; over HTTP each event is taken once."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http import cloudevents as ce
from oncegate.gateway.http import request_bodies
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import assert_problem, batch_lines, sealed

EVENT: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/sensors/7", "type": "com.example.measured"}
encode = msgspec.json.Encoder(order="deterministic").encode


def structured(event: Any) -> ce.CloudEvent:
    [found] = ce.read("t", ce.STRUCTURED, [], msgspec.json.encode(event))
    return found


def binary(headers: dict[str, str], body: bytes = b"") -> ce.CloudEvent:
    content_type = headers.get("Content-Type", "application/octet-stream").partition(";")[0]
    [found] = ce.read("t", content_type, headers.items(), body)
    return found


def headers(**more: str) -> dict[str, str]:
    named = {f"ce-{name}": value for name, value in {**EVENT, **more}.items() if name != "content"}
    return named | ({"Content-Type": more["content"]} if "content" in more else {})


def value(event: ce.CloudEvent) -> Any:
    assert event.op.value is not None
    return msgspec.json.decode(event.op.value)


def refusal(content_type: str, body: bytes, given_headers: dict[str, str] | None = None) -> Code:
    with pytest.raises(OncegateError) as caught:
        ce.read("t", content_type, (given_headers or {}).items(), body)
    return caught.value.code


def test_modes_of_one_event_have_one_canonical_form_and_one_key() -> None:
    event = {
        **EVENT,
        "time": "2026-01-31T10:00:00.5+01:00",
        "subject": "\u00e9 50%",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "datacontenttype": "application/json",
        "data": {"b": 1, "a": [None]},
    }
    sent = headers(
        time=event["time"], subject="%C3%A9 50%25", traceparent=event["traceparent"], content="application/json"
    )
    in_binary = binary(sent, b'{ "a":[null], "b":1 }')
    [in_batch] = ce.read("t", ce.BATCH, [], msgspec.json.encode([event]))
    assert in_binary == in_batch == structured(event)
    assert value(in_binary) == event
    assert in_binary.op.key == "/sensors/7 1"


@pytest.mark.parametrize(
    ("content", "body", "kept"),
    [
        ("application/json", b"null", {"data": None}),
        ("application/vnd.x+json; charset=utf-8", b"[1]", {"data": [1]}),
        ("text/plain; charset=utf-8", "\u00e9".encode(), {"data": "\u00e9"}),
        ("text/plain; charset=latin-1", b"\xe9", {"data_base64": "6Q=="}),
        ("application/xml", b"<a/>", {"data_base64": base64.b64encode(b"<a/>").decode()}),
        ("application/json", b"", {}),
        (None, b"\x00\x01", {"data_base64": "AAE="}),
    ],
)
def test_data_of_binary_mode_is_kept_as_the_json_format_has_it(
    content: str | None, body: bytes, kept: dict[str, Any]
) -> None:
    more = {} if content is None else {"content": content}
    expected = {**EVENT, **kept} | ({} if content is None else {"datacontenttype": content})
    assert value(binary(headers(**more), body)) == expected


def test_quoted_header_values_are_read_as_older_senders_wrote_them() -> None:
    assert value(binary(headers(subject='"a \\"b\\""')))["subject"] == 'a "b"'


def test_rows_of_two_events_are_the_same_only_if_source_and_id_are() -> None:
    keys = {structured({**EVENT, "source": s, "id": i}).op.key for s in ("a", "a/b") for i in ("b/c", "c", "b c")}
    assert len(keys) == 6


def test_null_attributes_are_unset_and_null_data_is_data() -> None:
    assert value(structured({**EVENT, "subject": None, "data": None})) == {**EVENT, "data": None}


@pytest.mark.parametrize(
    "changed",
    [
        {"specversion": "0.3"}, {"specversion": None}, {"id": None}, {"id": ""}, {"id": 1}, {"source": ""},
        {"source": "a b"}, {"type": None}, {"type": 7}, {"subject": ""}, {"time": "yesterday"},
        {"time": "2026-13-01T00:00:00Z"},
        {"dataschema": "relative"}, {"Upper": "x"}, {"with-dash": "x"}, {"x" * 65: "x"}, {"ext": 1.5}, {"ext": 2**31},
        {"ext": [1]}, {"ext": {"a": 1}}, {"id": "a\nb"}, {"id": "\x00"}, {"data": 1, "data_base64": "AA=="},
        {"data_base64": "?"}, {"data_base64": 1},
    ],
)  # fmt: skip
def test_what_the_specification_forbids_is_refused_alone_and_in_a_batch(changed: dict[str, Any]) -> None:
    event = {**EVENT, **changed}
    assert refusal(ce.STRUCTURED, msgspec.json.encode(event)) is Code.BAD_REQUEST
    assert refusal(ce.BATCH, msgspec.json.encode([EVENT, event])) is Code.BAD_REQUEST


LARGE = [{**EVENT, "id": "x" * 512}, {**EVENT, "data": "x" * 2**18}]
NO_EVENTS: list[tuple[Code, str, bytes]] = [
    *((Code.BAD_REQUEST, ce.STRUCTURED, body) for body in (b"", b"[]", b"1", b"{", b"[" * 50_000, b"\xff")),
    *((Code.BAD_REQUEST, ce.BATCH, body) for body in (b"", b"{}", b"[1]", b"[[]]")),
    (Code.BAD_REQUEST, "application/json", b"{}"),
    (Code.UNSUPPORTED_MEDIA_TYPE, "application/cloudevents+xml", b"<e/>"),
    (Code.UNSUPPORTED_MEDIA_TYPE, "application/cloudevents-batch+avro", b""),
    *((Code.PAYLOAD_TOO_LARGE, ce.STRUCTURED, msgspec.json.encode(event)) for event in LARGE),
    (Code.PAYLOAD_TOO_LARGE, ce.BATCH, msgspec.json.encode([{**EVENT, "id": str(n)} for n in range(4_097)])),
]


def test_bodies_and_headers_that_are_no_events_are_refused_typed() -> None:
    for code, content_type, body in NO_EVENTS:
        assert refusal(content_type, body) is code, body[:40]
    assert ce.read("t", ce.BATCH, [], b"[]") == []
    assert refusal("application/json", b"{", headers(content="application/json")) is Code.BAD_REQUEST
    twice = headers(UPPER="x") | {"CE-upper": "y"}
    for of_event in (headers(datacontenttype="x"), headers(data="x"), headers(subject="%ff"), twice):
        assert refusal("text/plain", b"", of_event) is Code.BAD_REQUEST


names = st.text(max_size=3)
names |= st.sampled_from([*EVENT, "time", "subject", "dataschema", "data", "data_base64", "ext", "X"])
junk = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(names, junk, max_size=6), st.booleans())
def test_whatever_comes_is_an_event_or_a_typed_refusal(changed: dict[str, Any], whole: bool) -> None:
    try:
        body = msgspec.json.encode({**EVENT, **changed} if whole else changed)
    except (OverflowError, UnicodeEncodeError):
        return
    with suppress(OncegateError):
        [event] = ce.read("t", ce.STRUCTURED, [], body)
        assert event.op.value == request_bodies.canonical_json(value(event), "event")
        request_bodies.check_key(event.op.key)


PATH = "/v1/tables/events/events"


def event(number: int, **more: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": f"e{number}", "source": "/s", "type": "t", "data": {"n": number}, **more}


async def send(api: Api, content_type: str, shape: Any, path: str = PATH) -> tuple[int, Any, Any]:
    return await api.call("POST", path, data=json.dumps(shape).encode(), headers={"Content-Type": content_type})


async def test_event_is_taken_once_in_whatever_mode_it_comes_again(api: Api, client_id: str) -> None:
    status, headers, first = await send(api, ce.STRUCTURED, event(1, datacontenttype="application/json"))
    assert (status, "Idempotent-Replayed" in headers) == (200, False)
    [result] = first["results"]
    assert (result["key"], result["commit"], result["status"], result["replayed"]) == ("/s e1", 1, "applied", False)
    in_binary = {"ce-specversion": "1.0", "ce-id": "e1", "ce-source": "/s", "ce-type": "t"}
    status, headers, again = await api.call(
        "POST", PATH, data=b'{"n":1}', headers={**in_binary, "Content-Type": "application/json"}
    )
    assert (status, headers["Idempotent-Replayed"]) == (200, "true")
    assert again["results"] == [{**result, "replayed": True}]
    assert headers["Oncegate-Request"] == result["request"]
    assert (await api.call("GET", f"/v1/requests/{result['request']}"))[2]["state"] == "applied"
    row = (await api.call("GET", "/v1/tables/events/rows/%2Fs%20e1"))[2]
    assert row["value"] == event(1, datacontenttype="application/json")
    assert_problem(await send(api, ce.STRUCTURED, event(1, type="other")), "PAYLOAD_MISMATCH")


async def test_batch_that_is_sent_again_applies_only_what_is_new(api: Api, client_id: str) -> None:
    """Case 33 for events; the flow holds each once, in order."""
    await send(api, ce.BATCH, [event(1), event(2)])
    status, headers, body = await send(api, ce.BATCH, [event(number) for number in (2, 3, 1, 3)])
    assert status == 200
    assert [(r["commit"], r["replayed"]) for r in body["results"]] == [(2, True), (3, False), (1, True), (3, True)]
    assert int(headers["Oncegate-Memory-Ms"]) == body["memory_ms"] > 0
    await sealed(api, "events")
    items = await batch_lines(api, "events")
    assert [item["value"] for item in items] == [event(1), event(2), event(3)]
    assert [item["sequence"] for item in items] == [1, 2, 3]


async def test_batch_with_a_refused_event_has_its_status_and_may_be_sent_again(api: Api, client_id: str) -> None:
    await send(api, ce.STRUCTURED, event(1))
    answer = await send(api, ce.BATCH, [event(1, type="other"), event(2)])
    assert (answer[0], answer[2]["code"], answer[2]["outcome"]) == (422, "PAYLOAD_MISMATCH", "unknown")
    assert [result["status"] for result in answer[2]["results"]] == ["rejected", "applied"]
    status, _, body = await send(api, ce.BATCH, [event(2)])
    assert (status, body["results"][0]["replayed"]) == (200, True)
    assert_problem(await send(api, ce.BATCH, [event(3)], "/v1/tables/nowhere/events"), "NOT_FOUND")


async def test_events_go_into_resident_tables_too_and_tables_do_not_share_keys(api: Api, client_id: str) -> None:
    for table in ("rows", "events"):
        status, headers, _ = await send(api, ce.STRUCTURED, event(1), f"/v1/tables/{table}/events")
        assert (status, "Idempotent-Replayed" in headers) == (200, False)
    assert (await api.call("GET", "/v1/tables/rows/rows/%2Fs%20e1"))[2]["value"] == event(1)


async def test_what_is_no_event_is_refused_and_an_empty_batch_is_not(api: Api, client_id: str) -> None:
    assert (await send(api, ce.BATCH, []))[2]["results"] == []
    assert_problem(await send(api, ce.BATCH, [event(1), 7]), "BAD_REQUEST")
    assert_problem(await send(api, "application/cloudevents+xml", event(1)), "UNSUPPORTED_MEDIA_TYPE")
    assert_problem(await send(api, ce.STRUCTURED, event(1), "/v1/tables/NO/events"), "BAD_REQUEST")
    assert (await api.call("GET", "/v1/flows"))[1]["Oncegate-Commit"] == "0"
