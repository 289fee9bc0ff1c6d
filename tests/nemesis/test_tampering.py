"""Somebody on the path between nodes: each kind of forgery happens, and a frame that is let be arrives as it was."""

from __future__ import annotations

import random
import struct

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from oncegate.proof.check.tampering import Tamperer

TLS_RECORDS = [(22, b"client hello"), (20, b"\x01"), *((23, bytes([number]) * 30) for number in range(9))]


def frame(body: bytes) -> bytes:
    return struct.pack("<II", len(body), google_crc32c.value(body)) + body


def cut(data: bytes) -> list[bytes]:
    found = []
    while data:
        length, crc = struct.unpack_from("<II", data)
        body, data = data[8 : 8 + length], data[8 + length :]
        assert google_crc32c.value(body) == crc
        found.append(body)
    return found


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=20), st.integers(1, 50))
def test_without_forgery_all_frames_arrive_as_they_were_however_they_are_cut(bodies: list[bytes], size: int) -> None:
    data = b"".join(map(frame, bodies))
    tamperer = Tamperer(random.Random(1))
    assert b"".join(tamperer.passed(data[at : at + size], 0.0) for at in range(0, len(data), size)) == data
    assert tamperer.forged == 0


def test_sealed_frames_are_told_from_those_of_the_handshake() -> None:
    hello, sealed = frame(b"hello"), [struct.pack("<I16s", 9, bytes([n]) * 16) + b"append %d " % n for n in range(9)]
    data = hello + b"".join(sealed)
    tamperer = Tamperer(random.Random(1))
    assert b"".join(tamperer.passed(data[at : at + 7], 0.0) for at in range(0, len(data), 7)) == data
    changed = b"".join(tamperer.passed(one, 0.9) for one in sealed)
    assert tamperer.forged > 3
    assert len(changed) % len(sealed[0]) == 0
    assert changed != b"".join(sealed)


def test_frames_are_changed_repeated_and_swapped_with_right_checksums() -> None:
    bodies = [bytes([number]) * 8 for number in range(200)]
    tamperer = Tamperer(random.Random(1))
    arrived = cut(tamperer.passed(b"".join(map(frame, bodies)), 0.3))
    known = [body for body in arrived if body in bodies]
    assert tamperer.forged > 30
    assert len(known) < len(arrived), "none was changed"
    assert len(set(known)) < len(known), "none came twice"
    assert [*dict.fromkeys(known)] != sorted(set(known)), "none was swapped"


def test_records_of_tls_are_passed_whole_and_changed_behind_their_headers() -> None:
    records = [struct.pack(">BHH", kind, 0x0301, len(body)) + body for kind, body in TLS_RECORDS]
    tamperer = Tamperer(random.Random(1))
    data = b"".join(records)
    assert b"".join(tamperer.passed(data[at : at + 3], 0.0) for at in range(0, len(data), 3)) == data
    changed = b"".join(tamperer.passed(one, 0.9) for one in records[2:])
    assert tamperer.forged > 3
    at, sizes = 0, set()
    while at < len(changed):
        kind, _, length = struct.unpack_from(">BHH", changed, at)
        sizes.add((kind, length))
        at += 5 + length
    assert sizes == {(23, 30)}
