"""Frames of every size: each is taken as it was sent, and with any one bit changed it is not taken."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import CallRequest
from oncegate.consensus.net import wire
from oncegate.consensus.net.sealing import Seal
from oncegate.consensus.net.wire import FrameReader, encode_frame

KEY = b"k" * 32
EDGES = (32 << 10, 64 << 10, 128 << 10, wire._BUFFER_BYTES, 1 << 20, wire._BUFFER_BYTES_KEPT)
"""Sizes at which something about a frame may change: one buffer, one system call, one length of a field."""
FRAME_BYTES_MAX = max(EDGES) + (64 << 10)

sizes = st.one_of(
    st.integers(0, 300),
    st.builds(lambda edge, off: edge + off, st.sampled_from(EDGES), st.integers(-40, 40)),
    st.integers(0, max(EDGES)),
)


def taken(stream: bytes, *, sealed: bool, pieces: int) -> list[object]:
    """Read a stream as a connection does, in pieces of so many bytes; end at what is refused."""
    reader, got, at = FrameReader(FRAME_BYTES_MAX), list[object](), 0
    reader.seal = Seal(KEY) if sealed else None
    try:
        while at < len(stream):
            space = reader.space()
            part = stream[at : at + min(pieces, len(space))]
            space[: len(part)] = part
            at += len(part)
            got += reader.all_received(len(part))
    except ProtocolError:
        pass
    return got


def sent(size: int, *, sealed: bool) -> tuple[list[CallRequest], list[bytes]]:
    """Return a small message, one of the size, and a small one, and their frames."""
    seal = Seal(KEY) if sealed else None
    messages = [CallRequest(1, b"before"), CallRequest(2, b"\x5a" * size), CallRequest(3, b"behind")]
    return messages, [encode_frame(message, seal) for message in messages]


@pytest.mark.parametrize("sealed", [True, False])
@settings(max_examples=60, deadline=None)
@given(size=sizes, pieces=st.sampled_from((1 << 12, 1 << 16, 1 << 30)))
def test_frame_of_any_size_is_taken_as_it_was_sent_however_it_comes(size: int, pieces: int, *, sealed: bool) -> None:
    messages, frames = sent(size, sealed=sealed)
    assert taken(b"".join(frames), sealed=sealed, pieces=pieces) == messages


@pytest.mark.parametrize("sealed", [True, False])
@settings(max_examples=150, deadline=None)
@given(size=sizes, where=st.floats(0, 1), bit=st.integers(0, 7), pieces=st.sampled_from((1 << 12, 1 << 16, 1 << 30)))
@example(size=64 << 10, where=1.0, bit=0, pieces=1 << 30)
@example(size=1 << 20, where=0.5, bit=7, pieces=1 << 16)
def test_frame_of_any_size_with_a_bit_changed_is_not_taken_nor_is_what_follows(
    size: int, where: float, bit: int, pieces: int, *, sealed: bool
) -> None:
    """A length that is larger than it was waits for more; whatever is taken is what was sent before."""
    messages, frames = sent(size, sealed=sealed)
    changed = bytearray(frames[1])
    changed[min(len(changed) - 1, int(where * len(changed)))] ^= 1 << bit
    got = taken(frames[0] + bytes(changed) + frames[2], sealed=sealed, pieces=pieces)
    assert got in ([], messages[:1]), "what came whole in one read with what is refused may be lost with it"


@pytest.mark.parametrize("size", [0, *EDGES])
def test_frame_of_any_size_under_another_key_or_place_is_not_taken(size: int) -> None:
    _, frames = sent(size, sealed=True)
    other = encode_frame(CallRequest(2, b"\x5a" * size), Seal(b"o" * 32))
    for stream in (other, frames[1], frames[0] + frames[2] + frames[1], frames[0] + frames[0]):
        assert len(taken(stream, sealed=True, pieces=1 << 30)) <= stream.startswith(frames[0])
