"""One snapshot on its way to one follower: what to offer, what to read next, how much may be under way; pure.

A transfer is offered first, and the follower says where to go on: at the beginning, or, after a reconnect to the same
node, behind what it has. Chunks follow within a window. Without an answer for a while the offer is repeated, so that
nothing that gets lost stops a transfer. Knows neither disks nor sockets.
Read next: :mod:`oncegate.consensus.snapshot.snapshot_leader`, :mod:`oncegate.consensus.snapshot.snapshot_receive` for
the other side.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

import google_crc32c

from oncegate.consensus.messages import SnapshotAnswer, SnapshotChunk, SnapshotOffer, SnapshotVerdict
from oncegate.consensus.ports import SnapshotManifest

WINDOW_CHUNKS: Final = 4
"""Chunks sent and not yet written by the follower."""

_CHUNK_PLACE = struct.Struct("<QQQ")


class Position(NamedTuple):
    """Where the next byte comes from; behind the last file at the end."""

    file: int
    offset: int


def position_from(manifest: SnapshotManifest, file: int, offset: int) -> Position:
    """The position at or behind which a byte lies: empty files have none."""
    files = manifest.files
    while file < len(files) and offset >= files[file].size:
        file, offset = file + 1, 0
    return Position(file, offset)


def chunk_crc(transfer: int, file: int, offset: int, data: bytes) -> int:
    """CRC32C of a chunk's place (three u64, little-endian) and its data: bytes out of place do not pass."""
    return int(google_crc32c.extend(google_crc32c.value(_CHUNK_PLACE.pack(transfer, file, offset)), data))


class Outgoing:
    """The leader's side of one transfer."""

    def __init__(self, transfer: int, manifest: SnapshotManifest, *, chunk_bytes: int, answer_s: float) -> None:
        """``answer_s``: after so many seconds of silence the offer is repeated."""
        self.transfer = transfer
        self.manifest = manifest
        self._chunk_bytes = chunk_bytes
        self._answer_s = answer_s
        self._accepted = False
        self._next = Position(0, 0)
        self._in_flight: deque[Position] = deque()
        self._said_at = float("-inf")
        self._written = Position(0, 0)
        self.moved_at = float("-inf")
        """When the follower last was further than before."""

    def reconnected(self) -> None:
        """What was in flight may be lost: offer again."""
        self._accepted = False
        self._in_flight.clear()
        self._said_at = float("-inf")

    def offer(self, term: int, now: float) -> SnapshotOffer | None:
        """The offer, when one is due."""
        waits_here = self._accepted and not self._in_flight and self._next.file < len(self.manifest.files)
        if waits_here or now - self._said_at < self._answer_s:
            return None
        self._accepted = False
        self._in_flight.clear()
        self._said_at = now
        if self.moved_at == float("-inf"):
            self.moved_at = now
        return SnapshotOffer(term, self.transfer, self.manifest)

    def next_read(self) -> tuple[Position, int] | None:
        """Place and size of the chunk to read and send next; None while the window is full or nothing is left."""
        place = self._next
        files = self.manifest.files
        if not self._accepted or len(self._in_flight) >= WINDOW_CHUNKS or place.file >= len(files):
            return None
        return place, min(self._chunk_bytes, files[place.file].size - place.offset)

    def chunk(self, term: int, place: Position, data: bytes, crc: int) -> SnapshotChunk | None:
        """The message for a chunk that was read, unless the follower has asked for another since."""
        if not self._accepted or place != self._next:
            return None
        self._next = position_from(self.manifest, place.file, place.offset + len(data))
        self._in_flight.append(self._next)
        return SnapshotChunk(term, self.transfer, place.file, place.offset, crc, data)

    def answered(self, answer: SnapshotAnswer, now: float) -> None:
        """Take a position from the follower; one that was never sent is where a new round begins."""
        place = position_from(self.manifest, answer.file, answer.offset)
        self._said_at = now
        if place > self._written:
            self._written = place
            self.moved_at = now
        if not self._accepted or answer.verdict is SnapshotVerdict.REJECTED:
            self._accepted = True
            self._in_flight.clear()
            self._next = place
            return
        while self._in_flight and self._in_flight[0] <= place:
            self._in_flight.popleft()
