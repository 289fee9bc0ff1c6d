"""Damage to a data directory of a node that is down: where, what, and what the node has to say to it.

Places are found by the formats' own constants (:mod:`oncegate.consensus.log.segment`,
:mod:`oncegate.consensus.log.sealed_file`), so that a class of offsets stays one when a layout changes. ``refused``
names the file that the refusal has to name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def _sealed(kind: str) -> list[Damage]:
    """A small file that is replaced whole: magic, length, checksum, payload."""
    found = [
        Damage(f"{kind}: bit of the {part}", lambda d, at=at: _flip(d / kind, at), "refuses")  # type: ignore[misc]
        for part, at in (("magic", 0), ("length", 8), ("checksum", 12), ("payload", SEALED_HEADER_BYTES + 1))
    ]
    return [
        *found,
        Damage(f"{kind}: empty", lambda d: _cut(d / kind, 0), "refuses"),
        Damage(f"{kind}: cut inside the header", lambda d: _cut(d / kind, 10), "refuses"),
        Damage(f"{kind}: last byte gone", lambda d: _cut(d / kind, (d / kind).stat().st_size - 1), "refuses"),
        Damage(f"{kind}: deleted", lambda d: _remove(d / kind), "refuses"),
    ]


def _reserve() -> list[Damage]:
    """Bytes that only keep room: nothing is lost with them."""
    return [
        Damage("reserve: deleted", lambda d: _remove(d / "reserve"), "starts"),
        Damage("reserve: empty", lambda d: _cut(d / "reserve", 0), "starts"),
    ]


def _segment_header() -> list[Damage]:
    fields = {"magic": 0, "sequence": 8, "base": 16, "size": 24, "seed": 32, "padding": 40, "checksum": 60}
    return [
        Damage(f"segment header: bit of the {part}", lambda d, at=at: _flip(used(d)[0], at), "refuses")  # type: ignore[misc]
        for part, at in fields.items()
    ]


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
}


def _record_fields(which: str, number: int) -> list[Damage]:
    """Every field of a record in the middle of a segment: what follows it proves that it had been flushed.

    In the first segment the next segment proves it; in the last one only a later record's own word does.
    """

    def middle(directory: Path) -> tuple[Path, SegmentRecord]:
        # Of those that a later record proves to have been flushed: in the last batch a record that is gone altogether
        # is one that was never written, as far as anybody can tell.
        flushed_to = records(used(directory)[-1])[-1].prior_end
        for path in used(directory)[number::-1] if number else used(directory)[:1]:
            base = _header(path, path.read_bytes()).base
            found = [record for record in records(path) if base + record.offset < flushed_to]
            if found:
                return path, found[len(found) // 2]
        raise LookupError("no record is known to be flushed")

    def flip(directory: Path, at: int) -> str:
        path, record = middle(directory)
        return _flip(path, record.offset + at)

    def last_byte(directory: Path) -> str:
        path, record = middle(directory)
        return _flip(path, record.offset + RECORD_HEADER_BYTES + len(record.payload) - 1)

    def zeroed(directory: Path) -> str:
        path, record = middle(directory)
        size = RECORD_HEADER_BYTES + len(record.payload)
        data = path.read_bytes()
        path.write_bytes(data[: record.offset] + bytes(size) + data[record.offset + size :])
        return path.name

    return [
        *(
            Damage(f"record in the {which} segment: bit of the {part}", lambda d, at=at: flip(d, at), "refuses")  # type: ignore[misc]
            for part, at in _RECORD_FIELDS.items()
        ),
        Damage(f"record in the {which} segment: bit of the last payload byte", last_byte, "refuses"),
        Damage(f"record in the {which} segment: zeroed", zeroed, "refuses"),
    ]


def _last_record() -> list[Damage]:
    """Every field of the record written last: no later one proves that it was flushed, but no sector is missing."""

    def flip(directory: Path, at: int) -> str:
        path = used(directory)[-1]
        last = records(path)[-1]
        # Without a payload there is no payload to flip: the header's last byte instead.
        return _flip(path, last.offset + min(at, RECORD_HEADER_BYTES + len(last.payload) - 1))

    return [
        Damage(f"last record: bit of the {part}", lambda d, at=at: flip(d, at), "refuses")  # type: ignore[misc]
        for part, at in {**_RECORD_FIELDS, "last payload byte": 1 << 32}.items()
    ]


def _tail() -> list[Damage]:
    """Behind and at the end of what was written."""

    def end(directory: Path) -> tuple[Path, int]:
        path = used(directory)[-1]
        last = records(path)[-1]
        return path, last.offset + RECORD_HEADER_BYTES + len(last.payload)

    def border(at: int) -> int:
        return at - at % SECTOR_BYTES + SECTOR_BYTES

    def torn(directory: Path) -> str:
        # A batch that power loss cut before it was flushed: a sector in its middle is there, none around it is.
        path, at = end(directory)
        with path.open("r+b") as file:
            file.seek(border(at))
            file.write(b"\x81" * SECTOR_BYTES)
        return path.name

    def noise(directory: Path) -> str:
        path, at = end(directory)
        return _flip(path, min(border(at) + 100, path.stat().st_size - 1))

    def near_noise(directory: Path) -> str:
        path, at = end(directory)
        return _flip(path, min(border(at), path.stat().st_size) - 1)

    def shorter(directory: Path) -> str:
        path, _ = end(directory)
        return _cut(path, path.stat().st_size - 4096)

    return [
        Damage("tail: torn batch", torn, "starts"),
        Damage("tail: bit in the zeros of a sector behind the end", noise, "starts"),
        Damage("tail: bit in the zeros of the sector that ends the log", near_noise, "refuses"),
        Damage("segment: shorter than its header says", shorter, "refuses"),
        Damage("segment: empty", lambda d: _cut(used(d)[0], 0), "refuses"),
        Damage("segment: cut inside the header", lambda d: _cut(used(d)[0], SEGMENT_HEADER_BYTES - 1), "refuses"),
        Damage("segment: one in the middle deleted", _remove_middle, "refuses"),
        Damage("journal: all segments deleted", _remove_journal, "refuses"),
    ]


def _remove_middle(directory: Path) -> tuple[str, ...]:
    return _remove(used(directory)[1]), used(directory)[1].name  # What is missing, or what stands behind the hole.


def _remove_journal(directory: Path) -> str:
    for path in segments(directory):
        path.unlink()
    return "identity"  # What says that there has been a journal.


def _spare() -> list[Damage]:
    def spare(directory: Path) -> Path:
        return segments(directory)[-1]

    return [
        Damage("spare segment: bit of the header", lambda d: _flip(spare(d), 16), "refuses"),
        Damage("spare segment: bit of the zeros", lambda d: _flip(spare(d), 5000), "starts"),
        Damage("spare segment: deleted", lambda d: _remove(spare(d)), "starts"),
        Damage("temporary file left behind", lambda d: _leave(d / "journal-0000000000000999.segment.tmp"), "starts"),
    ]


def _leave(path: Path) -> str:
    path.write_bytes(b"half a segment")
    return path.name


def _peers() -> list[Damage]:
    kind = "known-peers"
    # Gone, it knows nobody and trusts whom it meets first, as a node does that is new.
    forgotten = [Damage(f"{kind}: deleted", lambda d: _remove(d / kind), "starts")]
    return [case for case in _sealed(kind) if case.name != f"{kind}: deleted"] + forgotten


KINDS: Final = ("identity", "ballot", "known-peers", "reserve", "journal-*.segment")
"""Every kind of file there is; a new one needs its damages in :data:`ALL`."""

ALL: Final = [
    *_sealed("identity"),
    *_sealed("ballot"),
    *_peers(),
    *_reserve(),
    *_segment_header(),
    *_record_fields("first", 0),
    *_record_fields("last", -1),
    *_last_record(),
    *_tail(),
    *_spare(),
]
