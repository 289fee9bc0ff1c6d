"""The edge: bad input ends here, typed; what passes is canonical."""

from __future__ import annotations

import json
import math
import uuid
from enum import Enum
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.gateway import wire
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.http import request_bodies, value_weight
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX

PUT = {"sequence": 1, "op": "put", "table": "t", "key": "k", "value": 1}
APPEND = {"sequence": 1, "op": "append", "table": "t", "key": "k", "item": 1}
REQUEST = {"client_id": "00000000000004d2", "epoch": 1, "first_incomplete": 1, "operations": [PUT]}

_plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    _plain | _text, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4), max_leaves=12
)
_keys = _text | st.integers(0, 9) | st.binary(max_size=2)
odd_values = st.recursive(
    _plain | st.floats() | _text | st.binary(max_size=8) | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
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


class Absent(Enum):
    """Stands for a field that is not there."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


def operation(**changed: Any) -> dict[str, Any]:
    return {name: value for name, value in (PUT | changed).items() if value is not ABSENT}


def body(changed: dict[str, Any] | None = None, **op: Any) -> bytes:
    return json.dumps(REQUEST | {"operations": [operation(**op)]} | (changed or {})).encode()


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def one(**op: Any) -> c.Op:
    [translated] = translate(body(**op)).ops
    return translated


NO_REQUESTS = [b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"{}", b"\0", b"nonsense", b"[" * 100_000]


@pytest.mark.parametrize("text", [*NO_REQUESTS, b"{'client_id':1}", body() + b"x", body()[:-1]])
def test_body_that_is_not_such_a_request_is_refused(text: bytes) -> None:
    assert refusal(text) is Code.BAD_REQUEST
    assert refusal(text, wire.MSGPACK) is Code.BAD_REQUEST


def each(**wrong: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return each wrong value of each field, alone."""
    return [{name: value} for name, values in wrong.items() for value in values]


WRONG_OF_A_REQUEST = {
    Code.BAD_REQUEST: each(
        client_id=(1234, "4d2", "00000000000004D2", "0" * 16, "f" * 16),
        epoch=(0, -1, True, 1.5, "1", ID_MAX + 1),
        first_incomplete=(0, -1, "1", None),
        operations=([], {}, [None], [[]], [5]),
    ),
    Code.BAD_ACK: each(first_incomplete=(ID_MAX + 1, 2**64 - 1, 2**70)),
    Code.PAYLOAD_TOO_LARGE: each(operations=([PUT] * (c.OPERATIONS_MAX + 1), [APPEND] * (c.APPENDS_MAX + 1))),
}
TOO_LARGE = ["x" * c.VALUE_BYTES_MAX, [1] * c.VALUE_BYTES_MAX]
INCREMENT = {"op": "increment", "value": ABSENT}
WRONG_OF_AN_OPERATION = {
    Code.BAD_REQUEST: [
        *each(
            sequence=(0, -1, ID_MAX + 1, 2**64, 2**100, 1.5, "1", None, True),
            op=("PUT", "", None, 1, "delete", "increment", "append", "get"),
            table=("", "T", "../x", "a b", "t\n", "t" * 65, 1, None),
            key=("", 1, None, ["a"], "a\0b"),
            value=(ABSENT, 2**64, 10**400, [{"a": -(2**63) - 1}], nested(65)),
            by=(1,),
            item=(1,),
        ),
        *({**INCREMENT, "by": by} for by in (2**63, -(2**63) - 1, 1.5, "1", None)),
        {**INCREMENT, "item": 1},
        *({"op": "delete", "value": ABSENT, **more} for more in each(by=(1,), item=(1,))),
        *({"op": "append", "value": ABSENT, **more} for more in ({}, {"item": 1, "by": 1})),
        {"op": "append", "item": 1},
        *({"op": "get", "value": ABSENT, **more} for more in each(item=(1,), **{"if": ({"absent": True},)})),
        *each(**{"if": ({}, None, [], "absent", {"other": 1}, {"absent": True, "version": 1})}),
        *({"if": condition} for condition in each(absent=(False, 1), version=(True, -1, 1.0, ID_MAX + 1))),
    ],
    Code.PAYLOAD_TOO_LARGE: [
        *each(key=("k" * 513, "\N{SNOWMAN}" * 171), value=tuple(TOO_LARGE)),
        {"if": {"value": TOO_LARGE[0]}},
    ],
}


def cases(table: dict[Code, list[dict[str, Any]]]) -> pytest.MarkDecorator:
    pairs = [(changed, code) for code, wrong in table.items() for changed in wrong]
    return pytest.mark.parametrize(("changed", "code"), pairs, ids=lambda value: str(value)[:60])


@cases(WRONG_OF_A_REQUEST)
def test_request_outside_its_bounds_is_refused_as_a_whole(changed: dict[str, Any], code: Code) -> None:
    assert refusal(body(changed)) is code


@cases(WRONG_OF_AN_OPERATION)
def test_operation_outside_its_bounds_is_refused(changed: dict[str, Any], code: Code) -> None:
    assert refusal(body(**changed)) is code


NO_JSON = [
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5_000, b"01", b"+1", b"1.", b".5", b"'x'", b'"\\ud800"',
    b'"\\udc00x"', b'"\xed\xa0\x80"', b'"\xff"', b'"a\nb"', b"[1,]", b'{"a":1,}', b"{1:2}", b"tru",
    b"[" * 100_000, b"[" * 65 + b"]" * 65,
]  # fmt: skip


@pytest.mark.parametrize("value", NO_JSON, ids=lambda value: value[:12].decode("latin1"))
def test_value_that_json_cannot_say_is_refused(value: bytes) -> None:
    assert refusal(body(value="@").replace(b'"@"', value)) is Code.BAD_REQUEST


NO_JSON_IN_MSGPACK = {
    "nan": b"\xcb\x7f\xf8" + bytes(6),
    "infinity": b"\xcb\x7f\xf0" + bytes(6),
    "bytes inside": b"\x91\xc4\x01a",
    "bytes in an object": b"\x81\xa1a\xc4\x01a",
    "extension": b"\xd4\x05\x00",
    "timestamp": b"\xd6\xff" + bytes(4),
    "broken timestamp": b"\xd7\xff" + b"\xff" * 8,
    "never used": b"\xc1",
    "integer key": b"\x81\x01\x01",
    "null key": b"\x81\xc0\x01",
    "map as key": b"\x81\x80\x01",
    "array as key": b"\x81\x91\x01\x01",
    "bytes key": b"\x81\xc4\x01a\x01",
    "broken utf-8": b"\xa1\xff",
    "surrogate": b"\xa3\xed\xa0\x80",
    "array that claims 2^32 items": b"\xdd\xff\xff\xff\xff",
    "map that claims 2^32 items": b"\xdf\xff\xff\xff\xff",
    "text that claims 4 GiB": b"\xdb\xff\xff\xff\xff",
    "nested too deeply for the decoder": b"\x91" * 100_000 + b"\x01",
    "nested more than 64 deep": b"\x91" * 65 + b"\x01",
    "trailing bytes": b"\x01\x01",
}


def packed(value: bytes) -> bytes:
    return msgspec.msgpack.encode(REQUEST | {"operations": [PUT | {"value": msgspec.Raw(value)}]})


@pytest.mark.parametrize("value", NO_JSON_IN_MSGPACK.values(), ids=NO_JSON_IN_MSGPACK)
def test_msgpack_that_json_cannot_say_is_refused(value: bytes) -> None:
    assert refusal(packed(value), wire.MSGPACK) is Code.BAD_REQUEST


@pytest.mark.parametrize("letter", ["k", "\xe4", "\N{SNOWMAN}", "\N{MUSICAL SYMBOL G CLEF}"])
def test_key_is_bounded_in_bytes_whatever_its_letters_take(letter: str) -> None:
    for count in range(1, 520):
        key = letter * count
        if len(key.encode()) <= c.KEY_BYTES_MAX:
            assert request_bodies.check_key(key) == key
        else:
            with pytest.raises(OncegateError) as refused:
                request_bodies.check_key(key)
            assert refused.value.code is Code.PAYLOAD_TOO_LARGE


def test_values_at_the_bounds_pass() -> None:
    assert one(key="k" * 512).key == "k" * 512
    assert one(key="\N{SNOWMAN}" * 170).key
    assert one(value="x" * (c.VALUE_BYTES_MAX - 2)).value
    assert one(sequence=ID_MAX).sequence == ID_MAX
    assert one(value=2**64 - 1).value == b"18446744073709551615"
    assert one(value=None).value == b"null"
    assert one(value=nested(64)).value == b"[" * 64 + b"0" + b"]" * 64
    for op, most in ((PUT, c.OPERATIONS_MAX), (APPEND, c.APPENDS_MAX)):
        assert len(translate(body({"operations": [op] * most})).ops) == most
    assert one(**INCREMENT).by == 1
    assert one(**INCREMENT, by=-(2**63)).by == -(2**63)


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
    conditions = [{"absent": True}, *each(version=(0, 1), value=(1, 2))]
    different = [
        *(one(**changed) for changed in each(value=(1, 2, "1", 1.0), key=("k2", "kx"), table=("t2",))),
        *(one(**{"if": condition}) for condition in conditions),
        *(one(op="delete", value=ABSENT, **more) for more in ({}, {"if": {"absent": True}})),
        *(one(**INCREMENT, **more) for more in ({}, {"by": 2})),
        one(table="tk", key="x"),
    ]
    assert len({op.fingerprint for op in different}) == len(different)
    assert one(sequence=7).fingerprint == one(sequence=8).fingerprint
    assert all(op.fingerprint == c.fingerprint(op) for op in different)


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


_sent = st.builds(
    wire.Operation,
    st.integers(0, 3) | st.sampled_from([ID_MAX, ID_MAX + 1, 2**64]),
    st.sampled_from(["put", "put", "put", "delete", "increment", "get", "nothing"]),
    st.sampled_from(["t", "s", "", "a b"]),
    st.sampled_from(["k", "", "a\0b", "k" * 128, "k" * 513, "\N{SNOWMAN}" * 129, "\N{SNOWMAN}" * 200]),
    odd_values | json_values | st.just("v" * c.VALUE_BYTES_MAX) | st.just(msgspec.UNSET),
    by=st.just(msgspec.UNSET) | st.integers(1, 2),
    if_=st.just(msgspec.UNSET) | st.just({"absent": True}) | st.just({"value": b"1"}),
    item=st.just(msgspec.UNSET) | st.just(1),
    floor=st.just(msgspec.UNSET) | st.just(1),
    ttl_ms=st.just(msgspec.UNSET) | st.integers(0, 1),
    bound=st.just(msgspec.UNSET) | st.booleans(),
)


@settings(max_examples=600, deadline=None)
@given(_sent)
@example(wire.Operation(1, "put", "t", "k", {"v": 1}))
@example(wire.Operation(1, "put", "t", "k", b"bytes"))
@example(wire.Operation(1, "put", "t", "k"))
def test_the_usual_put_becomes_the_bytes_that_the_checks_of_every_operation_make_of_it(sent: wire.Operation) -> None:
    def outcome(translated: Any) -> tuple[object, ...]:
        try:
            op = translated(sent, 3)
        except OncegateError as refused:
            return refused.code, refused.detail
        return type(op), msgspec.msgpack.encode(op)

    assert outcome(request_bodies.operation) == outcome(request_bodies.any_operation)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return all(map(_is_finite, value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()))


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


def test_what_the_sdk_divides_waiting_writes_into_is_built_at_once() -> None:
    puts = [
        {"sequence": number, "op": "put", "table": "resident", "key": str(uuid.UUID(int=number)), "value": "v" * 200}
        for number in range(10_000, 10_000 + Tuning().pipeline_min)
    ]
    assert len(msgspec.msgpack.encode(REQUEST | {"operations": puts})) <= request_bodies.INLINE_BYTES_MAX


@pytest.fixture
def nothing_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every body is translated as a large one is."""
    monkeypatch.setattr(request_bodies, "INLINE_BYTES_MAX", -1)


def _outcome(body: bytes, content_type: str) -> c.Operate | Code:
    try:
        return request_bodies.operate(body, content_type, "", "")
    except OncegateError as refused:
        return refused.code


_of_values = st.sampled_from([{}, {"op": "append", "value": ABSENT}, {"op": "get", "value": ABSENT}])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(mutated, _of_values), max_size=3), st.sampled_from([wire.JSON, wire.MSGPACK]))
def test_large_body_means_what_the_same_one_means_when_it_is_small(ops: list[Any], content_type: str) -> None:
    many = [operation(**(kind | changed)) for changed, kind in ops]
    try:
        packed = msgspec.msgpack.encode(REQUEST | {"operations": many})
        sent = packed if content_type == wire.MSGPACK else msgspec.json.encode(REQUEST | {"operations": many})
    except (OverflowError, TypeError, UnicodeEncodeError):
        return  # the encoder cannot say it
    small = _outcome(sent, content_type)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_bodies, "INLINE_BYTES_MAX", -1)
        assert _outcome(sent, content_type) == small


@pytest.mark.usefixtures("nothing_inline")
@cases(WRONG_OF_AN_OPERATION)
def test_operation_outside_its_bounds_is_refused_in_a_large_body_too(changed: dict[str, Any], code: Code) -> None:
    for content_type, encode in ((wire.JSON, json.dumps), (wire.MSGPACK, msgspec.msgpack.encode)):
        try:
            sent = encode(REQUEST | {"operations": [operation(**changed)]})  # type: ignore[operator]
        except OverflowError:
            continue
        assert _outcome(sent.encode() if isinstance(sent, str) else sent, content_type) is code


@pytest.mark.usefixtures("nothing_inline")
@pytest.mark.parametrize("value", NO_JSON_IN_MSGPACK.values(), ids=NO_JSON_IN_MSGPACK)
def test_msgpack_that_json_cannot_say_is_refused_in_a_large_body_too(value: bytes) -> None:
    assert _outcome(packed(value), wire.MSGPACK) is Code.BAD_REQUEST


@settings(max_examples=300, deadline=None)
@given(json_values | st.lists(json_values, max_size=40) | st.text('[{,"', max_size=40))
@example("[" * 9)
@example(["x" * 40, "x" * 300, "x" * 70_000])
def test_no_value_that_fits_is_taken_for_one_that_is_too_large(value: Any) -> None:
    canonical = len(request_bodies.canonical_json(value, "value"))
    sent = [json.dumps(value).encode(), json.dumps(value, indent=2, ensure_ascii=False).encode()]
    for text, is_packed in ((sent[0], False), (sent[1], False), (msgspec.msgpack.encode(value), True)):
        assert not value_weight.is_over(text, canonical, packed=is_packed)


@pytest.mark.parametrize(
    ("sent", "is_packed"),
    [
        (b"[" + b",".join([b"{}"] * 100_000) + b"]", False),
        (b"[" + b",".join([b"0"] * 300_000) + b"]", False),
        (b"\xdd" + (90_000).to_bytes(4, "big") + b"\x80" * 90_000, True),
        (b"\xdd" + (140_000).to_bytes(4, "big") + b"\x00" * 140_000, True),
        (b"\xdb" + (300_000).to_bytes(4, "big") + b"x" * 300_000, True),
        (b"[" + b" " * 2**21 + b"]", False),
    ],
)
def test_value_that_is_certainly_too_large_is_refused_unbuilt(
    sent: bytes, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_bodies, "decode", None)
    with pytest.raises(OncegateError) as refused:
        request_bodies.value(sent, wire.MSGPACK if is_packed else wire.JSON)
    assert refused.value.code is Code.PAYLOAD_TOO_LARGE
