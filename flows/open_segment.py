"""The items of one flow since its last seal, in commit order.

Owns: collecting, counting and handing over. Runs inside apply on every node: one call a write or a range, no
decoding, no clock. Must not know where to cut (:mod:`oncegate.flows.batcher`) or what a file looks like
(:mod:`oncegate.flows.segment`).

A run of single writes is kept by column, so that it costs a few list appends now and one vectorised step later;
a range keeps the buffer it came in. A range ends the run before it. Where runs begin and end follows from the
order of writes alone, so a snapshot is the same on every node.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from oncegate.flows.chunks import (
    RangeChunk,
    SealedBatch,
    SealedChunk,
    SinglesChunk,
    cut_traceparents,
    int64s_from_bytes,
    int64s_to_bytes,
)

ITEM_OVERHEAD_BYTES: Final = 40
"""What an item weighs beside key and value: four int64 and two offsets."""


class OpenSegmentState(msgspec.Struct, frozen=True):
    """Snapshot of an open segment; ``last_commit`` is of the newest item ever appended, 0 if none."""

    flow: str
    table: str
    last_commit: int
    size_bytes: int
    chunks: tuple[SealedChunk, ...]


class GroupItem(NamedTuple):
    """One write of a group that is delivered together; ``value`` is JSON text, None for a delete."""

    commit: int
    key: str
    value: bytes | None


class RunView(NamedTuple):
    """The first ``items`` items of a run that still grows, shared and not copied: later items lie beyond them."""

    commits: array[int]
    keys: list[str]
    values: list[bytes | None]
    times_ms: array[int]
    client_ids: array[int]
    sequences: array[int]
    traceparents: list[str | None]
    items: int

    def chunk(self, start: int, stop: int) -> SinglesChunk:
        """Copy the items ``start`` up to, not including, ``stop``; from any thread."""
        return SinglesChunk(
            int64s_to_bytes(self.commits[start:stop]),
            tuple(self.keys[start:stop]),
            tuple(self.values[start:stop]),
            int64s_to_bytes(self.times_ms[start:stop]),
            int64s_to_bytes(self.client_ids[start:stop]),
            int64s_to_bytes(self.sequences[start:stop]),
            cut_traceparents(self.traceparents, start, stop),
        )


class OpenSegment:
    """Items of one flow that no batch holds yet.

    Attributes:
        flow: name of the flow.
        table: its source table.
        last_commit: commit number of the newest item ever appended (a seal keeps it), 0 if none.
        size_bytes: keys in characters, values in bytes, ranges in bytes of their body, plus an overhead an item.
            Deterministic and close to the memory used. A body of which only a part is new counts in full. A
            trace context counts where it is another than the last one before: items of a request share it.
    """

    __slots__ = (
        "_client_ids",
        "_closed",
        "_closed_items",
        "_commits",
        "_keys",
        "_sequences",
        "_times_ms",
        "_traceparents",
        "_values",
        "flow",
        "last_commit",
        "size_bytes",
        "table",
    )

    def __init__(self, flow: str, table: str) -> None:
        self.flow = flow
        self.table = table
        self.last_commit = 0
        self._reset()

    def _reset(self) -> None:
        self.size_bytes = 0
        self._closed: list[SealedChunk] = []
        self._closed_items = 0
        self._open_run()

    def _open_run(self) -> None:
        self._commits = array("q")
        self._keys: list[str] = []
        self._values: list[bytes | None] = []
        self._times_ms = array("q")
        self._client_ids = array("q")
        self._sequences = array("q")
        # Shorter than the others: it ends at the last item that has one, so that items without cost nothing.
        self._traceparents: list[str | None] = []

    def append_one(
        self, commit: int, key: str, value: bytes | None, time_ms: int, client_id: int, sequence: int
    ) -> None:
        """Add one write; key and value (JSON text, None for a delete) were checked by the edge.

        Raises:
            ValueError: ``commit`` is not above that of every item before; nothing was added.
        """
        if commit <= self.last_commit:
            raise ValueError(f"commit {commit} does not follow {self.last_commit}")
        self.last_commit = commit
        self._commits.append(commit)
        self._keys.append(key)
        self._values.append(value)
        self._times_ms.append(time_ms)
        self._client_ids.append(client_id)
        self._sequences.append(sequence)
        if value is None:
            self.size_bytes += ITEM_OVERHEAD_BYTES + len(key)
        else:
            self.size_bytes += ITEM_OVERHEAD_BYTES + len(key) + len(value)

    def trace_last(self, traceparent: str) -> None:
        """Add to the write just added the trace context of its request, not empty; once at most.

        A separate call, so that writes without a trace context cost no more.
        """
        traced = self._traceparents
        if traced and traced[-1] == traceparent:
            traceparent = traced[-1]
        else:
            self.size_bytes += len(traceparent)
        untraced = len(self._keys) - 1 - len(traced)
        if untraced:
            traced.extend((None,) * untraced)
        traced.append(traceparent)

    def append_group(
        self, items: Sequence[GroupItem], time_ms: int, client_id: int, sequence: int, traceparent: str
    ) -> None:
        """Add the writes of one transaction, which are all of one request; a batch holds all of them or none."""
        for commit, key, value in items:
            OpenSegment.append_one(self, commit, key, value, time_ms, client_id, sequence)
            if traceparent:
                OpenSegment.trace_last(self, traceparent)

    def append_range(
        self,
        first_commit: int,
        count: int,
        time_ms: int,
        client_id: int,
        first_sequence: int,
        body: bytes,
        offset: int = 0,
        traceparent: str = "",
    ) -> None:
        """Add a range, or the part of it that is new, without looking into it.

        The arguments are those of :class:`oncegate.flows.chunks.RangeChunk`; ``body`` is kept, not copied.

        Raises:
            ValueError: ``first_commit`` is out of order, ``count`` < 1 or ``offset`` < 0; nothing was added.
        """
        if first_commit <= self.last_commit or count < 1 or offset < 0:
            raise ValueError(
                f"range of {count} from commit {first_commit}, row {offset} does not follow {self.last_commit}"
            )
        if self._keys:
            self._close_run()
        self._closed.append(
            RangeChunk(first_commit, count, time_ms, client_id, first_sequence, body, offset, traceparent)
        )
        self._closed_items += count
        self.last_commit = first_commit + count - 1
        self.size_bytes += len(body) + len(traceparent) + ITEM_OVERHEAD_BYTES * count

    def _run(self) -> SinglesChunk:
        return self.run_view().chunk(0, len(self._keys))

    def _close_run(self) -> None:
        self._closed.append(self._run())
        self._closed_items += len(self._keys)
        self._open_run()

    @property
    def items(self) -> int:
        """Number of items."""
        return self._closed_items + len(self._keys)

    @property
    def first_commit(self) -> int | None:
        """Commit number of the first item, None if there is none."""
        if self._closed:
            return self._closed[0].first_commit
        return self._commits[0] if self._keys else None

    @property
    def opened_ms(self) -> int | None:
        """Cluster time of the first item, None if there is none."""
        if self._closed:
            return self._closed[0].first_time_ms
        return self._times_ms[0] if self._keys else None

    @property
    def closed_chunks(self) -> list[SealedChunk]:
        """The chunks that will not grow any more, oldest first. For look-ups; not to be changed."""
        return self._closed

    def run_view(self) -> RunView:
        """Return the run that still grows as it is now, in O(1)."""
        return RunView(
            self._commits,
            self._keys,
            self._values,
            self._times_ms,
            self._client_ids,
            self._sequences,
            self._traceparents,
            len(self._keys),
        )

    def run_length(self) -> int:
        """Return the number of items in the run that still grows."""
        return len(self._keys)

    def run_keys(self, start: int) -> list[str]:
        """Return the keys of the run that still grows, from item ``start`` on."""
        return self._keys[start:]

    def run_item(self, position: int) -> tuple[int, bytes | None]:
        """Return (commit, value) of an item of the run that still grows."""
        return self._commits[position], self._values[position]

    def freeze(self, number: int) -> SealedBatch:
        """Seal: hand the items over as batch ``number`` and start empty.

        Raises:
            ValueError: there are no items; a batch is never empty.
        """
        if self._keys:
            self._close_run()
        if not self._closed:
            raise ValueError(f"batch {number} of {self.flow} would be empty")
        sealed = SealedBatch(self.flow, self.table, number, self._closed_items, self.size_bytes, tuple(self._closed))
        self._reset()
        return sealed

    def snapshot(self) -> OpenSegmentState:
        """Return the state as plain data, which later appends do not change."""
        run = (self._run(),) if self._keys else ()
        return OpenSegmentState(self.flow, self.table, self.last_commit, self.size_bytes, (*self._closed, *run))

    @classmethod
    def restore(cls, state: OpenSegmentState) -> OpenSegment:
        """Return a segment equal to the one that gave ``state``.

        A run at the end is opened again: were it left closed, the next snapshot would differ from that of
        a node which never restarted, although both hold the same items.
        """
        segment = cls(state.flow, state.table)
        chunks = list(state.chunks)
        if chunks and isinstance(run := chunks[-1], SinglesChunk):
            chunks.pop()
            segment._commits = int64s_from_bytes(run.commits)
            segment._keys = list(run.keys)
            segment._values = list(run.values)
            segment._times_ms = int64s_from_bytes(run.times_ms)
            segment._client_ids = int64s_from_bytes(run.client_ids)
            segment._sequences = int64s_from_bytes(run.sequences)
            segment._traceparents = list(run.traceparents)
            while segment._traceparents and segment._traceparents[-1] is None:
                segment._traceparents.pop()
        segment._closed = chunks
        segment._closed_items = sum(chunk.items for chunk in chunks)
        segment.last_commit = state.last_commit
        segment.size_bytes = state.size_bytes
        return segment
