"""Ranges at their bounds: a key as large as it may be is taken, one byte more or a null in either column is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pytest

from oncegate.gateway import wire
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.http.range_bodies import range_command
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError


def code_of(body: bytes, kind: str) -> Code | None:
    try:
        range_command("t", 1, 1, 1, 1, body, kind)
    except OncegateError as refusal:
        return refusal.code
    return None


def arrow(*batches: tuple[Sequence[str | None], Sequence[str | None]]) -> bytes:
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


def test_range_is_as_long_as_its_batches_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are counted over the batches of a stream before any is built, so the refusal may not come from behind."""
    monkeypatch.setattr(range_bodies, "RANGE_LENGTH_MAX", 12)
    dice = random.Random(3)
    for _ in range(60):
        sizes = [dice.choice((0, 1, 3, 6, 12)) for _ in range(dice.randint(1, 5))]
        body = arrow(*((["k"] * size, ["1"] * size) for size in sizes))
        wanted = Code.PAYLOAD_TOO_LARGE if sum(sizes) > 12 else None if sum(sizes) else Code.BAD_REQUEST
        assert code_of(body, wire.ARROW) is wanted, sizes
        if wanted is Code.PAYLOAD_TOO_LARGE:
            with pytest.raises(OncegateError):
                range_bodies._check_messages(body)
        else:
            range_bodies._check_messages(body)


def test_column_of_any_head_is_refused_by_its_length_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """msgpack has two heads for what may be too long, and a small column may have either."""
    built = list[object]()
    decode = request_bodies.decode

    def decoded(body: bytes | msgspec.Raw, kind: str, shape: type[object]) -> object:
        if shape == list[str]:
            built.append(body)
        return decode(body, kind, shape)

    monkeypatch.setattr(request_bodies, "decode", decoded)
    for most in (20, 2_000, 70_000):
        monkeypatch.setattr(range_bodies, "RANGE_LENGTH_MAX", most)
        for length in {15, 16, most, most + 1, 65_535, 65_536}:
            heads = [b"\xdd" + length.to_bytes(4, "big")]
            if length < 2**16:
                heads.append(b"\xdc" + length.to_bytes(2, "big"))
            if length < 16:
                heads.append(bytes([0x90 + length]))
            for head in heads:
                columns = {"keys": head + b"\xa1k" * length, "values": head + b"\xa11" * length}
                built.clear()
                body = b"\x82" + b"".join(msgspec.msgpack.encode(name) + said for name, said in columns.items())
                assert code_of(body, wire.MSGPACK) is (Code.PAYLOAD_TOO_LARGE if length > most else None)
                assert len(built) == (0 if length > most else 2), "a column that is too long costs nothing"
