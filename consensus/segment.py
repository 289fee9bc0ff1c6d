"""Format of the journal's segment files: encode, scan, tell a torn tail from corruption.

Pure over bytes; the files themselves belong to :mod:`consensus.wal`.

A segment is a header and records, little-endian, in a file of fixed size that was written with zeros and
flushed before use. Positions are 64-bit and run through all segments: ``base`` of the header plus the offset.

Header (64 bytes): magic 8s, sequence u64, base u64, size u64, seed u32, zeros, CRC32C u32 of the rest.

Record (48 bytes, then the payload): magic u32, CRC32C u32 of all that follows (seeded by the header's seed),
payload length u32, kind u32, index u64, term u64, commit u64, prior_end u64.

``prior_end`` is the position up to which everything was flushed before the record's batch was written. It makes
recovery exact: an invalid record at X is a torn write unless a valid record says ``prior_end > X``; then
X had been flushed, and may have been acknowledged, so the node must not go on without it.
``commit`` is the commit index known at that time: what lies below it is applied at start without asking anybody.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from consensus.errors import Corrupt

SEGMENT_SUFFIX = ".segment"
SEGMENT_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 48

_HEADER = struct.Struct("<8sQQQI24x")
_HEADER_CRC = struct.Struct("<I")
_HEADER_MAGIC = b"OGJRNL01"
_RECORD_MAGIC = 0x5A4F47C3
_RECORD_MAGIC_BYTES = struct.pack("<I", _RECORD_MAGIC)
_PREFIX = struct.Struct("<II")
_BODY = struct.Struct("<IIQQQQ")
_RECORD = struct.Struct("<IIIIQQQQ")

_extend = google_crc32c.extend


class Kind(enum.IntEnum):
    """What a record does to the log."""

    ENTRY = 1
    TRUNCATE = 2
    """Entries from ``index`` on are gone (Raft §5.3: they conflicted with the leader's)."""
    SEAL = 3
    """Written at a clean stop: proves that everything before it was flushed."""
    RESET = 4
    """All entries are gone; the log goes on behind ``index`` of ``term`` (a snapshot was installed). The payload is the
    configuration there."""


KIND_ENTRY = int(Kind.ENTRY)


class SegmentHeader(NamedTuple):
    """Identity of a segment."""

    sequence: int
    base: int
    size: int
    seed: int


class Record(NamedTuple):
    """One record as found on disk."""

    offset: int
    kind: int
    log_index: int
    term: int
    commit: int
    prior_end: int
    payload: bytes


def records_bytes(entries: Sequence[tuple[bytes, int, int]]) -> int:
    """What entries take at most, a truncation before them included."""
    return sum(len(entry[0]) for entry in entries) + (len(entries) + 1) * RECORD_HEADER_BYTES


def segment_name(sequence: int) -> str:
    """File name of a segment; sorts in log order."""
    return f"journal-{sequence:016d}{SEGMENT_SUFFIX}"


def encode_header(header: SegmentHeader) -> bytes:
    """The first 64 bytes of a segment."""
    body = _HEADER.pack(_HEADER_MAGIC, *header)
    return body + _HEADER_CRC.pack(google_crc32c.value(body))


def decode_header(data: bytes, *, label: str, sequence: int, size: int) -> SegmentHeader:
    """Check a header against the file's name and length; raises :class:`Corrupt`."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise Corrupt(label, len(data), "file ends inside its header")
    body = data[: _HEADER.size]
    (crc,) = _HEADER_CRC.unpack_from(data, _HEADER.size)
    if crc != google_crc32c.value(body):
        raise Corrupt(label, 0, "checksum of the segment header differs")
    magic, *fields = _HEADER.unpack(body)
    header = SegmentHeader(*fields)
    if magic != _HEADER_MAGIC:
        raise Corrupt(label, 0, "not a journal segment of this version")
    if header.sequence != sequence:
        raise Corrupt(label, 0, f"header says segment {header.sequence}, the name says {sequence}")
    if header.size != size:
        raise Corrupt(label, min(size, header.size), f"file has {size} bytes, not {header.size}")
    return header


def encode_record(seed: int, kind: int, index: int, term: int, commit: int, prior_end: int, payload: bytes) -> bytes:
    """The 48 bytes that go before ``payload``."""
    body = _BODY.pack(len(payload), kind, index, term, commit, prior_end)
    return _PREFIX.pack(_RECORD_MAGIC, _extend(_extend(seed, body), payload)) + body


def read_record(data: bytes, offset: int, seed: int) -> Record | None:
    """The valid record at ``offset``, or None."""
    if offset + RECORD_HEADER_BYTES > len(data):
        return None
    magic, crc, length, kind, index, term, commit, prior_end = _RECORD.unpack_from(data, offset)
    if magic != _RECORD_MAGIC:
        return None
    start = offset + RECORD_HEADER_BYTES
    payload = data[start : start + length]
    if len(payload) != length or crc != _extend(_extend(seed, data[offset + 8 : start]), payload):
        return None
    return Record(offset, kind, index, term, commit, prior_end, payload)


def scan(data: bytes, offset: int, seed: int) -> Iterator[Record]:
    """Yield records one after the other from ``offset``; stop at the first that is not valid."""
    while (record := read_record(data, offset, seed)) is not None:
        yield record
        offset += RECORD_HEADER_BYTES + len(record.payload)


def proof_of_flush(data: bytes, offset: int, header: SegmentHeader) -> int | None:
    """Offset of a valid record behind ``offset`` whose batch began after ``offset`` had been flushed, or None."""
    found = offset
    while (found := data.find(_RECORD_MAGIC_BYTES, found + 1)) >= 0:
        record = read_record(data, found, header.seed)
        if record is not None and record.prior_end > header.base + offset:
            return found
    return None
