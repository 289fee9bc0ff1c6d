"""Point look-ups of keys in items that no store serves yet.

Owns: sorted indexes over chunks and payloads, built when first asked for, and the bounded cache that holds them.
Must not know where payloads come from. Off the hot path: writes never touch this module. Read next:
:mod:`oncegate.flows.open_segment`, :mod:`oncegate.flows.publisher`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.flows.chunks import SealedChunk
from oncegate.flows.open_segment import OpenSegment
from oncegate.flows.segment import columns, read_table


class FoundWrite(NamedTuple):
    """The last write of a key among the items searched; value None = deleted."""

    commit: int
    value: bytes | None


class KeyIndex:
    """Items in order of (key, commit). Immutable; safe to use from several threads.

    Attributes:
        size_bytes: memory it holds, the items' own buffers included.
    """

    __slots__ = ("_commits", "_data", "_offsets", "_order", "_values", "size_bytes")

    def __init__(self, keys: pa.Array, values: pa.Array, commits: npt.NDArray[np.int64]) -> None:
        _, offsets, data = keys.buffers()
        # Memory views give plain ints: half the cost of numpy's scalars in a search that is all indexing.
        self._offsets = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4).data
        self._data = memoryview(b"" if data is None else data)
        self._values = values
        self._commits = commits
        # Arrow sorts stably and by bytes: among equal keys the last row is the last commit.
        self._order = pc.sort_indices(keys).to_numpy().astype(np.uint32).data
        self.size_bytes = keys.nbytes + values.nbytes + commits.nbytes + self._order.nbytes

    @classmethod
    def of_payload(cls, payload: bytes) -> KeyIndex:
        """Index a sealed batch (:func:`oncegate.flows.segment.build`)."""
        table = read_table(payload).combine_chunks()
        keys, values, commits = (pa.concat_arrays(table.column(name).chunks) for name in ("key", "value", "commit"))
        return cls(keys, values, commits.to_numpy())

    @classmethod
    def of_chunk(cls, chunk: SealedChunk) -> KeyIndex:
        """Index a chunk of an open segment or of a batch that is not on disk yet.

        Raises:
            BadRequestError: the body of a range is not one.
        """
        parts = columns(chunk)
        return cls(parts.keys, parts.values, parts.commits)

    def find(self, key: str) -> FoundWrite | None:
        """Return the last write of ``key``, None if there is none. O(log items)."""
        wanted = key.encode()
        offsets, data, order = self._offsets, self._data, self._order
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            row = order[middle]
            if bytes(data[offsets[row] : offsets[row + 1]]) <= wanted:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        row = order[low - 1]
        if bytes(data[offsets[row] : offsets[row + 1]]) != wanted:
            return None
        value = self._values[row].as_buffer()
        return FoundWrite(int(self._commits[row]), None if value is None else value.to_pybytes())


class IndexCache:
    """Indexes by name, at most ``bytes_max`` of them, the least recently used dropped first.

    Safe to use from several threads. An index over the bound by itself is built, used and not kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._size_bytes = 0
        self._indexes: OrderedDict[Hashable, KeyIndex] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._indexes)

    def get(self, name: Hashable, build: Callable[[], KeyIndex]) -> KeyIndex:
        """Return the index ``name``, built now if it is not held; two threads at once may both build."""
        with self._lock:
            index = self._indexes.get(name)
            if index is not None:
                self._indexes.move_to_end(name)
                return index
        index = build()
        with self._lock:
            if name not in self._indexes and index.size_bytes <= self.bytes_max:
                self._indexes[name] = index
                self._size_bytes += index.size_bytes
                while self._size_bytes > self.bytes_max:
                    _, gone = self._indexes.popitem(last=False)
                    self._size_bytes -= gone.size_bytes
        return index


class OpenLookup:
    """Look-ups in an open segment, on the thread that appends to it.

    Each look-up first takes in the keys that arrived since the last one, so that reads pay for it, not writes.
    Holds across seals.
    """

    __slots__ = ("_cache", "_positions", "_run_commit", "_taken", "segment")

    def __init__(self, segment: OpenSegment, cache: IndexCache) -> None:
        self.segment = segment
        self._cache = cache
        self._start_run(None)

    def _start_run(self, first_commit: int | None) -> None:
        self._run_commit = first_commit
        self._taken = 0
        self._positions: dict[str, int] = {}

    def find(self, key: str) -> FoundWrite | None:
        """Return the last write of ``key`` in the open segment, None if there is none."""
        segment = self.segment
        length = segment.run_length()
        # Its first commit number identifies a run: a seal or a range has ended the one before.
        first_commit = segment.run_item(0)[0] if length else None
        if first_commit != self._run_commit:
            self._start_run(first_commit)
        for position, new in enumerate(segment.run_keys(self._taken), self._taken):
            self._positions[new] = position
        self._taken = length
        position = self._positions.get(key, -1)
        if position >= 0:
            return FoundWrite(*segment.run_item(position))
        for chunk in reversed(segment.closed_chunks):
            name = (segment.flow, "chunk", chunk.first_commit)
            found = self._cache.get(name, partial(KeyIndex.of_chunk, chunk)).find(key)
            if found is not None:
                return found
        return None
