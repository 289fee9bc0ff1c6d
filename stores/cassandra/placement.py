"""Which rows travel together: batches of rows that the same replicas hold, bounded in bytes and in partitions.

Owns: routing keys, the sets of replicas, and the cut into batches. Pure: the ring is passed in. Must not send.
Read next: :mod:`oncegate.stores.cassandra.sending`.

A request costs client and server about as much as fifty rows do, so rows of many partitions share one: an unlogged
batch whose rows all have the same replicas, sent to one of them, causes no hop that single statements would not cause.
Such a batch is no unit: the server applies each partition by itself, and a retry repeats all, which timestamps allow.

Example: keys a, b, c, d; nodes 1 and 2 hold a and c, nodes 2 and 3 hold b and d: two batches, (a, c) and (b, d).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cassandra.metadata import Murmur3Token

from oncegate.stores import layout
from oncegate.stores.tables import StoreTable

Int64s = npt.NDArray[np.int64]

PARTITIONS_MAX: Final = 32
"""Partitions of a batch. Each is a write of its own for the server, one after the other at the node that has them, and
with a wait for the flush where it flushes first: many batches at once do more than large ones.
"""
_CELL_BYTES: Final = 16
_ROW_BYTES: Final = 24
"""What the server counts for each cell and each row beside their values (times, time to live, liveness)."""


@dataclass(frozen=True, slots=True)
class Ring:
    """The ends of the token ranges, ascending and inclusive, and for each the number of its set of replicas."""

    ends: Int64s
    groups: Int64s

    @classmethod
    def of(cls, metadata: Any, keyspace: str) -> Self | None:
        """Return the ring of a keyspace as the driver knows it; None: unknown, or tokens are no numbers."""
        tokens = metadata.token_map
        if tokens is None or tokens.token_class is not Murmur3Token or not tokens.ring:
            return None
        numbers: dict[frozenset[Any], int] = {}
        groups = []
        for token in tokens.ring:
            replicas = frozenset(host.host_id for host in tokens.get_replicas(keyspace, token))
            if not replicas:
                return None
            groups.append(numbers.setdefault(replicas, len(numbers)))
        return cls(np.array([token.value for token in tokens.ring], np.int64), np.array(groups, np.int64))

    def groups_of(self, keys: Sequence[bytes]) -> Int64s:
        """Return for each serialised partition key the number of its set of replicas."""
        if np.all(self.groups == self.groups[0]):
            return np.zeros(len(keys), np.int64)
        tokens = np.array([Murmur3Token.hash_fn(key) for key in keys], np.int64)
        return self.groups[np.searchsorted(self.ends, tokens) % len(self.ends)]


@dataclass(frozen=True, slots=True)
class Placed:
    """Rows in the order in which they are sent, the place of each in the batch given, and where partitions begin.

    ``borders`` has one entry more than there are partitions: the number of rows; ``keys`` and ``groups`` have one for
    each partition. ``cells`` is the number of values of a row outside its key.
    """

    rows: pa.RecordBatch
    cells: int
    positions: Int64s
    borders: Int64s
    keys: list[bytes]
    groups: Int64s

    def spans(self, encoded: Int64s, bound: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield the first row, the end and the routing key of each batch.

        ``encoded`` are the offsets of the encoded rows. A batch has at most ``bound`` bytes, encoded and as the server
        counts them, unless it is a single row; one set of replicas; at most `PARTITIONS_MAX` partitions.
        """
        weights = encoded + np.arange(len(encoded)) * (_ROW_BYTES + _CELL_BYTES * self.cells)
        at_border = weights[self.borders]
        changes = np.flatnonzero(np.diff(self.groups)) + 1
        ends = np.append(changes, len(self.groups))[np.searchsorted(changes, np.arange(len(self.groups)), side="right")]
        at = 0
        while at < len(self.groups):
            within = int(np.searchsorted(at_border, at_border[at] + bound, side="right")) - 1
            last = min(within, at + PARTITIONS_MAX, int(ends[at]))
            if last > at:
                yield int(self.borders[at]), int(self.borders[last]), self.keys[at]
                at = last
                continue
            # A partition of more rows than a batch takes.
            first, end = int(self.borders[at]), int(self.borders[at + 1])
            while first < end:
                fits = int(np.searchsorted(encoded, encoded[first] + bound, side="right")) - 1
                cut = min(max(fits, first + 1), end)
                yield first, cut, self.keys[at]
                first = cut
            at += 1


def place(table: StoreTable, rows: pa.RecordBatch, ring: Ring | None) -> Placed:
    """Return the rows by set of replicas, then by primary key; without a ring each partition is a set of its own."""
    order = layout.key_order(table, rows)
    ordered = rows if order is None else rows.take(pa.array(order))
    positions = np.arange(rows.num_rows) if order is None else order
    borders = np.array(layout.partition_borders(table, ordered), np.int64)
    keys = _routing_keys(table, ordered, borders[:-1])
    cells = sum(column.name in rows.schema.names for column in table.values)
    if ring is None:
        return Placed(ordered, cells, positions, borders, keys, np.arange(len(keys)))
    groups = ring.groups_of(keys)
    if np.all(groups[1:] >= groups[:-1]):
        return Placed(ordered, cells, positions, borders, keys, groups)
    turn = np.argsort(groups, kind="stable")
    runs = [np.arange(first, end) for first, end in pairwise(borders.tolist())]
    moved = np.concatenate([runs[at] for at in turn.tolist()])
    ends = np.cumsum(np.diff(borders)[turn])
    return Placed(
        ordered.take(pa.array(moved)),
        cells,
        positions[moved],
        np.concatenate([[0], ends]),
        [keys[at] for at in turn.tolist()],
        groups[turn],
    )


def _routing_keys(table: StoreTable, rows: pa.RecordBatch, at: Int64s) -> list[bytes]:
    """The serialised partition key of the rows at these positions: where the driver sends them."""
    chosen = rows.take(pa.array(at))
    parts = [[_serialised(value) for value in chosen.column(name).to_pylist()] for name in table.partition_key]
    if len(parts) == 1:
        return parts[0]
    framed = [[len(value).to_bytes(2, "big") + value + b"\0" for value in column] for column in parts]
    return [b"".join(cells) for cells in zip(*framed, strict=True)]


def _serialised(value: int | str | bytes) -> bytes:
    match value:
        case int():
            return value.to_bytes(8, "big", signed=True)
        case str():
            return value.encode()
        case _:
            return value
