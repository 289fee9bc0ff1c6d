"""A stream of frames read as it comes, message by message or all at once: the same messages, and the same bound."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest

from oncegate.consensus.errors import ProtocolError
from oncegate.consensus.messages import AnyMessage, CallRequest
from oncegate.consensus.net.wire import FrameReader, encode_frame

Read = Callable[[FrameReader, int], Iterable[AnyMessage]]
HEADER_BYTES = 8
"""Before a body that is not sealed: its length and its checksum."""
READS: tuple[Read, ...] = (FrameReader.received, FrameReader.all_received)


def taken(reader: FrameReader, data: bytes, read: Read) -> list[AnyMessage]:
    """Give a reader what one read of a socket gave, as far as there is space at a time."""
    found: list[AnyMessage] = []
    while data:
        space = reader.space()
        part, data = data[: len(space)], data[len(space) :]
        space[: len(part)] = part
        found += read(reader, len(part))
    return found


@pytest.mark.parametrize("read", READS)
def test_reads_as_long_as_a_frame_that_begin_anywhere_in_one_lose_nothing(read: Read) -> None:
    """Such a read is a whole frame only where nothing waited before it."""
    sent = [CallRequest(number, bytes([number]) * 20) for number in range(6)]
    frames = [encode_frame(one) for one in sent]
    (size,) = {len(frame) for frame in frames}
    stream = b"".join(frames)
    for first in range(size + 1):
        reader = FrameReader(1 << 10)
        cuts = [0, first, *range(first + size, len(stream), size), len(stream)]
        found = [one for at, to in pairwise(cuts) for one in taken(reader, stream[at:to], read)]
        assert found == sent, f"cut at {first}"


@pytest.mark.parametrize("seed", range(4))
def test_both_ways_of_reading_find_the_same_whatever_a_read_gives(seed: int) -> None:
    dice = random.Random(seed)
    sent = [CallRequest(number, dice.randbytes(dice.choice((0, 1, 20, 20, 300)))) for number in range(200)]
    frames = [encode_frame(one) for one in sent]
    stream, reader, found, at = b"".join(frames), FrameReader(1 << 10), list[AnyMessage](), 0
    while at < len(stream):
        size = dice.choice((len(dice.choice(frames)), dice.randint(1, 900)))
        found += taken(reader, stream[at : at + size], dice.choice(READS))
        at += size
    assert found == sent


@pytest.mark.parametrize("read", READS)
def test_body_of_as_many_bytes_as_are_allowed_is_read_and_none_of_one_more(read: Read) -> None:
    frames = [encode_frame(CallRequest(1, b"x" * size)) for size in range(40, 44)]
    for frame in frames:
        body = len(frame) - HEADER_BYTES
        assert taken(FrameReader(body), frame, read) == [CallRequest(1, b"x" * (40 + len(frame) - len(frames[0])))]
        with pytest.raises(ProtocolError, match=f"{body} bytes, at most {body - 1}"):
            taken(FrameReader(body - 1), frame, read)
