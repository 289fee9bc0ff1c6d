"""Damage to a data directory: where, what, and, of a node that is down, whether it then refuses to start.

Places are found by the formats' own constants (:mod:`oncegate.consensus.log.segment`,
:mod:`oncegate.consensus.log.sealed_file`), so that a class of offsets stays one when a layout changes. ``refused``
names the file that the refusal has to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from oncegate.consensus.log.segment import (
    RECORD_HEADER_BYTES,
    SECTOR_BYTES,
    SEGMENT_HEADER_BYTES,
    SEGMENT_SUFFIX,
    SegmentHeader,
    SegmentRecord,
    decode_header,
    scan,
)

Verdict = Literal["refuses", "starts"]
SEALED_HEADER_BYTES: Final = 16


@dataclass(frozen=True)
class Damage:
    """One way to spoil a directory; ``inflict`` returns the name of the file it spoiled, or several, any of which
    may be named by the refusal.
    """

    name: str
    inflict: Callable[[Path], str | tuple[str, ...]]
    verdict: Verdict

    def __str__(self) -> str:
        return self.name


_IN_A_BLOCK: Final = 8
"""A table file begins with its first block of rows."""


def spoil_saved_state(state: Path) -> str:
    """Change a byte of the largest file of a saved state in place, as the disk would under a node that runs.

    Returns the file's name. Raises OSError: nothing is saved, or the node has just replaced the file.
    """
    tables = [(path.stat().st_size, path) for path in state.glob("store-*/*.sst")]
    if not tables:
        raise FileNotFoundError("nothing is saved")
    path = max(tables)[1]
    with path.open("r+b") as file:
        file.seek(_IN_A_BLOCK)
        byte = file.read(1)[0]
        file.seek(_IN_A_BLOCK)
        file.write(bytes([byte ^ 1]))
    return f"{path.parent.name}/{path.name}"


def segments(directory: Path) -> list[Path]:
    """Journal segments in log order; those behind the last record are spare."""
    return sorted(directory.glob(f"*{SEGMENT_SUFFIX}"))


def _header(path: Path, data: bytes) -> SegmentHeader:
    sequence = int(path.name.removesuffix(SEGMENT_SUFFIX).rpartition("-")[2])
    return decode_header(data, label=str(path), sequence=sequence, size=len(data))


def records(path: Path) -> list[SegmentRecord]:
    """The valid records of a segment."""
    data = path.read_bytes()
    return list(scan(data, SEGMENT_HEADER_BYTES, _header(path, data).seed))


def used(directory: Path) -> list[Path]:
    """Segments that hold records."""
    return [path for path in segments(directory) if records(path)]


def _flip(path: Path, offset: int, bit: int = 3) -> str:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    return path.name


def _cut(path: Path, size: int) -> str:
    with path.open("r+b") as file:
        file.truncate(size)
    return path.name


def _remove(path: Path) -> str:
    path.unlink()
    return path.name


def _size(path: Path) -> int:
    return path.stat().st_size


def _bits(what: str, parts: Mapping[str, int], extent: Callable[[Path], tuple[Path, int, int]]) -> list[Damage]:
    """Flip a bit in each part: of ``extent``, which returns a file, where in it something begins, and its length.

    A part behind the end is the last byte: without a payload the header's.
    """

    def flip(part: str, directory: Path) -> str:
        path, start, size = extent(directory)
        return _flip(path, start + min(parts[part], size - 1))

    return [Damage(f"{what}: bit of the {part}", partial(flip, part), "refuses") for part in parts]


def _whole(file: Callable[[Path], Path]) -> Callable[[Path], tuple[Path, int, int]]:
    return lambda directory: (path := file(directory), 0, _size(path))


def _sealed(kind: str, *, deleted: Verdict = "refuses") -> list[Damage]:
    """A small file that is replaced whole: magic, length, checksum, payload."""
    parts = {"magic": 0, "length": 8, "checksum": 12, "payload": SEALED_HEADER_BYTES + 1}
    return [
        *_bits(kind, parts, _whole(lambda d: d / kind)),
        Damage(f"{kind}: empty", lambda d: _cut(d / kind, 0), "refuses"),
        Damage(f"{kind}: cut inside the header", lambda d: _cut(d / kind, 10), "refuses"),
        Damage(f"{kind}: last byte gone", lambda d: _cut(d / kind, _size(d / kind) - 1), "refuses"),
        Damage(f"{kind}: deleted", lambda d: _remove(d / kind), deleted),
    ]


_HEADER_FIELDS: Final = {"magic": 0, "sequence": 8, "base": 16, "size": 24, "seed": 32, "padding": 40, "checksum": 60}
_RECORD_FIELDS: Final = {
    "magic": 0,
    "checksum": 4,
    "length": 8,
    "index": 12,
    "term": 20,
    "commit": 28,
    "prior end": 36,
    "check": 44,
    "kind": 47,
    "first payload byte": RECORD_HEADER_BYTES,
    "last payload byte": 1 << 32,
}


def _extent(path: Path, record: SegmentRecord) -> tuple[Path, int, int]:
    return path, record.offset, RECORD_HEADER_BYTES + len(record.payload)


def _last(directory: Path) -> tuple[Path, int, int]:
    """The record written last: no later one proves that it was flushed, but no sector is missing."""
    path = used(directory)[-1]
    return _extent(path, records(path)[-1])


def _record(which: str, number: int) -> list[Damage]:
    """Every field of a record in the middle of a segment: what follows it proves that it had been flushed.

    In the first segment the next segment proves it; in the last one only a later record's own word does.
    """

    def middle(directory: Path) -> tuple[Path, int, int]:
        # Of those that a later record proves to have been flushed: in the last batch a record that is gone altogether
        # cannot be told from one that was never written.
        flushed_to = records(used(directory)[-1])[-1].prior_end
        for path in used(directory)[number::-1] if number else used(directory)[:1]:
            base = _header(path, path.read_bytes()).base
            found = [record for record in records(path) if base + record.offset < flushed_to]
            if found:
                return _extent(path, found[len(found) // 2])
        raise LookupError("no record is known to be flushed")

    def zeroed(directory: Path) -> str:
        path, start, size = middle(directory)
        data = path.read_bytes()
        path.write_bytes(data[:start] + bytes(size) + data[start + size :])
        return path.name

    what = f"record in the {which} segment"
    return [*_bits(what, _RECORD_FIELDS, middle), Damage(f"{what}: zeroed", zeroed, "refuses")]


def _border(directory: Path) -> tuple[Path, int]:
    """The end of the sector in which the log ends."""
    path, start, size = _last(directory)
    end = start + size
    return path, end - end % SECTOR_BYTES + SECTOR_BYTES


def _torn(directory: Path) -> str:
    """A batch that power loss cut before it was flushed: a sector in its middle is there, none around it is."""
    path, border = _border(directory)
    with path.open("r+b") as file:
        file.seek(border)
        file.write(b"\x81" * SECTOR_BYTES)
    return path.name


def _noise(directory: Path) -> str:
    path, border = _border(directory)
    return _flip(path, min(border + 100, _size(path) - 1))


def _near_noise(directory: Path) -> str:
    path, border = _border(directory)
    return _flip(path, min(border, _size(path)) - 1)


def _shorter(directory: Path) -> str:
    path = used(directory)[-1]
    return _cut(path, _size(path) - 4096)


def _remove_middle(directory: Path) -> tuple[str, ...]:
    return _remove(used(directory)[1]), used(directory)[1].name  # What is missing, or what stands behind the hole.


def _remove_journal(directory: Path) -> str:
    for path in segments(directory):
        path.unlink()
    return "identity"  # What says that there has been a journal.


def _spare(directory: Path) -> Path:
    return segments(directory)[-1]


def _leave(path: Path) -> str:
    path.write_bytes(b"half a segment")
    return path.name


KINDS: Final = ("identity", "ballot", "known-peers", "reserve", "journal-*.segment")
"""Every kind of file there is; a new one needs its damages in :data:`ALL`."""

ALL: Final = [
    *_sealed("identity"),
    *_sealed("ballot"),
    # Without this file a node knows no peer and trusts those it meets first, as a new node does.
    *_sealed("known-peers", deleted="starts"),
    # Bytes that only keep room: nothing is lost with them.
    Damage("reserve: deleted", lambda d: _remove(d / "reserve"), "starts"),
    Damage("reserve: empty", lambda d: _cut(d / "reserve", 0), "starts"),
    *_bits("segment header", _HEADER_FIELDS, _whole(lambda d: used(d)[0])),
    *_record("first", 0),
    *_record("last", -1),
    *_bits("last record", _RECORD_FIELDS, _last),
    Damage("tail: torn batch", _torn, "starts"),
    Damage("tail: bit in the zeros of a sector behind the end", _noise, "starts"),
    Damage("tail: bit in the zeros of the sector that ends the log", _near_noise, "refuses"),
    Damage("segment: shorter than its header says", _shorter, "refuses"),
    Damage("segment: empty", lambda d: _cut(used(d)[0], 0), "refuses"),
    Damage("segment: cut inside the header", lambda d: _cut(used(d)[0], SEGMENT_HEADER_BYTES - 1), "refuses"),
    Damage("segment: one in the middle deleted", _remove_middle, "refuses"),
    Damage("journal: all segments deleted", _remove_journal, "refuses"),
    Damage("spare segment: bit of the header", lambda d: _flip(_spare(d), 16), "refuses"),
    Damage("spare segment: bit of the zeros", lambda d: _flip(_spare(d), 5000), "starts"),
    Damage("spare segment: deleted", lambda d: _remove(_spare(d)), "starts"),
    Damage("temporary file left behind", lambda d: _leave(d / "journal-0000000000000999.segment.tmp"), "starts"),
]
