"""From cells back to a machine, and the check that all of them are there.

Owns: reading meta, flows and sessions at a start or after a snapshot has arrived. Rows stay in the store. Everything
counted in :class:`oncegate.gateway.machine.state.layout.Meta` or in a flow's head must be found, else the state is
refused.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator
from typing import NamedTuple

from oncegate.consensus.ports import SavedPoint
from oncegate.flows.batch_log import BatchLog, BatchLogState
from oncegate.flows.chunks import SealedChunk, SinglesChunk, int64s_to_bytes
from oncegate.flows.cursor import Consumers
from oncegate.flows.errors import FlowError
from oncegate.flows.open_segment import OpenSegmentState
from oncegate.flows.retired import RetiredNames
from oncegate.flows.shedding import segment_of
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine, Origin
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.gateway.machine.state.flow_images import PIECE_ITEMS, FlowMark, FlowMarks
from oncegate.gateway.machine.state.keys import StoredKeys
from oncegate.gateway.machine.state.layout import (
    BATCHES,
    CELLS,
    ENDS,
    FLOWS,
    HEADS,
    KEYS_HEAD,
    PIECES,
    SESSIONS,
    FlowHead,
    Meta,
    Run,
    read_meta,
)
from oncegate.gateway.machine.state.rows import DirtyTally, StoredRows
from oncegate.gateway.machine.state.store import RocksStore
from oncegate.gateway.machine.tables import Closing, Table
from oncegate.rifl.errors import InvariantViolation


def _no_rest() -> None:
    """Do not rest: no other thread needs the interpreter yet."""


class Restored(NamedTuple):
    """A machine as a store holds it; ``point`` is None for a store in which nothing was ever saved."""

    machine: Machine
    point: SavedPoint | None
    marks: FlowMarks
    tally: DirtyTally


def restore(store: RocksStore, rest: Callable[[], None] = _no_rest) -> Restored:
    """Read a machine; blocking, in time proportional to sessions, records and open items, not rows.

    Args:
        store: where the machine was saved.
        rest: called between sessions, so that a worker can release the interpreter.

    Raises:
        StateCorrupt: cells are missing, unreadable or contradict each other.
        StateVersionUnknown: another format.
        StoreFailed: the disk cannot be read.
    """
    try:
        return _restored(store, rest)
    except (InvariantViolation, FlowError) as broken:
        raise StateCorrupt(store.path, str(broken)) from broken


def _restored(store: RocksStore, rest: Callable[[], None]) -> Restored:
    tally = DirtyTally()
    records = StoredKeys(store, tally)
    machine = Machine(lambda number: StoredRows(number, store, tally), records)
    if (meta := read_meta(store)) is None:
        return Restored(machine, None, FlowMarks(), tally)
    machine.commit = meta.commit
    machine.time_ms = meta.time_ms
    machine.replayed = meta.replayed
    machine.identity = meta.identity
    machine.origin = Origin(meta.origin_identity, meta.origin_commit)
    machine.level = meta.level
    for about in meta.tables:
        rows = StoredRows(about.number, store, tally, about.rows)
        table = Table(
            about.name,
            about.kind,
            about.quota_bytes,
            rows,
            machine.changes,
            machine.ends,
            number=about.number,
            since=about.since,
        )
        table.put_back(about.bytes)
        if about.swept is None:
            machine.tables[about.name] = table
        else:
            machine.closing[about.name] = Closing(table, about.swept)
    machine.tables_declared = meta.tables_declared
    index, marks = FLOWS.need(store), FlowMarks()
    machine.flows.retired = RetiredNames(index.retired)
    if len(index.numbers) != meta.flows:
        raise StateCorrupt(store.path, f"{len(index.numbers)} of {meta.flows} flows are numbered")
    for number in index.numbers:
        mark = marks.numbered[number] = _flow(store, number)
        machine.flows.put_back(mark.flow)
    for _, (session, tracker) in SESSIONS.scan(store):
        rest()
        machine.sessions.put_back(session)
        machine.trackers[session.client_id] = tracker
    machine.sessions.skip_to(meta.next_client_id)
    machine.sessions.closed = dict(meta.closed_nonces)
    if len(machine.sessions) != meta.sessions:
        raise StateCorrupt(store.path, f"{len(machine.sessions)} of {meta.sessions} sessions are there")
    head = KEYS_HEAD.need(store)
    records.resume(head.kept, meta.next_key)
    machine.keys.restore(meta.next_key, meta.forgotten_ms, head.buckets)
    _put_back_ends(store, machine, meta, rest)
    return Restored(machine, meta.point, marks, tally)


def _put_back_ends(store: RocksStore, machine: Machine, meta: Meta, rest: Callable[[], None]) -> None:
    tables = {table.number: table for table in machine.every_table()}
    for (number, row), life in ENDS.scan(store):
        rest()
        if number not in tables:
            raise StateCorrupt(store.path, f"a row ends in table {number}, which is not there")
        tables[number].put_back_end(row, life)
    if len(machine.ends) != meta.ending_rows:
        raise StateCorrupt(store.path, f"{len(machine.ends)} of {meta.ending_rows} rows that end are there")
    for owner in machine.ends.owners():
        if machine.sessions.get(owner) is None:
            raise StateCorrupt(store.path, f"rows are bound to session {owner}, which is not there")


def verify(store: RocksStore, rest: Callable[[], None] = _no_rest) -> int:
    """Read every cell, so that every block's checksum is checked; returns their number.

    Raises:
        StateCorrupt: a block is damaged; the reason names its file.
    """
    count = 0
    for count, _ in enumerate(all_cells(store), 1):
        if not count % 64:
            rest()
    return count


class Retained(NamedTuple):
    """The batches of a flow that a state needs as files: ``first .. last``."""

    flow: str
    first: int
    last: int


def contents(store: RocksStore) -> tuple[Meta, list[Retained]]:
    """Read what a saved state says of itself, and which batches belong to it; milliseconds. Raises as `restore`."""
    if (meta := read_meta(store)) is None:
        raise StateCorrupt(store.path, "nothing was saved in it")
    retained = []
    for number in FLOWS.need(store).numbers:
        head = HEADS.need(store, number)
        retained.append(Retained(head.declaration.name, head.first, head.last))
    return meta, retained


def remembered_keys(store: RocksStore) -> int:
    """Return how many idempotency keys a saved state remembers; raises StateCorrupt."""
    head = KEYS_HEAD.need(store)
    return sum(bucket.stop - bucket.first for bucket in head.buckets)


def all_cells(store: RocksStore) -> Generator[tuple[bytes, bytes]]:
    """Yield every cell; raises StateCorrupt as :func:`verify`."""
    for kind in CELLS:
        yield from store.scan(kind.prefix)


def _flow(store: RocksStore, number: int) -> FlowMark:
    head = HEADS.need(store, number)
    flow = Flow(head.declaration)
    flow.version, flow.altered_ms = head.version, head.altered_ms
    flow.consumers = Consumers.restore(head.consumers, head.fences)
    flow.retained_bytes = head.retained_bytes
    flow.batches = BatchLog.restore(_batches(store, number, head))
    mark = FlowMark(flow, None, head.first, head.last, flow.batches.clocked_through)
    flow.segment = segment_of(head.declaration, _segment(store, number, head, mark), head.shed_items)
    flow.adjust()
    mark.stamp = flow.stamp
    return mark


def _batches(store: RocksStore, number: int, head: FlowHead) -> BatchLogState:
    columns = [array("q") for _ in range(6)]
    expected = head.first
    for (_, batch), numbers in BATCHES.scan(store, number):
        if batch != expected or len(numbers) not in (5, 6):
            raise StateCorrupt(store.path, f"batch {expected} of {head.declaration.name} is missing")
        for column, entry in zip(columns, numbers, strict=False):
            column.append(entry)
        expected += 1
    if expected != head.last + 1:
        raise StateCorrupt(store.path, f"batch {expected} of {head.declaration.name} is missing")
    saved = [int64s_to_bytes(column) for column in columns]
    dropped = head.items_dropped, head.event_dropped_ms, head.unclocked_dropped
    return BatchLogState(head.first, *dropped, *saved)


def _segment(store: RocksStore, number: int, head: FlowHead, mark: FlowMark) -> OpenSegmentState:
    """Read the open segment; pieces of one run are joined again. Completes the mark."""
    chunks: list[SealedChunk] = []
    run: list[SinglesChunk] = []
    cells = iter(store.scan(PIECES.under(number)))
    for key, value in cells:
        piece = PIECES.decode(store.path, value)
        if isinstance(piece, Run):
            first_commit, parts = piece.chunk.first_commit, 0
            run.append(piece.chunk)
        else:
            if run:
                chunks.append(_joined(run))
                run = []
            first_commit, parts = piece.first_commit, piece.body_parts
            body = [value for _, (_, value) in zip(range(parts), cells, strict=False)]
            chunks.append(piece.chunk(body[0] if parts == 1 else b"".join(body)))
        if key != PIECES.key(number, first_commit, 0):
            raise StateCorrupt(store.path, f"the open segment of {head.declaration.name} is not whole")
        mark.cells[first_commit] = 1 + parts
    mark.chunk = len(chunks)
    if run:
        chunks.append(_joined(run))
        mark.piece = chunks[-1].items // PIECE_ITEMS
    if sum(mark.cells.values()) != head.pieces or (chunks and chunks[-1].last_commit != head.last_commit):
        raise StateCorrupt(store.path, f"the open segment of {head.declaration.name} is not whole")
    return OpenSegmentState(
        head.declaration.name, head.declaration.source, head.last_commit, head.size_bytes, tuple(chunks)
    )


def _joined(run: list[SinglesChunk]) -> SinglesChunk:
    if len(run) == 1 and not run[0].traceparents:
        return run[0]
    return SinglesChunk(
        b"".join(part.commits for part in run),
        tuple(key for part in run for key in part.keys),
        tuple(value for part in run for value in part.values),
        b"".join(part.times_ms for part in run),
        b"".join(part.client_ids for part in run),
        b"".join(part.sequences for part in run),
        _traceparents(run),
    )


def _traceparents(run: list[SinglesChunk]) -> tuple[str | None, ...]:
    if not any(part.traceparents for part in run):
        return ()
    # One object a trace context, as before the save: a request's operations share it.
    known: dict[str | None, str | None] = {}
    every = (trace for part in run for trace in part.traceparents or (None,) * part.items)
    return tuple(known.setdefault(trace, trace) for trace in every)
