"""Format of the journal's segment files: encode, scan, tell a torn tail from corruption.

Pure over bytes; the files themselves belong to :mod:`oncegate.consensus.log.wal`.

A segment is a header and records, little-endian, in a file of fixed size that was written with zeros and
flushed before use. Positions are 64-bit and run through all segments: ``base`` of the header plus the offset.

Header (64 bytes): magic 8s, sequence u64, base u64, size u64, seed u32, zeros, CRC32C u32 of the rest.

Record (48 bytes, then the payload): magic u32, CRC32C u32, payload length u32, index u64, term u64, commit u64,
prior_end u64, check u24, kind u8. ``check`` is the low part of the CRC32C, seeded by the header's seed, of what lies
between the CRC and ``check``, three zeros and ``kind``; the CRC goes on from there over the payload. So the length can
be trusted, or not, without the payload.

``prior_end`` is the position up to which everything was flushed before the record's batch was written. It makes
recovery exact: if a valid record says ``prior_end > X``, an invalid record at X had been flushed, and may have been
acknowledged, so the node must not go on without it. Of the batch that was written last nothing says so; there
:func:`is_torn` decides by what power loss can do to zeros that are written over once: whole sectors stay zero.
``commit`` is the commit index known at that time: what lies below it is applied at start without asking anybody.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c

from oncegate.consensus.errors import Corrupt

SEGMENT_SUFFIX = ".segment"
SEGMENT_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 48
SECTOR_BYTES = 512
"""The least that any disk writes whole; larger sectors are multiples of it."""

_HEADER = struct.Struct("<8sQQQI24x")
_HEADER_CRC = struct.Struct("<I")
_HEADER_MAGIC = b"OGJRNL02"
_RECORD_MAGIC = 0x5A4F47C3
_RECORD_MAGIC_BYTES = struct.pack("<I", _RECORD_MAGIC)
_BODY = struct.Struct("<IQQQQI")
_RECORD = struct.Struct("<IIIQQQQI")
_LENGTH = struct.Struct("<I")
_BODY_AT = 8
_KIND_SHIFT = 24
_CHECK_MASK = (1 << _KIND_SHIFT) - 1

_extend = google_crc32c.extend


class RecordKind(enum.IntEnum):
    """What a record does to the log.

    The code is the last byte of a record's header, which may be all of it that lies in a sector: several bits are set,
    so that no flipped one leaves a zero, as if the sector had not been written.
    """

    ENTRY = 0xE1
    TRUNCATE = 0xE2
    """Entries from ``index`` on are gone (Raft §5.3: they conflicted with the leader's)."""
    SEAL = 0xE3
    """Written at a clean stop: proves that everything before it was flushed."""
    RESET = 0xE4
    """All entries are gone; the log goes on behind ``index`` of ``term`` (a snapshot was installed). The payload is the
    configuration there."""


KIND_ENTRY = int(RecordKind.ENTRY)


class SegmentHeader(NamedTuple):
    """Identity of a segment."""

    sequence: int
    base: int
    size: int
    seed: int


class SegmentRecord(NamedTuple):
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
    size_bytes = (len(entries) + 1) * RECORD_HEADER_BYTES
    for command, _, _ in entries:
        size_bytes += len(command)
    return size_bytes


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
    length, last = len(payload), kind << _KIND_SHIFT
    crc = _extend(seed, _BODY.pack(length, index, term, commit, prior_end, last))
    return _RECORD.pack(
        _RECORD_MAGIC, _extend(crc, payload), length, index, term, commit, prior_end, last | crc & _CHECK_MASK
    )


def read_record(data: bytes, offset: int, seed: int) -> SegmentRecord | None:
    """The valid record at ``offset``, or None."""
    header_crc = _check_record_header(data, offset, seed)
    if header_crc is None:
        return None
    _, crc, length, index, term, commit, prior_end, last = _RECORD.unpack_from(data, offset)
    start = offset + RECORD_HEADER_BYTES
    payload = data[start : start + length]
    if len(payload) != length or crc != _extend(header_crc, payload):
        return None
    return SegmentRecord(offset, last >> _KIND_SHIFT, index, term, commit, prior_end, payload)


def _check_record_header(data: bytes, offset: int, seed: int) -> int | None:
    """CRC32C of the header at ``offset``, or None if that is not what was written."""
    if offset + RECORD_HEADER_BYTES > len(data):
        return None
    magic, _, length, index, term, commit, prior_end, last = _RECORD.unpack_from(data, offset)
    if magic != _RECORD_MAGIC:
        return None
    crc = _extend(seed, _BODY.pack(length, index, term, commit, prior_end, last & ~_CHECK_MASK))
    return crc if crc & _CHECK_MASK == last & _CHECK_MASK else None


def scan(data: bytes, offset: int, seed: int) -> Iterator[SegmentRecord]:
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


def is_torn(data: bytes, offset: int, seed: int) -> bool:
    """Whether a power loss before the flush can have made the invalid record at ``offset``; else it was damaged since.

    A segment is zero before records are written to it, one behind the other, and power is lost between sectors: of a
    torn record at least one sector is still zero from the record's start on. Neither the first nor the last byte of a
    record's header is ever zero, so damage to what ``check`` covers is never taken for a torn write. Damage to the CRC
    or the payload is, if a sector is zero by right: the payload has 512 zeros there, or ends with nothing but zeros
    behind the last border of sectors, or the damage itself zeroed what it holds there. (etcd's write-ahead log decides
    by zero sectors too.)
    """
    stop = offset + RECORD_HEADER_BYTES
    if stop > len(data):
        return False
    border = _next_border(offset)
    if not any(data[offset:border]):
        return True
    if _has_zero_sector(data, border, stop):
        # The rest of the header is missing; the beginning must be there.
        seen = min(border - offset, len(_RECORD_MAGIC_BYTES))
        return data[offset : offset + seen] == _RECORD_MAGIC_BYTES[:seen]
    if _check_record_header(data, offset, seed) is None:
        return False
    (length,) = _LENGTH.unpack_from(data, offset + _BODY_AT)
    return stop + length <= len(data) and _has_zero_sector(data, border, stop + length)


def _has_zero_sector(data: bytes, start: int, stop: int) -> bool:
    """A sector from border ``start`` on that begins before ``stop`` is zero to its own end, or the file's."""
    return any(not any(data[at : at + SECTOR_BYTES]) for at in range(start, stop, SECTOR_BYTES))


def _next_border(offset: int) -> int:
    return offset - offset % SECTOR_BYTES + SECTOR_BYTES
