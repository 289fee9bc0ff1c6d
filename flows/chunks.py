"""The pieces a batch is made of before it becomes a file.

Owns: the immutable forms of a run of single writes and of a range, and of the sealed batch that holds them. They
are plain msgspec data, so they travel in snapshots. Must not know Arrow. Read next: :mod:`oncegate.flows.open_segment`
(makes them), :mod:`oncegate.flows.segment` (turns them into a file).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import TypeAlias

import msgspec


def int64s_to_bytes(column: array[int]) -> bytes:
    """Return the numbers as little-endian int64, the same on every machine."""
    if sys.byteorder == "big":
        column = array("q", column)
        column.byteswap()
    return column.tobytes()


def int64s_from_bytes(data: bytes) -> array[int]:
    """Undo :func:`int64s_to_bytes`."""
    column = array("q")
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column


def cut_traceparents(traceparents: Sequence[str | None], start: int, stop: int) -> tuple[str | None, ...]:
    """Return the trace contexts of items ``start`` up to, not including, ``stop``, as :class:`SinglesChunk` holds them.

    Items beyond the end of ``traceparents`` had none.
    """
    part = traceparents[start:stop]
    if not any(part):
        return ()
    return (*part, *(None,) * (stop - start - len(part)))


class SinglesChunk(msgspec.Struct, frozen=True, tag="singles", gc=False):
    """A run of single writes, by column. The four numeric columns are little-endian int64.

    Attributes:
        commits, times_ms, client_ids, sequences: 8 bytes an item.
        keys: row keys.
        values: JSON text in UTF-8, None = deleted.
        traceparents: trace context of each item's request, None = it had none; empty if no item's request had one.
    """

    commits: bytes
    keys: tuple[str, ...]
    values: tuple[bytes | None, ...]
    times_ms: bytes
    client_ids: bytes
    sequences: bytes
    traceparents: tuple[str | None, ...] = ()

    @property
    def items(self) -> int:
        """Number of items."""
        return len(self.keys)

    @property
    def first_commit(self) -> int:
        """Commit number of the first item."""
        return int.from_bytes(self.commits[:8], "little", signed=True)

    @property
    def last_commit(self) -> int:
        """Commit number of the last item."""
        return int.from_bytes(self.commits[-8:], "little", signed=True)

    @property
    def first_time_ms(self) -> int:
        """Cluster time of the first item."""
        return int.from_bytes(self.times_ms[:8], "little", signed=True)


class RangeChunk(msgspec.Struct, frozen=True, tag="range", gc=False):
    """A range, its columns still in the bytes that came over the network.

    Attributes:
        first_commit: commit number of the first item; item *i* has ``first_commit + i``.
        count: number of items, at least 1.
        time_ms: cluster time of all of them.
        client_id: session that wrote.
        first_sequence: sequence number of the first item; item *i* has ``first_sequence + i``.
        body: Arrow IPC stream, columns ``key`` and ``value`` (:mod:`oncegate.flows.range_body`).
        offset: row of ``body`` that is the first item.
        traceparent: trace context of the request that brought it, empty if it had none.
    """

    first_commit: int
    count: int
    time_ms: int
    client_id: int
    first_sequence: int
    body: bytes
    offset: int
    traceparent: str = ""

    @property
    def items(self) -> int:
        """Number of items."""
        return self.count

    @property
    def last_commit(self) -> int:
        """Commit number of the last item."""
        return self.first_commit + self.count - 1

    @property
    def first_time_ms(self) -> int:
        """Cluster time of the first item."""
        return self.time_ms


SealedChunk: TypeAlias = SinglesChunk | RangeChunk
"""What a batch is made of."""


class SealedBatch(msgspec.Struct, frozen=True, gc=False):
    """A numbered batch of the table's items in commit order, which will never change; not yet a file.

    ``size_bytes``: as the open segment counted it; roughly its size in memory.
    """

    flow: str
    table: str
    number: int
    items: int
    size_bytes: int
    chunks: tuple[SealedChunk, ...]

    @property
    def first_commit(self) -> int:
        """Commit number of the first item."""
        return self.chunks[0].first_commit

    @property
    def last_commit(self) -> int:
        """Commit number of the last item."""
        return self.chunks[-1].last_commit
