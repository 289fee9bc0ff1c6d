"""Segment files: batches on disk, immutable and checked at every read.

Owns: the file format and the directory of one node. Must not know what a payload contains
(:mod:`oncegate.flows.segment`). Blocking; call it from a worker thread. Read next: :mod:`oncegate.flows.publisher`.

File ``<directory>/<flow>/<number, 16 digits>.segment``, little-endian, version 1:

| offset | bytes | field |
|---|---|---|
| 0 | 8 | magic ``OGSEGMNT`` |
| 8 | 2 | version, 1 |
| 10 | 2 | length of the flow's name |
| 12 | 64 | the flow's name, zero-padded |
| 76 | 8 | batch number |
| 84 | 8 | length of the payload |
| 92 | 4 | CRC32C of the payload |
| 96 | 28 | zero |
| 124 | 4 | CRC32C of the 124 bytes before |
| 128 | … | the payload, to the end of the file |

A file is written under another name, flushed, renamed, and its directory flushed: it exists whole or not at all.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import google_crc32c

from oncegate.flows.directories import flush_directory, make_directory, replace_durably
from oncegate.flows.errors import BadRequestError, NotFoundError, SegmentConflict, SegmentCorrupt
from oncegate.flows.flow import NAME_PATTERN, check_name
from oncegate.flows.segment import format_checksum

MAGIC: Final = b"OGSEGMNT"
VERSION: Final = 1
NUMBER_MAX: Final = 2**53 - 1

_FIELDS: Final = struct.Struct("<8sHH64sQQI28x")
_CRC: Final = struct.Struct("<I")
HEADER_BYTES: Final = _FIELDS.size + _CRC.size
_SUFFIX: Final = ".segment"
_ASIDE: Final = ".aside"


class Header(NamedTuple):
    """The header of a segment file."""

    flow: str
    number: int
    length_bytes: int
    crc: int


def encode_header(header: Header) -> bytes:
    """Return the first HEADER_BYTES of a segment file."""
    flow = header.flow.encode()
    fields = _FIELDS.pack(MAGIC, VERSION, len(flow), flow, header.number, header.length_bytes, header.crc)
    return fields + _CRC.pack(google_crc32c.value(fields))


def decode_header(path: Path, data: bytes) -> Header:
    """Read a header; ``path`` names the file in errors.

    Raises:
        SegmentCorrupt: too short, damaged, or of another format or version.
    """
    if len(data) < HEADER_BYTES:
        raise SegmentCorrupt(path, f"{len(data)} bytes are no header")
    fields = data[: _FIELDS.size]
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if crc != google_crc32c.value(fields):
        raise SegmentCorrupt(path, "the header's checksum does not match")
    magic, version, flow_length, flow, number, length_bytes, payload_crc = _FIELDS.unpack(fields)
    if magic != MAGIC or version != VERSION:
        raise SegmentCorrupt(path, f"not a segment of version {VERSION}")
    return Header(flow[:flow_length].decode(), number, length_bytes, payload_crc)


class SegmentStore:
    """The segment files of one node. Safe to use from several threads.

    Args:
        directory: made if it is not there; nothing else may live in it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writing = threading.Lock()
        self._made: set[str] = set()
        """Flows whose directory is there and durable; looked at while writing."""
        make_directory(directory)
        for aside in directory.glob(f"*/*{_ASIDE}"):
            # A crash before the rename; the log still holds the items.
            aside.unlink()

    def path(self, flow: str, number: int) -> Path:
        """Return the path of a batch, whether or not its file exists.

        Raises:
            BadRequestError: an invalid name of a flow, or a number outside 1..NUMBER_MAX.
        """
        check_name("flow", flow)
        if not 1 <= number <= NUMBER_MAX:
            raise BadRequestError(f"batch number {number} is not in 1..{NUMBER_MAX}")
        return self.directory / flow / f"{number:016d}{_SUFFIX}"

    def put(self, flow: str, number: int, payload: bytes) -> str:
        """Store a batch and return its payload's checksum. Durable when it returns. Idempotent for the same bytes.

        Raises:
            SegmentConflict: the batch is there with other bytes, which stay.
            SegmentCorrupt: the batch is there but damaged; drop it to have it written again.
            OSError: the disk refused; no batch and no remains are visible.
        """
        path = self.path(flow, number)
        crc = google_crc32c.value(payload)
        with self._writing:
            if path.exists():
                stored = self.get(flow, number)
                if stored != payload:
                    stored_checksum = format_checksum(google_crc32c.value(stored))
                    raise SegmentConflict(path, stored_checksum, format_checksum(crc))
                # The crash may have come between rename and the directory's flush.
                flush_directory(path.parent)
                return format_checksum(crc)
            header = encode_header(Header(flow, number, len(payload), crc))
            if flow not in self._made:
                make_directory(path.parent)
                self._made.add(flow)
            try:
                replace_durably(path, path.with_suffix(_ASIDE), header, payload)
            except OSError:
                self._made.discard(flow)
                raise
        return format_checksum(crc)

    def get(self, flow: str, number: int) -> bytes:
        """Return the payload of a batch, every byte of the file checked.

        Raises:
            NotFoundError: no such file.
            SegmentCorrupt: the file is not what was written.
        """
        path = self.path(flow, number)
        with self._opened(flow, number) as (header, file):
            payload = file.read()
        if len(payload) != header.length_bytes:
            raise SegmentCorrupt(path, f"{len(payload)} bytes of payload, not {header.length_bytes}")
        if google_crc32c.value(payload) != header.crc:
            raise SegmentCorrupt(path, "the payload's checksum does not match")
        return payload

    def piece(self, flow: str, number: int, offset: int, size_bytes: int) -> tuple[int, str, bytes]:
        """Return (length of the payload, its checksum, up to ``size_bytes`` of it from ``offset``).

        Only the header is checked: a reader of all pieces compares them with the checksum. Raises as :meth:`get`.
        """
        with self._opened(flow, number) as (header, file):
            file.seek(HEADER_BYTES + offset)
            return header.length_bytes, format_checksum(header.crc), file.read(size_bytes)

    def checksum(self, flow: str, number: int) -> str:
        """Return the payload's checksum as the header tells it, without reading the payload; raises as :meth:`get`."""
        with self._opened(flow, number) as (header, _):
            return format_checksum(header.crc)

    @contextmanager
    def _opened(self, flow: str, number: int) -> Iterator[tuple[Header, BinaryIO]]:
        """Open a batch's file, check its header, and stand at its payload."""
        path = self.path(flow, number)
        try:
            with open(path, "rb") as file:
                header = decode_header(path, file.read(HEADER_BYTES))
                if (header.flow, header.number) != (flow, number):
                    raise SegmentCorrupt(path, f"holds batch {header.number} of {header.flow}")
                yield header, file
        except FileNotFoundError as error:
            raise NotFoundError(f"no batch {number} of {flow} on this node") from error

    def has(self, flow: str, number: int) -> bool:
        """Tell whether the batch's file is there, whole or damaged."""
        return self.path(flow, number).exists()

    def flows(self) -> list[str]:
        """Return the names of the flows that have a directory on this node, in order."""
        return sorted(one.name for one in self.directory.iterdir() if NAME_PATTERN.fullmatch(one.name))

    def list(self, flow: str) -> list[int]:
        """Return the numbers of a flow's batches on this node, ascending."""
        directory = self.path(flow, 1).parent
        return sorted(int(path.stem) for path in directory.glob(f"*{_SUFFIX}"))

    def drop(self, flow: str, number: int) -> None:
        """Remove a batch's file. Idempotent; not flushed, since a file that comes back is only dropped again."""
        self.path(flow, number).unlink(missing_ok=True)

    def drop_through(self, flow: str, number: int) -> None:
        """Remove all batches of a flow up to and including ``number``, and its directory if it is empty. Idempotent."""
        for present in self.list(flow):
            if present <= number:
                self.drop(flow, present)
        # Not while a batch is on its way into it. Where files are left, or nothing was, it stays as it is.
        with self._writing, contextlib.suppress(OSError):
            self.path(flow, 1).parent.rmdir()
            self._made.discard(flow)
