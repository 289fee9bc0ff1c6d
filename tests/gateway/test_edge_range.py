"""The wide edge: three bodies in, one canonical body out, and no body that grows."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.flows import range_body
from oncegate.gateway import wire
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, RANGE_LENGTH_MAX
from tests.gateway.http_contract import arrow_body, arrow_table, json_lines, msgpack_range, operations, put

TEXT = pa.string()
SCHEMA = pa.schema([("key", TEXT), ("value", TEXT)])
KEYS = ["k1", "kk2", "\N{SNOWMAN}"]
VALUES = ["1", '{"a":[true,null]}', '"x"']

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)
objects = st.dictionaries(texts, st.integers(-9, 9) | texts, max_size=3)


def translate(body: bytes, content_type: str, first: int = 1, table: str = "s") -> c.Range:
    return range_bodies.range_command(table, 1, 1, 1, first, body, content_type)


def refusal(body: bytes, content_type: str, first: int = 1) -> Code:
    with pytest.raises(OncegateError) as caught:
        translate(body, content_type, first)
    return caught.value.code


def arrow(keys: Any = KEYS, values: Any = VALUES) -> bytes:
    """Return two columns, of text or of what the given arrays hold."""
    columns = {"key": keys, "value": values}
    return arrow_table({name: c if isinstance(c, pa.Array) else pa.array(c, TEXT) for name, c in columns.items()})


def stream(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def refusals(keys: list[str], values: list[str]) -> list[Code]:
    """Refuse the same rows as Arrow, msgpack and JSON lines."""
    bodies = {
        wire.ARROW: arrow(keys, values),
        wire.MSGPACK: msgpack_range(keys, values),
        wire.JSON: json_lines(keys, values),
    }
    return [refusal(body, kind) for kind, body in bodies.items()]


def rows(command: c.Range) -> list[tuple[str, str]]:
    keys, values = range_body.decode(command.body, 0, len(command.fingerprints) // 8)
    return list(zip(keys.to_pylist(), values.to_pylist(), strict=True))


def test_three_bodies_give_one_canonical_command() -> None:
    one_by_one = [pa.record_batch([[k], [v]], schema=SCHEMA) for k, v in zip(KEYS, VALUES, strict=True)]
    commands = [
        translate(arrow(), wire.ARROW),
        translate(msgpack_range(KEYS, VALUES), wire.MSGPACK),
        translate(json_lines(KEYS, VALUES), wire.JSON),
        translate(stream(one_by_one, SCHEMA), wire.ARROW),
    ]
    assert all(command == commands[0] for command in commands)
    assert rows(commands[0]) == list(zip(KEYS, VALUES, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(texts, objects), min_size=1, max_size=6))
def test_put_has_the_same_fingerprint_alone_and_in_a_range(puts: list[tuple[str, dict[str, Any]]]) -> None:
    request = operations("0000000000000001", *(put(at, key, value, "s") for at, (key, value) in enumerate(puts, 1)))
    body = json.dumps(request).encode()
    alone = request_bodies.operations(request_bodies.decode(body, wire.JSON, wire.OperationsRequest)).ops
    ranged = translate(json_lines([k for k, _ in puts], [json.dumps(v) for _, v in puts]), wire.JSON)
    assert ranged.fingerprints == b"".join(op.fingerprint.to_bytes(8, "big") for op in alone)
    assert [value.encode() for _, value in rows(ranged)] == [op.value for op in alone]
    again = translate(msgpack_range([k for k, _ in puts], [v for _, v in rows(ranged)]), wire.MSGPACK)
    assert again == ranged


@pytest.mark.parametrize("content_type", [wire.ARROW, wire.MSGPACK])
def test_text_of_a_range_is_kept_and_fingerprinted_as_sent(content_type: str) -> None:
    """docs/decisions/0002: a retry sends the same text; canonical text hashes like a single put."""
    spelled = '{ "b" : 1,\n "a":"\\u00e9" }'
    body = arrow(["k"], [spelled]) if content_type == wire.ARROW else msgpack_range(["k"], [spelled])
    ranged = translate(body, content_type)
    assert rows(ranged) == [("k", spelled)]
    assert ranged.fingerprints == c.fingerprint_put("s", "k", spelled.encode()).to_bytes(8, "big")


NO_VALUES = [
    "", " ", "tru", "NaN", "'x'", "1 2", "[1,", '"\ud7ff', "01", "[1,]", "[" * 100_000, "1e999", "-1e999", "1" * 5000,
    str(2**64), "-" + "9" * 19, "[" * 65 + "]" * 65, "[" * 900 + "]" * 900, '"\\ud800"', '{"a":1e400}', "[-1E+400]",
]  # fmt: skip


@pytest.mark.parametrize("value", NO_VALUES, ids=lambda value: value[:12])
def test_value_that_a_single_put_could_not_say_is_refused_in_a_range(value: str) -> None:
    """What the edge lets through must be readable for ever: a poisoned row would fail each read and each sink."""
    assert refusals(["k"], [value]) == [Code.BAD_REQUEST] * 3


TOO_LARGE, BAD = Code.PAYLOAD_TOO_LARGE, Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("key", "code"), [("", BAD), ("a\0b", BAD), ("k" * 513, TOO_LARGE), ("\N{SNOWMAN}" * 171, TOO_LARGE)]
)
def test_key_outside_its_bounds_is_refused(key: str, code: Code) -> None:
    assert refusals(["a", key], ["1", "2"]) == [code] * 3


def test_value_over_its_bound_and_too_many_rows_are_refused() -> None:
    many = RANGE_LENGTH_MAX + 1
    assert refusals(["k"], ['"' + "x" * c.VALUE_BYTES_MAX + '"']) == [TOO_LARGE] * 3
    assert refusals(["k"] * many, ["1"] * many) == [TOO_LARGE] * 3
    assert len(translate(msgpack_range(["k"] * (many - 1), ["1"] * (many - 1)), wire.MSGPACK).fingerprints) == 8 * (
        many - 1
    )


@pytest.mark.parametrize("value", ["1e999", "1" * 30, "[" * 65 + "]" * 65])
@pytest.mark.parametrize("row", [0, 99, 100, 101, 999])
def test_value_that_nobody_could_read_is_found_in_whichever_slice_of_a_long_column(
    value: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_bodies, "_SLICE_BYTES", 700)
    values = [f'["{at:<{at % 7}}"]' for at in range(1_000)]
    assert range_bodies._suspects(pa.array(values)) == []
    values[row] = value
    assert range_bodies._suspects(pa.array(values)) == [row]
    assert refusals([f"k{at}" for at in range(1_000)], values) == [Code.BAD_REQUEST] * 3


JSON_VALUES = st.recursive(st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(), st.lists, max_leaves=3)
OUT_OF_RANGE = st.sampled_from(["1e999", "-" + "9" * 25, '[{"a":1E400}]', "[" * 65 + "]" * 65])


@given(values=st.lists(JSON_VALUES.map(json.dumps) | OUT_OF_RANGE, min_size=1, max_size=8), skipped=st.integers(0, 7))
def test_suspects_are_all_values_that_nobody_could_read_and_never_a_text(values: list[str], skipped: int) -> None:
    def readable(value: str) -> bool:
        try:
            request_bodies.canonical_json(request_bodies.value(value.encode(), wire.JSON), "value")
        except (OncegateError, ValueError):
            return False
        return True

    column = pa.array(values, pa.string()).slice(min(skipped, len(values) - 1))
    suspects = range_bodies._suspects(column)
    found = column.to_pylist()
    assert {row for row, value in enumerate(found) if not readable(value)} <= set(suspects)
    assert [row for row in suspects if found[row].startswith('"')] == []


@pytest.mark.parametrize(
    ("value", "built"), [('"' + "7" * 900 + '"', False), ("[" + "7" * 900 + "]", True), ('["' + "7" * 900 + '"]', True)]
)
def test_columns_whose_values_must_be_built_take_long_and_texts_do_not(value: str, built: bool) -> None:
    body = msgpack_range([f"k{at}" for at in range(100)], [value] * 100)
    place = ("s", 1, 1, 1, 1, body, wire.MSGPACK)
    if built:
        with pytest.raises(range_bodies.TakesLongError):
            range_bodies.range_command(*place, range_bodies.BUILT_AT_ONCE_BYTES_MAX)
    else:
        at_once = range_bodies.range_command(*place, range_bodies.BUILT_AT_ONCE_BYTES_MAX)
        assert at_once == range_bodies.range_command(*place)


def test_two_values_that_are_json_only_together_are_refused() -> None:
    assert refusal(msgpack_range(["k", "l"], ["1,[2", "3]"]), wire.MSGPACK) is Code.BAD_REQUEST
    assert refusal(arrow(pa.array(["k", "l"]), pa.array(["1,[2", "3]"])), wire.ARROW) is Code.BAD_REQUEST


def test_range_that_ends_beyond_the_last_number_is_refused() -> None:
    assert refusal(json_lines(KEYS, VALUES), wire.JSON, first=ID_MAX - 1) is Code.BAD_REQUEST
    assert translate(json_lines(KEYS, VALUES), wire.JSON, first=ID_MAX - 2).first == ID_MAX - 2


NO_COLUMNS = [
    *(msgpack_range(keys, ["1"]) for keys in ([], [1], [b"k"], ["k", "l"])),
    *(msgpack_range(["k"], values) for values in ([], [1], [None])),
    msgpack_range([], []),
    *(msgspec.msgpack.encode(shape) for shape in ({"keys": ["k"]}, ["k", "1"])),
    *(b"\x82\xa4keys\x91\xa1\xff\xa6values\x91\xa11", b""),
]
NO_LINES = [
    b"", b"\n\n", b"{}", b"[]", b'{"key":"k"}', b'{"value":1}', b'{"key":1,"value":1}', b'{"key":"k","value":1}{',
    b"\xff", b'{"key":"\\ud800","value":1}', b'{"key":"k","value":1}\n{"key":"k","value":}',
]  # fmt: skip


@pytest.mark.parametrize("body", NO_COLUMNS, ids=lambda body: repr(body)[:30])
def test_broken_msgpack_columns_are_refused(body: bytes) -> None:
    assert refusal(body, wire.MSGPACK) is Code.BAD_REQUEST


@pytest.mark.parametrize("body", NO_LINES)
def test_broken_lines_are_refused(body: bytes) -> None:
    assert refusal(body, wire.JSON) is Code.BAD_REQUEST


def both(kind: Any, key: Any, value: Any) -> bytes:
    return arrow(pa.array([key], kind), pa.array([value], kind))


LONG = '"' + "a" * 1_000 + '"'
REPEATED = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), pa.array([LONG]))
TWICE = pa.schema([("key", TEXT), ("key", TEXT), ("value", TEXT)])
NO_UTF8 = pa.Array.from_buffers(TEXT, 1, [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")])
ONE = pa.array(["1"])
NO_STREAMS = {
    "no batch": stream([], SCHEMA),
    "null key": arrow([None], ["1"]),
    "null value": arrow(["k"], [None]),
    "integers": both(pa.int64(), 1, 1),
    "floats": both(pa.float64(), 1.5, 1.5),
    "booleans": both(pa.bool_(), True, True),
    "lists": both(pa.list_(TEXT), ["k"], ["1"]),
    "nothing but nulls": both(pa.null(), None, None),
    "dictionaries": both(pa.dictionary(pa.int8(), TEXT), "k", "1"),
    "one value many times": arrow(["k"] * 100, REPEATED),
    "views, which may name one value many times": arrow(["k"] * 100, pa.array([LONG] * 100, pa.string_view())),
    "runs of one value": arrow(["k"], pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), ONE)),
    "one column": arrow_table({"key": ONE}),
    "more columns": arrow_table({"key": ONE, "value": ONE, "more": ONE}),
    "other columns": arrow_table({"value": ONE, "other": ONE}),
    "a column twice": stream([pa.record_batch([["k"], ["1"], ["2"]], schema=TWICE)], TWICE),
    "name that is not UTF-8": arrow().replace(b"key\0", b"k\xffy\0", 1),
    "key that is not UTF-8": arrow(NO_UTF8, ["1"]),
    "value that is not UTF-8": arrow(["k"], NO_UTF8),
    "file format": b"ARROW1\0\0" + arrow(),
    "metadata that claims 2 GiB": struct.pack("<ii", -1, 2**31 - 1) + arrow()[8:],
    "metadata of negative length": struct.pack("<ii", -1, -(2**31)) + arrow()[8:],
    "noise": b"\xff" * 64,
    "nothing": b"",
}


@pytest.mark.parametrize("body", NO_STREAMS.values(), ids=NO_STREAMS)
def test_other_arrow_streams_are_refused(body: bytes) -> None:
    assert refusal(body, wire.ARROW) is Code.BAD_REQUEST


@pytest.mark.parametrize("offsets", [(0, 2**31 - 1), (5, 1), (-5, 1), (0, -1)])
def test_offsets_outside_the_buffer_are_refused(offsets: tuple[int, int]) -> None:
    honest = arrow(["k"], ["1"])
    with_lie = honest.replace(struct.pack("<ii", 0, 1), struct.pack("<ii", *offsets), 1)
    assert with_lie != honest
    assert refusal(with_lie, wire.ARROW) is Code.BAD_REQUEST


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_refused_before_they_are_unmsgpack_range(codec: str) -> None:
    """A kilobyte may unpack to gigabytes: with a bound on the body alone the edge would be a decompression bomb."""
    value = '"' + "a" * 100_000 + '"'
    body = arrow_body(["k"] * 20, [value] * 20, compression=codec)
    assert len(body) < 20_000
    before = pa.total_allocated_bytes()
    assert refusal(body, wire.ARROW) is Code.BAD_REQUEST
    assert pa.total_allocated_bytes() <= before + len(body)


def test_truncated_stream_is_refused_wherever_it_ends() -> None:
    whole = arrow()
    marker = len(whole) - 8  # the end-of-stream marker may be left out; all rows are there
    for end in range(marker):
        assert refusal(whole[:end], wire.ARROW) is Code.BAD_REQUEST
    assert rows(translate(whole[:marker], wire.ARROW)) == rows(translate(whole, wire.ARROW))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
@example([(arrow().index(b"value"), 0xFF)])
def test_flipped_bytes_of_a_good_stream_raise_nothing_but_a_typed_refusal(flips: list[tuple[int, int]]) -> None:
    body = bytearray(arrow())
    for at, byte in flips:
        body[at % len(body)] = byte
    try:
        command = translate(bytes(body), wire.ARROW)
    except OncegateError:
        return
    for key, value in rows(command):
        assert 1 <= len(key.encode()) <= c.KEY_BYTES_MAX
        msgspec.json.decode(value)
