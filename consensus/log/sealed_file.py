"""Small files that are replaced whole: written aside, flushed, renamed, checksummed.

Layout, little-endian: magic (8 bytes), payload length (u32), CRC32C of the payload (u32), payload.
Owns that layout and the order of system calls; the meaning of the payload is the caller's.
Read next: :mod:`oncegate.consensus.log.ballot`, :mod:`oncegate.consensus.log.identity`.
"""

from __future__ import annotations

import struct
from typing import TypeVar

import google_crc32c
import msgspec

from oncegate.consensus.errors import Corrupt
from oncegate.consensus.log.storage import Storage

_HEADER = struct.Struct("<8sII")
TEMPORARY_SUFFIX = ".tmp"
T = TypeVar("T")


def write_sealed(storage: Storage, name: str, magic: bytes, payload: bytes) -> None:
    """Replace ``name`` so that after a crash it holds the old or the new payload, and after return the new.

    Order: write the temporary file, flush it, rename it, flush the directory (a rename that is not
    flushed may be forgotten, and a term or vote with it).
    """
    temporary = name + TEMPORARY_SUFFIX
    file = storage.create(temporary)
    try:
        file.write([encode_sealed(magic, payload)], 0)
        file.sync()
    finally:
        file.close()
    storage.rename(temporary, name)
    storage.sync_directory()


def encode_sealed(magic: bytes, payload: bytes) -> bytes:
    """Return the whole of such a file."""
    return _HEADER.pack(magic, len(payload), google_crc32c.value(payload)) + payload


def read_sealed(storage: Storage, name: str, magic: bytes) -> bytes:
    """Return the payload of ``name``; raises :class:`Corrupt` for anything but exactly what was written."""
    file = storage.open(name)
    try:
        data = file.read(file.size(), 0)
    finally:
        file.close()
    label = storage.label(name)
    if len(data) < _HEADER.size:
        raise Corrupt(label, len(data), "file ends inside its header")
    found_magic, length, crc = _HEADER.unpack_from(data)
    if found_magic != magic:
        raise Corrupt(label, 0, "not the expected kind or version of file")
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise Corrupt(label, len(data), f"payload has {len(payload)} bytes, not {length}")
    if google_crc32c.value(payload) != crc:
        raise Corrupt(label, _HEADER.size, "checksum of the payload differs")
    return payload


def read_sealed_struct(storage: Storage, name: str, magic: bytes, shape: type[T]) -> T:
    """Return the payload of ``name`` as msgpack of ``shape``; raises :class:`Corrupt` as :func:`read_sealed`."""
    payload = read_sealed(storage, name, magic)
    try:
        return msgspec.msgpack.decode(payload, type=shape)
    except msgspec.DecodeError as error:
        raise Corrupt(storage.label(name), 0, f"the payload does not decode: {error}") from error
