"""What the body of a range may contain."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import range_body
from flows.errors import BadRequestError

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def stream(schema: pa.Schema, *batches: list[pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch(batch, schema=schema))
    return sink.getvalue().to_pybytes()


def check(body: bytes) -> int:
    return range_body.check(body, items_max=100, value_bytes_max=50)


@settings(deadline=None)
@given(
    st.lists(st.tuples(KEYS, st.sampled_from([None, b"1", b' {"a": [true]} ', b'"x"'])), min_size=1, max_size=20),
    st.data(),
)
def test_rows_come_back_from_any_slice(rows: list[tuple[str, bytes | None]], data: st.DataObject) -> None:
    body = range_body.encode([key for key, _ in rows], [value for _, value in rows])
    assert check(body) == len(rows)
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    keys, values = range_body.decode(body, start, stop - start)
    texts = [None if value is None else value.decode() for _, value in rows[start:stop]]
    assert (keys.to_pylist(), values.to_pylist()) == ([key for key, _ in rows[start:stop]], texts)


@pytest.mark.parametrize("value", [b"", b"1,2", b"1,[2", b"3]", b"tru", b"{'a':1}", b"01", b"NaN", b"1" * 51])
def test_value_that_is_not_one_json_text_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequestError):
        check(range_body.encode(["k"], [value]))


def test_two_values_that_are_json_only_together_are_refused() -> None:
    with pytest.raises(BadRequestError):
        check(range_body.encode(["k", "l"], [b"1,[2", b"3]"]))


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257])
def test_key_outside_its_bounds_is_refused(key: str) -> None:
    with pytest.raises(BadRequestError):
        check(range_body.encode([key], [b"1"]))


def test_null_key_other_columns_and_other_types_are_refused() -> None:
    text = pa.array(["x"], pa.string())
    for body in (
        stream(range_body.BODY_SCHEMA, [pa.array([None], pa.string()), text]),
        stream(pa.schema([("key", pa.string())]), [text]),
        stream(pa.schema([("value", pa.string()), ("key", pa.string())]), [text, text]),
        stream(pa.schema([("key", pa.string()), ("value", pa.int64())]), [text, pa.array([1])]),
    ):
        with pytest.raises(BadRequestError):
            check(body)


def test_no_rows_and_too_many_are_refused() -> None:
    for count in (0, 101):
        with pytest.raises(BadRequestError):
            check(range_body.encode(["k"] * count, [b"1"] * count))
    with pytest.raises(BadRequestError):
        check(stream(range_body.BODY_SCHEMA))


def test_rows_beyond_the_body_are_refused() -> None:
    with pytest.raises(BadRequestError):
        range_body.decode(range_body.encode(["k"], [b"1"]), 1, 1)


def test_text_that_is_not_utf8_is_refused() -> None:
    body = range_body.encode(["kkkk"], [b'"vvvv"'])
    for text in (b"kkkk", b"vvvv"):
        with pytest.raises(BadRequestError):
            check(body.replace(text, b"\xff" * 4))


def test_several_record_batches_count_as_one_range() -> None:
    one, two = ([pa.array(["k", "l"]), pa.array(["1", "2"])], [pa.array(["m"]), pa.array([None], pa.string())])
    body = stream(range_body.BODY_SCHEMA, one, two)
    assert check(body) == 3
    assert range_body.decode(body, 1, 2)[0].to_pylist() == ["l", "m"]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(BadRequestError):
        check(noise)


@settings(deadline=None)
@given(st.data())
def test_damaged_body_is_refused_or_still_a_body(data: st.DataObject) -> None:
    body = bytearray(range_body.encode(["key", "other"], [b"1", None]))
    position = data.draw(st.integers(0, len(body) - 1))
    body[position] ^= data.draw(st.integers(1, 255))
    try:
        count = check(bytes(body))
    except BadRequestError:
        return
    range_body.decode(bytes(body), 0, count)
