"""Every decoder of bytes from outside: typed refusals and nothing else, and memory in proportion to what came.

Whole damaged files (journal, state, segments) and connections have tests of their own; here are the decoders by
themselves, so that thousands of inputs can be tried under tracemalloc.
"""

from __future__ import annotations

import contextlib
import gc
import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import google_crc32c
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from oncegate.consensus import messages
from oncegate.consensus.errors import Corrupt, ProtocolError
from oncegate.consensus.log import segment
from oncegate.consensus.net.wire import FrameReader, encode_frame
from oncegate.flows import range_body
from oncegate.flows.errors import FlowError
from oncegate.gateway import wire
from oncegate.gateway.http import range_bodies, request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node import administration, segment_fetch
from oncegate.rifl.errors import OncegateError
from tests.gateway.http_contract import JSON_LINES, arrow_body, msgpack_range, operations, put

FACTOR = 200
"""Bytes of memory that one byte of input may cost: the densest is msgpack's one byte for an object of Python."""
FIXED_BYTES = 2 * 2**20
"""Beside it: the buffers of a frame reader and of Arrow."""
KEPT_BYTES = 1 * 2**20
generated = settings(
    settings(max_examples=150, derandomize=True, database=None, phases=[Phase.generate]),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
encoded = msgspec.msgpack.encode

REQUEST = operations("0000000000000001", put(1, "a", {"x": [1]}))
APPEND = messages.Append(3, 7, 2, 7, [(b"entry", 8, 3)])
HEADER = segment.SegmentHeader(1, 0, 4096, 5)
RECORD = segment.encode_record(1, segment.KIND_ENTRY, 1, 1, 0, 0, b"payload")
HELLO = messages.Hello(3, "cluster", "n1", "uuid", "n2", b"n" * 16, 1, [1], 3)
OPERATE = c.Operate(1, 1, 1, [c.Op(1, 1, "rows", "a", 7, b"1")])


def _frames(data: bytes) -> None:
    reader = FrameReader(2**20)
    while data:
        space = reader.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        for _ in reader.received(count):
            pass
        data = data[count:]


def _framed(message: bytes) -> None:
    """Read a message whose frame is right: whoever knows the format can send any."""
    _frames(struct.pack("<II", len(message), google_crc32c.value(message)) + message)


def _range(kind: str) -> Callable[[bytes], Any]:
    return lambda data: range_bodies.range_command("events", 1, 1, 1, 1, data, kind)


def _operations(kind: str) -> Callable[[bytes], Any]:
    return lambda data: request_bodies.operations(request_bodies.decode(data, kind, wire.OperationsRequest))


def _header(data: bytes) -> None:
    segment.decode_header(data, label="journal", sequence=1, size=4096)


def _records(data: bytes) -> None:
    for _ in segment.scan(data, 0, 1):
        pass


CALLS = (msgspec.DecodeError, UnicodeDecodeError)
"""What a proved peer's call may raise: :mod:`oncegate.consensus.net.calls` answers it as failed."""
Decoder = tuple[Callable[[bytes], Any], bytes, tuple[type[Exception], ...]]
DECODERS: dict[str, Decoder] = {
    "operations as JSON": (_operations(wire.JSON), json.dumps(REQUEST).encode(), (OncegateError,)),
    "operations as msgpack": (_operations(wire.MSGPACK), encoded(REQUEST), (OncegateError,)),
    "range as Arrow": (_range(wire.ARROW), arrow_body(["a", "b"], ["1", '{"x":1}']), (OncegateError,)),
    "range as msgpack": (_range(wire.MSGPACK), msgpack_range(["a", "b"], ["1", '"x"']), (OncegateError,)),
    "range as JSON lines": (_range(JSON_LINES), b'{"key":"a","value":1}\n{"key":"b","value":[2]}', (OncegateError,)),
    "range of the log": (lambda data: range_body.decode(data, 0, 1), range_body.encode(["k"], [b"1"]), (FlowError,)),
    "entry of the log": (c.decode_entry, c.encode_entry(5, [OPERATE]), CALLS),
    "forwarded commands": (c.decode_commands, c.encode_commands([OPERATE]), CALLS),
    "operator's request": (administration._decode_request, encoded(administration.MoveLeader("n2")), CALLS),
    "request for a piece": (segment_fetch._request.decode, encoded(segment_fetch.PieceRequest("f", 1, 0)), CALLS),
    "frames of a peer": (_frames, encode_frame(APPEND), (ProtocolError,)),
    "message of a peer": (_framed, messages.encode(APPEND), (ProtocolError,)),
    "first message of a stranger": (_framed, messages.encode(HELLO), (ProtocolError,)),
    "header of a journal": (_header, segment.encode_header(HEADER), (Corrupt,)),
    "records of a journal": (_records, RECORD, ()),
}


# Lengths that claim more than came: arrays, maps, strings, nesting, and nesting in text.
CLAIMS = [head + b"\xff" * 4 for head in (b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9")]
CLAIMS += [b"\x91" * 5_000, b"\xdc\xff\xff" * 2_000, b"[" * 5_000, b'{"a":' * 5_000, b"9" * 5_000]
CLAIMS += [b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 8, b""]


def inputs(good: bytes) -> st.SearchStrategy[bytes]:
    """What came, damaged, cut, lengthened, with a claim put into it, or noise."""
    place = st.integers(0, len(good))
    damaged = st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=4).map(
        lambda changes: bytes(_changed(bytearray(good), changes))
    )
    claimed = st.builds(lambda at, claim: good[:at] + claim + good[at:], place, st.sampled_from(CLAIMS))
    return damaged | claimed | place.map(lambda at: good[:at]) | st.sampled_from(CLAIMS) | st.binary(max_size=300)


def _changed(data: bytearray, changes: list[tuple[int, int]]) -> bytearray:
    for at, byte in changes:
        data[at % len(data)] = byte
    return data


def _violations(decode: Callable[[bytes], Any], refusals: tuple[type[Exception], ...], tried: list[bytes]) -> list[str]:
    """Say which inputs broke the promise, and whether memory grew over all of them."""
    found = []
    gc.collect()
    tracemalloc.start()
    try:
        for data in tried[:20]:  # caches fill
            with contextlib.suppress(Exception):
                decode(data)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for data in tried:
            tracemalloc.reset_peak()
            start, _ = tracemalloc.get_traced_memory()
            try:
                decode(data)
            except refusals:
                pass
            except Exception as fault:  # noqa: BLE001 - that is the finding
                found.append(f"{data[:80]!r}: {fault!r}")
            peak = tracemalloc.get_traced_memory()[1] - start
            if peak > FIXED_BYTES + FACTOR * len(data):
                found.append(f"{data[:80]!r}: {peak} bytes of memory for {len(data)}")
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
        if kept > KEPT_BYTES:
            found.append(f"{kept} bytes are kept")
    finally:
        tracemalloc.stop()
    return found


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_from_outside_are_decoded_or_refused_and_cost_no_more_than_they_are(name: str) -> None:
    decode, good, refusals = DECODERS[name]
    decode(good)
    tried: list[bytes] = []

    @generated
    @given(inputs(good))
    def collect(data: bytes) -> None:
        tried.append(data)

    collect()
    assert _violations(decode, refusals, tried) == []


def test_decoder_that_believes_a_length_raises_otherwise_or_keeps_what_it_saw_is_caught() -> None:
    kept: list[bytes] = []
    planted: list[Callable[[bytes], Any]] = [
        lambda data: bytearray(min(2**24, int.from_bytes(data[:4], "big"))),
        lambda data: json.loads(data),
        lambda data: kept.append(data * 100),
    ]
    for decode in planted:
        assert _violations(decode, (OncegateError,), [b"\xff" * 500 for _ in range(50)])
