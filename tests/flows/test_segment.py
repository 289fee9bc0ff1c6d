"""Batches and the bodies of ranges as bytes: the same everywhere, and readable."""

from __future__ import annotations

import json
from itertools import groupby
from typing import NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.flows import range_body, segment
from oncegate.flows.chunks import SealedChunk
from oncegate.flows.errors import BadRequestError
from oncegate.flows.open_segment import OpenSegment
from oncegate.flows.schema import batch_schema


class Item(NamedTuple):
    key: str
    value: bytes | None
    traceparent: str = ""


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = TRACE.replace("b7ad", "aaaa")
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
ITEMS = st.lists(
    st.builds(
        Item,
        KEYS,
        st.none() | st.integers().map(lambda n: b"%d" % n) | st.sampled_from([b'{"a": "\xc3\xa9"}', b"null"]),
        st.sampled_from(["", "", TRACE, OTHER]),
    ),
    min_size=1,
    max_size=60,
)


def stream(schema: pa.Schema, *batches: list[pa.Array]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(pa.record_batch(batch, schema=schema))
    return sink.getvalue().to_pybytes()


def noisy_body(items: list[Item], before: int, after: int, batches: int) -> bytes:
    """A body whose rows lie among others, in several record batches, with data under its nulls."""
    rows = [Item("before", b"0")] * before + items + [Item("after", None)] * after
    step, written = -(-len(rows) // batches), []
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        values = pa.array([b"junk" if row.value is None else row.value for row in part], pa.string())
        bits = sum((row.value is not None) << place for place, row in enumerate(part))
        # Ones beyond the last row, which no reader looks at.
        bits |= -1 << len(part)
        size = len(part) // 8 + 1
        validity = (bits & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        values = pa.Array.from_buffers(pa.string(), len(part), [pa.py_buffer(validity), *values.buffers()[1:]])
        written.append([pa.array([row.key for row in part], pa.string()), values])
    return stream(range_body.BODY_SCHEMA, *written)


def append_one(part: OpenSegment, number: int, item: Item) -> None:
    part.append_one(number + 10, item.key, item.value, 5000, 77, number)
    if item.traceparent:
        part.trace_last(item.traceparent)


def as_singles(items: list[Item]) -> tuple[SealedChunk, ...]:
    part = OpenSegment("f", "t")
    for number, item in enumerate(items, 1):
        append_one(part, number, item)
    return part.freeze(1).chunks


def as_drawn(items: list[Item], data: st.DataObject) -> tuple[SealedChunk, ...]:
    """The same items in a drawn mix of singles, ranges, slices of ranges, and a restart in between."""
    part = OpenSegment("f", "t")
    at = 0
    while at < len(items):
        count = data.draw(st.integers(1, len(items) - at))
        if data.draw(st.booleans()):
            before, after = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 3))
            body = noisy_body(items[at : at + count], before, after, data.draw(st.integers(1, 3)))
            done = at
            for trace, group in groupby(items[at : at + count], lambda item: item.traceparent):
                length = len(list(group))
                part.append_range(done + 11, length, 5000, 77, done + 1, body, before + done - at, trace)
                done += length
        else:
            for number, item in enumerate(items[at : at + count], at + 1):
                append_one(part, number, item)
        at += count
        if data.draw(st.booleans()):
            part = OpenSegment.restore(part.snapshot())
    return part.freeze(1).chunks


@pytest.mark.parametrize("record_batch", [segment.ROWS_PER_RECORD_BATCH, 8])
@given(ITEMS, st.data())
@settings(max_examples=200, deadline=None)
def test_batch_bytes_do_not_depend_on_how_items_arrived(
    record_batch: int, items: list[Item], data: st.DataObject
) -> None:
    with mock.patch.object(segment, "ROWS_PER_RECORD_BATCH", record_batch):
        one = segment.build(as_singles(items), "f", "t", 3)
        other = segment.build(as_drawn(items, data), "f", "t", 3)
    assert one == other
    assert segment.checksum(one) == segment.checksum(other)


@given(ITEMS, st.data())
@settings(deadline=None)
def test_items_come_back_in_commit_order_with_the_batch_identity(items: list[Item], data: st.DataObject) -> None:
    table = segment.read_table(segment.build(as_drawn(items, data), "f", "t", 3))
    table.validate(full=True)
    assert table.schema.equals(batch_schema("f", "t", 3), check_metadata=True)
    assert table.column("commit").to_pylist() == list(range(11, 11 + len(items)))
    assert table.column("sequence").to_pylist() == list(range(1, 1 + len(items)))
    assert set(table.column("client_id").to_pylist()) == {77}
    assert set(table.column("time_ms").to_pylist()) == {5000}
    assert table.column("key").to_pylist() == [item.key for item in items]
    assert table.column("value").to_pylist() == [None if i.value is None else i.value.decode() for i in items]
    assert table.column("traceparent").to_pylist() == [item.traceparent or None for item in items]


@given(ITEMS)
@settings(deadline=None)
def test_a_trace_context_is_held_once_however_many_items_share_it(items: list[Item]) -> None:
    table = segment.read_table(segment.build(as_singles(items), "f", "t", 3))
    dictionary = table.column("traceparent").chunk(0).dictionary.to_pylist()
    assert dictionary == list(dict.fromkeys(item.traceparent for item in items if item.traceparent))


def test_record_batches_have_their_fixed_size() -> None:
    count = segment.ROWS_PER_RECORD_BATCH * 2 + 5
    part = OpenSegment("f", "t")
    part.append_range(1, count, 1, 1, 1, range_body.encode(["k"] * count, [b"1"] * count))
    with pa.ipc.open_stream(segment.build(part.freeze(1).chunks, "f", "t", 1)) as reader:
        sizes = [batch.num_rows for batch in reader]
    assert sizes == [segment.ROWS_PER_RECORD_BATCH] * 2 + [5]


def test_bytes_of_a_batch_are_those_of_version_1() -> None:
    """Pins the format: nodes of two releases must agree on every byte."""
    items = [Item("k1", b'{"a":1}', TRACE), Item("k2", None), Item("\u00e9", b'"x"', OTHER)]
    assert segment.checksum(segment.build(as_singles(items), "orders", "t", 3)) == "crc32c-ef355b49"


def test_batch_without_items_is_refused() -> None:
    with pytest.raises(ValueError, match="no items"):
        segment.build((), "f", "t", 1)


@settings(deadline=None)
@given(ITEMS)
def test_json_lines_carry_each_item_with_its_value_embedded(items: list[Item]) -> None:
    lines = list(segment.to_json_lines(segment.build(as_singles(items), "f", "t", 3)))
    assert len(lines) == len(items)
    for number, (line, item) in enumerate(zip(lines, items, strict=True), 1):
        expected = {
            "commit": number + 10,
            "key": item.key,
            "value": None if item.value is None else json.loads(item.value),
            "time_ms": 5000,
            "client_id": f"{77:016x}",
            "sequence": number,
        }
        if item.value is None:
            expected["deleted"] = True
        if item.traceparent:
            expected["traceparent"] = item.traceparent
        assert json.loads(line) == expected


def test_json_line_stays_one_line_when_the_value_has_line_breaks() -> None:
    payload = segment.build(as_singles([Item("a\nb", b'{\n  "x":\r\n "y\\nz" }')]), "f", "t", 1)
    (line,) = segment.to_json_lines(payload)
    assert line.count(b"\n") == 1
    assert json.loads(line)["value"] == {"x": "y\nz"}


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
