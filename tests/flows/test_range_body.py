"""The bodies of ranges, as the segment writer reads them back."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows import range_body
from oncegate.flows.errors import BadRequestError

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


def stream(schema: pa.Schema, *batches: list[pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch(batch, schema=schema))
    return sink.getvalue().to_pybytes()


@settings(deadline=None)
@given(
    st.lists(st.tuples(KEYS, st.sampled_from([None, b"1", b' {"a": [true]} ', b'"x"'])), min_size=1, max_size=20),
    st.data(),
)
def test_rows_come_back_from_any_slice(rows: list[tuple[str, bytes | None]], data: st.DataObject) -> None:
    body = range_body.encode([key for key, _ in rows], [value for _, value in rows])
    start = data.draw(st.integers(0, len(rows) - 1))
    stop = data.draw(st.integers(start + 1, len(rows)))
    keys, values = range_body.decode(body, start, stop - start)
    texts = [None if value is None else value.decode() for _, value in rows[start:stop]]
    assert (keys.to_pylist(), values.to_pylist()) == ([key for key, _ in rows[start:stop]], texts)


def test_other_columns_and_other_types_are_refused() -> None:
    text = pa.array(["x"], pa.string())
    for body in (
        stream(pa.schema([("key", pa.string())]), [text]),
        stream(pa.schema([("value", pa.string()), ("key", pa.string())]), [text, text]),
        stream(pa.schema([("key", pa.string()), ("value", pa.int64())]), [text, pa.array([1])]),
    ):
        with pytest.raises(BadRequestError):
            range_body.decode(body, 0, 1)


def test_rows_beyond_the_body_are_refused() -> None:
    with pytest.raises(BadRequestError):
        range_body.decode(range_body.encode(["k"], [b"1"]), 1, 1)


def test_several_record_batches_count_as_one_range() -> None:
    one, two = ([pa.array(["k", "l"]), pa.array(["1", "2"])], [pa.array(["m"]), pa.array([None], pa.string())])
    body = stream(range_body.BODY_SCHEMA, one, two)
    assert range_body.decode(body, 1, 2)[0].to_pylist() == ["l", "m"]


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(BadRequestError):
        range_body.decode(noise, 0, 1)
