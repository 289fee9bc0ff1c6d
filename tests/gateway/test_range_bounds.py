"""Ranges at their bounds: a key as large as it may be is taken, one byte more or a null in either column is refused."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from oncegate.gateway import wire
from oncegate.gateway.http.range_bodies import range_command
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError


def code_of(body: bytes, kind: str) -> Code | None:
    try:
        range_command("t", 1, 1, 1, 1, body, kind)
    except OncegateError as refusal:
        return refusal.code
    return None


def arrow(*batches: tuple[list[str | None], list[str | None]]) -> bytes:
    schema, sink = pa.schema([("key", pa.string()), ("value", pa.string())]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for keys, values in batches:
            writer.write_batch(pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.string())], schema))
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("over", [0, 1])
def test_key_is_taken_up_to_its_bound(over: int) -> None:
    key = "k" * (c.KEY_BYTES_MAX + over)
    wanted = Code.PAYLOAD_TOO_LARGE if over else None
    assert code_of(arrow(([key], ["1"])), wire.ARROW) is wanted
    assert code_of(msgspec.msgpack.encode({"keys": [key], "values": ["1"]}), wire.MSGPACK) is wanted


def test_null_is_refused_in_either_column() -> None:
    assert code_of(arrow((["a", "b"], ["1", "2"])), wire.ARROW) is None
    assert code_of(arrow((["a", None], ["1", "2"])), wire.ARROW) is Code.BAD_REQUEST
    assert code_of(arrow((["a", "b"], [None, "2"])), wire.ARROW) is Code.BAD_REQUEST
