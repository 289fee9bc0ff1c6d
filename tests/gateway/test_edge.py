"""The edge: bad input ends here, typed; what passes is canonical."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX

PUT = {"sequence": 1, "op": "put", "table": "t", "key": "k", "value": 1}
REQUEST = {"client_id": "00000000000004d2", "epoch": 1, "first_incomplete": 1, "operations": [PUT]}

_plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    _plain | _text, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4), max_leaves=12
)
odd_values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        _text,
        st.binary(max_size=8),
        st.datetimes(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(_text, st.integers(0, 9), st.binary(max_size=2)), inner, max_size=3),
    ),
    max_leaves=8,
)


def translate(body: bytes, content_type: str = wire.JSON) -> c.Operate:
    return request_bodies.operations(request_bodies.decode(body, content_type, wire.OperationsRequest))


def refusal(body: bytes, content_type: str = wire.JSON) -> Code:
    with pytest.raises(OncegateError) as caught:
        translate(body, content_type)
    assert caught.value.outcome.value == ("unknown" if caught.value.code is Code.BAD_ACK else "not_applied")
    assert len(caught.value.detail) < 500, "a detail never carries the payload back"
    return caught.value.code


def body(changed: dict[str, Any] | None = None, without: str = "", **op: Any) -> bytes:
    fields = {name: value for name, value in (PUT | op).items() if name != without}
    return json.dumps(REQUEST | {"operations": [fields]} | (changed or {})).encode()


def one(**op: Any) -> c.Op:
    [translated] = translate(body(**op)).ops
    return translated


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b"{}",
        b"\0",
        b"{'client_id':1}",
        body() + b"x",
        body()[:-1],
    ],
)
def test_body_that_is_not_such_a_request_is_refused(text: bytes) -> None:
    assert refusal(text) is Code.BAD_REQUEST
    assert refusal(text, wire.MSGPACK) is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"client_id": 1234}, Code.BAD_REQUEST),
        ({"client_id": "4d2"}, Code.BAD_REQUEST),
        ({"client_id": "00000000000004D2"}, Code.BAD_REQUEST),
        ({"client_id": "0" * 16}, Code.BAD_REQUEST),
        ({"client_id": "f" * 16}, Code.BAD_REQUEST),
        ({"epoch": 0}, Code.BAD_REQUEST),
        ({"epoch": -1}, Code.BAD_REQUEST),
        ({"epoch": True}, Code.BAD_REQUEST),
        ({"epoch": 1.5}, Code.BAD_REQUEST),
        ({"epoch": ID_MAX + 1}, Code.BAD_REQUEST),
        ({"first_incomplete": 0}, Code.BAD_REQUEST),
        ({"first_incomplete": -1}, Code.BAD_REQUEST),
        ({"first_incomplete": "1"}, Code.BAD_REQUEST),
        ({"first_incomplete": None}, Code.BAD_REQUEST),
        ({"first_incomplete": ID_MAX + 1}, Code.BAD_ACK),
        ({"first_incomplete": 2**64 - 1}, Code.BAD_ACK),
        ({"first_incomplete": 2**70}, Code.BAD_ACK),
        ({"operations": []}, Code.BAD_REQUEST),
        ({"operations": {}}, Code.BAD_REQUEST),
        ({"operations": [None]}, Code.BAD_REQUEST),
        ({"operations": [PUT] * (c.OPERATIONS_MAX + 1)}, Code.PAYLOAD_TOO_LARGE),
    ],
    ids=lambda value: str(value)[:60],
)
def test_request_outside_its_bounds_is_refused_as_a_whole(changed: dict[str, Any], code: Code) -> None:
    assert refusal(body(changed)) is code


@pytest.mark.parametrize(
    ("op", "code"),
    [
        ({"sequence": 0}, Code.BAD_REQUEST),
        ({"sequence": ID_MAX + 1}, Code.BAD_REQUEST),
        ({"sequence": 2**64}, Code.BAD_REQUEST),
        ({"sequence": "1"}, Code.BAD_REQUEST),
        ({"sequence": True}, Code.BAD_REQUEST),
        ({"op": "PUT"}, Code.BAD_REQUEST),
        ({"op": ""}, Code.BAD_REQUEST),
        ({"op": None}, Code.BAD_REQUEST),
        ({"table": ""}, Code.BAD_REQUEST),
        ({"table": "T"}, Code.BAD_REQUEST),
        ({"table": "../x"}, Code.BAD_REQUEST),
        ({"table": "t\n"}, Code.BAD_REQUEST),
        ({"table": "t" * 65}, Code.BAD_REQUEST),
        ({"key": ""}, Code.BAD_REQUEST),
        ({"key": 1}, Code.BAD_REQUEST),
        ({"key": "a\0b"}, Code.BAD_REQUEST),
        ({"key": "k" * 513}, Code.PAYLOAD_TOO_LARGE),
        ({"key": "\N{SNOWMAN}" * 171}, Code.PAYLOAD_TOO_LARGE),
        ({"value": "x" * c.VALUE_BYTES_MAX}, Code.PAYLOAD_TOO_LARGE),
        ({"value": [1] * c.VALUE_BYTES_MAX}, Code.PAYLOAD_TOO_LARGE),
        ({"value": 2**64}, Code.BAD_REQUEST),
        ({"value": [{"a": -(2**63) - 1}]}, Code.BAD_REQUEST),
        ({"by": 1}, Code.BAD_REQUEST),
        ({"without": "value"}, Code.BAD_REQUEST),
        ({"op": "delete"}, Code.BAD_REQUEST),
        ({"op": "increment"}, Code.BAD_REQUEST),
        ({"op": "increment", "without": "value", "by": 2**63}, Code.BAD_REQUEST),
        ({"op": "increment", "without": "value", "by": -(2**63) - 1}, Code.BAD_REQUEST),
        ({"op": "increment", "without": "value", "by": 1.5}, Code.BAD_REQUEST),
        ({"op": "increment", "without": "value", "by": None}, Code.BAD_REQUEST),
        ({"op": "delete", "without": "value", "by": 1}, Code.BAD_REQUEST),
        ({"if": {}}, Code.BAD_REQUEST),
        ({"if": None}, Code.BAD_REQUEST),
        ({"if": {"absent": False}}, Code.BAD_REQUEST),
        ({"if": {"absent": 1}}, Code.BAD_REQUEST),
        ({"if": {"absent": True, "version": 1}}, Code.BAD_REQUEST),
        ({"if": {"version": True}}, Code.BAD_REQUEST),
        ({"if": {"version": -1}}, Code.BAD_REQUEST),
        ({"if": {"version": 1.0}}, Code.BAD_REQUEST),
        ({"if": {"version": ID_MAX + 1}}, Code.BAD_REQUEST),
        ({"if": {"value": "x" * c.VALUE_BYTES_MAX}}, Code.PAYLOAD_TOO_LARGE),
        ({"if": {"other": 1}}, Code.BAD_REQUEST),
    ],
    ids=lambda value: str(value)[:60],
)
def test_operation_outside_its_bounds_is_refused(op: dict[str, Any], code: Code) -> None:
    assert refusal(body(**op)) is code


@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"1" * 5_000,
        b"01",
        b"+1",
        b"1.",
        b".5",
        b"'x'",
        b'"\\ud800"',
        b'"\\udc00x"',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'"a\nb"',
        b"[1,]",
        b'{"a":1,}',
        b"{1:2}",
        b"tru",
        b"[" * 100_000,
        b"[" * 65 + b"]" * 65,
    ],
    ids=lambda value: value[:12].decode("latin1"),
)
def test_value_that_json_cannot_say_is_refused(value: bytes) -> None:
    text = body(value="@").replace(b'"@"', value)
    assert refusal(text) is Code.BAD_REQUEST


def packed(value: bytes) -> bytes:
    return msgspec.msgpack.encode(REQUEST | {"operations": [PUT | {"value": msgspec.Raw(value)}]})


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"\xcb\x7f\xf8" + bytes(6), id="nan"),
        pytest.param(b"\xcb\x7f\xf0" + bytes(6), id="infinity"),
        pytest.param(b"\xc4\x01a", id="bytes"),
        pytest.param(b"\x91\xc4\x01a", id="bytes inside"),
        pytest.param(b"\xd4\x05\x00", id="extension"),
        pytest.param(b"\xd6\xff" + bytes(4), id="timestamp"),
        pytest.param(b"\xd7\xff" + b"\xff" * 8, id="broken timestamp"),
        pytest.param(b"\xc1", id="never used"),
        pytest.param(b"\x81\x01\x01", id="integer key"),
        pytest.param(b"\x81\xc0\x01", id="null key"),
        pytest.param(b"\x81\x80\x01", id="map as key"),
        pytest.param(b"\x81\x91\x01\x01", id="array as key"),
        pytest.param(b"\x81\xc4\x01a\x01", id="bytes key"),
        pytest.param(b"\xa1\xff", id="broken utf-8"),
        pytest.param(b"\xa3\xed\xa0\x80", id="surrogate"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="array that claims 2^32 items"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map that claims 2^32 items"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="text that claims 4 GiB"),
        pytest.param(b"\x91" * 100_000 + b"\x01", id="nested too deeply for the decoder"),
        pytest.param(b"\x91" * 65 + b"\x01", id="nested more than 64 deep"),
        pytest.param(b"\x01\x01", id="trailing bytes"),
    ],
)
def test_msgpack_that_json_cannot_say_is_refused(value: bytes) -> None:
    assert refusal(packed(value), wire.MSGPACK) is Code.BAD_REQUEST


def test_values_at_the_bounds_pass() -> None:
    assert one(key="k" * 512).key == "k" * 512
    assert one(key="\N{SNOWMAN}" * 170).key
    assert one(value="x" * (c.VALUE_BYTES_MAX - 2)).value
    assert one(sequence=ID_MAX).sequence == ID_MAX
    assert one(value=2**64 - 1).value == b"18446744073709551615"
    assert one(value=None).value == b"null"
    deep: Any = 0
    for _ in range(64):
        deep = [deep]
    assert one(value=deep).value == b"[" * 64 + b"0" + b"]" * 64
    assert len(translate(body({"operations": [PUT] * c.OPERATIONS_MAX})).ops) == c.OPERATIONS_MAX
    assert one(op="increment", without="value").by == 1
    assert one(op="increment", without="value", by=-(2**63)).by == -(2**63)


def test_duplicates_in_a_request_pass_and_are_left_to_the_apply_rule() -> None:
    ops = translate(body({"operations": [PUT, PUT, PUT | {"value": 2}]})).ops
    assert [op.sequence for op in ops] == [1, 1, 1]
    assert ops[0].fingerprint == ops[1].fingerprint != ops[2].fingerprint


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shuffled(value[name]) for name in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=150, deadline=None)
@given(json_values, st.sampled_from(["put", "if value"]))
def test_same_value_has_the_same_fingerprint_in_any_encoding_and_key_order(value: Any, where: str) -> None:
    def request(said: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {"value": said} if where == "put" else {"value": 1, "if": {"value": said}}
        return REQUEST | {"operations": [PUT | fields]}

    bodies = [
        (json.dumps(request(value)).encode(), wire.JSON),
        (json.dumps(shuffled(request(value)), indent=1, ensure_ascii=False).encode(), wire.JSON),
        (msgspec.msgpack.encode(request(value)), wire.MSGPACK),
        (msgspec.msgpack.encode(shuffled(request(value))), wire.MSGPACK),
    ]
    ops = [translate(*sent).ops[0] for sent in bodies]
    assert len(set(ops)) == 1
    text = ops[0].value if where == "put" else ops[0].operand
    assert isinstance(text, bytes)
    assert msgspec.json.decode(text) == value


def test_each_part_of_a_payload_is_in_the_fingerprint_and_the_sequence_number_is_not() -> None:
    different = [
        one(),
        one(value=2),
        one(value="1"),
        one(value=1.0),
        one(key="k2"),
        one(table="t2"),
        one(op="delete", without="value"),
        one(op="increment", without="value"),
        one(op="increment", without="value", by=2),
        *[
            one(**{"if": condition})
            for condition in ({"absent": True}, {"version": 0}, {"version": 1}, {"value": 1}, {"value": 2})
        ],
        one(op="delete", without="value", **{"if": {"absent": True}}),
        one(table="tk", key="x"),
        one(table="t", key="kx"),
    ]
    assert len({op.fingerprint for op in different}) == len(different)
    assert one(sequence=7).fingerprint == one(sequence=8).fingerprint
    assert all(op.fingerprint == c.fingerprint(op) for op in different)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([wire.JSON, wire.MSGPACK, "text/plain", ""]))
def test_arbitrary_bytes_raise_nothing_but_a_typed_refusal(text: bytes, content_type: str) -> None:
    with suppress(OncegateError):
        assert translate(text, content_type).ops


mutated = st.fixed_dictionaries(
    {},
    optional={
        "sequence": odd_values | st.integers(-2, 2**65),
        "op": st.sampled_from(["put", "delete", "increment", "get"]) | odd_values,
        "table": st.sampled_from(["t", "s"]) | _text,
        "key": _text | odd_values,
        "value": odd_values,
        "by": odd_values | st.integers(-(2**65), 2**65),
        "if": odd_values | st.dictionaries(st.sampled_from(["absent", "version", "value"]), odd_values, max_size=2),
    },
)


@settings(max_examples=300, deadline=None)
@given(st.lists(mutated, max_size=3), st.sampled_from(["client_id", "epoch", "first_incomplete", ""]), odd_values)
def test_mutated_requests_raise_nothing_but_a_typed_refusal(ops: list[dict[str, Any]], field: str, value: Any) -> None:
    request = REQUEST | {"operations": [PUT | op for op in ops]} | ({field: value} if field else {})
    try:
        sent = msgspec.msgpack.encode(request)
    except OverflowError:
        return  # msgpack cannot say it either
    try:
        command = translate(sent, wire.MSGPACK)
    except OncegateError:
        return
    for op in command.ops:
        assert 1 <= op.sequence <= ID_MAX
        assert 1 <= len(op.key.encode()) <= c.KEY_BYTES_MAX
        assert op.value is None or _is_finite(json.loads(op.value))
    assert c.decode_entry(c.encode_entry(0, [command])).commands == [command]


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_is_finite, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))


@pytest.mark.parametrize(
    "fields",
    [
        {"nonce": ""},
        {"nonce": "x" * 65},
        {"nonce": "a\nb"},
        {"nonce": "a\0"},
        {"nonce": 1},
        {"nonce": "n", "lease_ms": 999},
        {"nonce": "n", "lease_ms": 24 * 3_600_000 + 1},
        {"nonce": "n", "lease_ms": 1e5},
        {"nonce": "n", "window": 0},
        {"nonce": "n", "window": 4097},
        {},
    ],
    ids=str,
)
def test_session_outside_its_bounds_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(OncegateError) as caught:
        request_bodies.open_session(request_bodies.decode(json.dumps(fields).encode(), wire.JSON, wire.OpenSession))
    assert caught.value.code is Code.BAD_REQUEST


def test_session_has_its_defaults() -> None:
    command = request_bodies.open_session(wire.OpenSession("n"))
    assert (command.nonce, command.lease_ms, command.window) == ("n", 60_000, 512)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "a/b", "A", "a b", "a\n", "\N{LATIN SMALL LETTER E WITH ACUTE}", "x" * 65]
)
def test_other_names_are_refused_each_time(name: str) -> None:
    for _ in range(2):
        with pytest.raises(OncegateError):
            request_bodies.check_name(name, "table")


def test_any_other_value_than_one_json_can_say_is_refused() -> None:
    for value in (b"x", (1,), {1}, object(), math.nan, math.inf, {1: 2}, [b""], 2**64):
        with pytest.raises(OncegateError):
            request_bodies.canonical_json(value, "value")


@pytest.mark.parametrize(
    "op",
    [
        {"op": "append"},
        {"op": "append", "item": 1, "value": 1},
        {"op": "append", "item": 1, "by": 1},
        {"op": "append", "item": math.nan},
        {"op": "get", "if": {"absent": True}},
        {"op": "get", "value": 1},
        {"op": "get", "item": 1},
        {"op": "put", "value": 1, "item": 1},
        {"op": "delete", "item": 1},
        {"op": "increment", "item": 1},
    ],
)
def test_operation_with_fields_of_another_is_refused(op: dict[str, Any]) -> None:
    request = {**REQUEST, "operations": [{"sequence": 1, "table": "t", "key": "k", **op}]}
    assert refusal(msgspec.msgpack.encode(request), wire.MSGPACK) is Code.BAD_REQUEST


def test_more_appends_than_one_request_may_hold_are_refused() -> None:
    item = {"op": "append", "table": "t", "key": "k", "item": 1}
    many = [{**item, "sequence": s} for s in range(1, c.APPENDS_MAX + 2)]
    assert refusal(msgspec.json.encode({**REQUEST, "operations": many})) is Code.PAYLOAD_TOO_LARGE
    assert len(translate(msgspec.json.encode({**REQUEST, "operations": many[1:]})).ops) == c.APPENDS_MAX
