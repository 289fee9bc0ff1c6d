"""What one save writes of the flows: only the changes since the save before.

Owns: the numbers of the flows' cells, and which batches and which pieces of the open segment are on disk already.
Nothing is copied at a freeze: sealed chunks are immutable, the run that grows is shared up to its present length
(:class:`oncegate.flows.open_segment.RunView`), and the worker encodes it piece by piece.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from oncegate.flows.batch_log import BatchLog, BatchLogState
from oncegate.flows.chunks import RangeChunk, SealedChunk, SinglesChunk, cut_traceparents, int64s_from_bytes
from oncegate.flows.open_segment import RunView
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.state.layout import (
    BATCHES,
    BODY_PART_BYTES,
    HEADS,
    PIECES,
    FlowHead,
    RangeHead,
    Run,
    body_parts,
)

PIECE_ITEMS: Final = 1024
"""Items of a run that share a cell. The last piece of a run is written again while it grows."""
_INT64_BYTES: Final = 8


@dataclass(slots=True)
class FlowMark:
    """How far a flow is saved."""

    flow: Flow
    stamp: tuple[int, int, int, int] | None = None
    first: int = 1
    last: int = 0
    """Retained batches that have a cell: ``first .. last``."""
    clocked: int = 0
    resets: int = 0
    """Batches up to this one have their event time in the cell; as of so many resets of the clock."""
    chunk: int = 0
    piece: int = 0
    """What of the open segment comes next: chunks before ``chunk`` and its pieces before ``piece`` are saved."""
    cells: dict[int, int] = field(default_factory=dict)
    """Saved pieces of the open segment: first commit number and number of cells."""


class Piece(NamedTuple):
    """A part of the open segment that has no cell yet, or an outdated one."""

    first_commit: int
    source: SealedChunk | RunView
    start: int
    stop: int

    def cells(self, flow: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield its cells in key order."""
        source = self.source
        if isinstance(source, RangeChunk):
            yield PIECES.key(flow, self.first_commit, 0), PIECES.encode(RangeHead.of(source))
            for part in range(body_parts(source.body)):
                low = part * BODY_PART_BYTES
                yield PIECES.key(flow, self.first_commit, part + 1), source.body[low : low + BODY_PART_BYTES]
        else:
            chunk = source.chunk(self.start, self.stop) if isinstance(source, RunView) else _cut(source, self)
            yield PIECES.key(flow, self.first_commit, 0), PIECES.encode(Run(chunk))


class FrozenFlow(NamedTuple):
    """What one save writes of one flow; immutable."""

    flow: int
    head: bytes | None
    """None: the flow was deleted."""
    dropped: range
    batches: BatchLogState
    first_batch: int
    """Number of the first batch in ``batches``."""
    gone: dict[int, int]
    pieces: list[Piece]

    def head_cells(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the cell of the head."""
        yield HEADS.key(self.flow), self.head

    def batch_cells(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the cells of batches dropped and sealed, in key order."""
        for number in self.dropped:
            yield BATCHES.key(self.flow, number), None
        columns = (
            int64s_from_bytes(column)
            for column in (
                self.batches.first_commits,
                self.batches.last_commits,
                self.batches.items_through,
                self.batches.sizes_bytes,
                self.batches.sealed_ms,
            )
        )
        events = int64s_from_bytes(self.batches.event_ms)
        for row, values in enumerate(zip(*columns, strict=True)):
            numbers = array("q", [*values, *events[row : row + 1]])
            yield BATCHES.key(self.flow, self.first_batch + row), BATCHES.encode(numbers)

    def piece_cells(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the cells of the open segment, those of a segment sealed meanwhile as deletions, in key order."""
        for first_commit, cells in self.gone.items():
            for part in range(cells):
                yield PIECES.key(self.flow, first_commit, part), None
        for piece in self.pieces:
            yield from piece.cells(self.flow)


_NO_BATCHES: Final = BatchLog().snapshot()


class FlowMarks:
    """How far each flow is saved, by the number that its cells have.

    The number of a deleted flow is free for another one once a save has removed its cells: the one that begins after
    the save in which they are removed.
    """

    def __init__(self) -> None:
        self.numbered: dict[int, FlowMark] = {}

    def freeze(self, flows: Iterable[Flow]) -> tuple[list[FrozenFlow], list[int]]:
        """Return what changed, in order of numbers, and the numbers of all flows, in theirs; moves the marks."""
        numbers = {id(mark.flow): number for number, mark in self.numbered.items()}
        alive = [(flow, numbers.pop(id(flow), None)) for flow in flows]
        frozen: list[FrozenFlow] = []
        for number in numbers.values():
            mark = self.numbered[number]
            frozen.append(
                FrozenFlow(number, None, range(mark.first, mark.last + 1), _NO_BATCHES, mark.last + 1, mark.cells, [])
            )
        free = (number for number in count() if number not in self.numbered)
        order: list[int] = []
        for flow, known in alive:
            number = next(free) if known is None else known
            mark = self.numbered.setdefault(number, FlowMark(flow))
            order.append(number)
            if (changed := freeze_flow(number, flow, mark)) is not None:
                frozen.append(changed)
        for number in numbers.values():
            del self.numbered[number]
        return sorted(frozen, key=lambda one: one.flow), order


def freeze_flow(number: int, flow: Flow, mark: FlowMark) -> FrozenFlow | None:
    """Return what changed since ``mark``, and move it; None if nothing changed."""
    if flow.stamp == mark.stamp:
        return None
    batches, segment = flow.batches, flow.segment
    gone: dict[int, int] = {}
    if batches.last != mark.last:
        # The segment was sealed since: the open one shares nothing with what is saved.
        gone, mark.cells, mark.chunk, mark.piece = mark.cells, {}, 0, 0
    pieces = _pieces(flow, mark)
    saved_last = mark.last
    dropped = range(mark.first, min(batches.first, saved_last + 1))
    mark.stamp, mark.first, mark.last = flow.stamp, batches.first, batches.last
    cells_last = saved_last
    if mark.resets != batches.clock_resets:
        cells_last = 0
    elif flow.declaration.event_time:
        cells_last = min(saved_last, mark.clocked)
    mark.clocked, mark.resets = batches.clocked_through, batches.clock_resets
    log = batches.snapshot(cells_last)
    head = FlowHead(
        flow.declaration,
        flow.consumers.snapshot(),
        flow.retained_bytes,
        batches.first,
        batches.last,
        log.items_dropped,
        segment.last_commit,
        segment.size_bytes,
        sum(mark.cells.values()),
        flow.version,
        flow.altered_ms,
        flow.consumers.fences,
        log.event_dropped_ms,
        log.unclocked_dropped,
        flow.shed_items,
    )
    return FrozenFlow(number, HEADS.encode(head), dropped, log, max(batches.first, cells_last + 1), gone, pieces)


def _pieces(flow: Flow, mark: FlowMark) -> list[Piece]:
    segment = flow.segment
    sources: list[SealedChunk | RunView] = segment.closed_chunks[mark.chunk :]  # type: ignore[assignment]
    if segment.run_length():
        sources.append(segment.run_view())
    pieces: list[Piece] = []
    for source in sources:
        if isinstance(source, RangeChunk):
            pieces.append(Piece(source.first_commit, source, 0, source.count))
            mark.cells[source.first_commit] = 1 + body_parts(source.body)
            mark.chunk, mark.piece = mark.chunk + 1, 0
            continue
        for start in range(mark.piece * PIECE_ITEMS, source.items, PIECE_ITEMS):
            first_commit = _commit(source, start)
            pieces.append(Piece(first_commit, source, start, min(start + PIECE_ITEMS, source.items)))
            mark.cells[first_commit] = 1
        if isinstance(source, RunView):
            mark.piece = source.items // PIECE_ITEMS
        else:
            mark.chunk, mark.piece = mark.chunk + 1, 0
    return pieces


def _commit(source: SinglesChunk | RunView, item: int) -> int:
    if isinstance(source, RunView):
        return source.commits[item]
    return int.from_bytes(source.commits[item * _INT64_BYTES : (item + 1) * _INT64_BYTES], "little", signed=True)


def _cut(chunk: SinglesChunk, piece: Piece) -> SinglesChunk:
    start, stop = piece.start, piece.stop
    low, high = start * _INT64_BYTES, stop * _INT64_BYTES
    return SinglesChunk(
        chunk.commits[low:high],
        chunk.keys[start:stop],
        chunk.values[start:stop],
        chunk.times_ms[low:high],
        chunk.client_ids[low:high],
        chunk.sequences[low:high],
        cut_traceparents(chunk.traceparents, start, stop),
    )
