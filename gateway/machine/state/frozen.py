"""One save: everything that changed between two freezes, as cells in key order.

Owns: freezing a machine, in time proportional to the number of tables and flows, and the order of the cells. The point
of the save is a cell among the others, so it becomes durable with them or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_ends import Life
from oncegate.gateway.machine.state.flow_images import FlowMarks, FrozenFlow
from oncegate.gateway.machine.state.keys import FrozenKeys, StoredKeys
from oncegate.gateway.machine.state.layout import ENDS, FLOWS, META, SESSIONS, FlowIndex, Meta, TableMeta
from oncegate.gateway.machine.state.order import sorted_in_runs
from oncegate.gateway.machine.state.rows import CellColumns, FrozenRows, StoredRows
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionTable


class SessionImages:
    """Images of the sessions that changed since the save before.

    Args:
        sessions, trackers: the machine's own.
        ids: the sessions that changed; the caller changes this set no more. An id without a session was closed.
    """

    def __init__(self, sessions: SessionTable, trackers: Mapping[int, ResultTracker], ids: set[int]) -> None:
        self._sessions = sessions
        self._trackers = trackers
        self._ids = ids
        self._taken: dict[int, bytes | None] = {}
        self._lock = threading.Lock()
        self.taken_bytes = 0
        """Memory held by images taken because their session has changed."""

    def before_change(self, client_id: int) -> None:
        """Keep a session as it is now, before the machine changes it. Event loop's thread."""
        if client_id not in self._ids:
            return
        with self._lock:
            if client_id in self._ids and client_id not in self._taken:
                image = self._taken[client_id] = self._encoded(client_id)
                self.taken_bytes += 0 if image is None else len(image)

    def image(self, client_id: int) -> bytes | None:
        """Return a session as it was at the freeze, None if it was closed. Worker thread."""
        with self._lock:
            if client_id in self._taken:
                return self._taken[client_id]
            return self._encoded(client_id)

    def ids(self) -> Iterator[int]:
        """Yield the ids of the sessions that changed, ascending."""
        return sorted_in_runs(self._ids)

    def release(self) -> None:
        """Everything has been written to a file: later changes concern this save no more."""
        with self._lock:
            self._ids = set()
            self._taken = {}
            self.taken_bytes = 0

    def _encoded(self, client_id: int) -> bytes | None:
        session = self._sessions.get(client_id)
        return None if session is None else SESSIONS.encode((session, self._trackers[client_id]))


Retired = dict[Any, Any]
"""A dict that is not used any more; freeing a large one at once would hold everybody up."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a save writes."""

    point: SavedPoint
    meta: bytes
    flows: list[FrozenFlow]
    rows: list[FrozenRows]
    sessions: SessionImages
    keys: FrozenKeys
    flow_index: bytes
    ends: list[tuple[int, dict[str, Life | None]]]
    """What has changed of the rows that end by themselves, by number of the table."""

    def cells(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield all cells in key order, None for a deletion."""
        for keys, values in self.columns():
            yield from zip(keys, values, strict=True)

    def columns(self) -> Iterator[CellColumns]:
        """Yield :meth:`cells` as columns: rows and keys by the dozen, the others, which may be large, one by one."""
        yield [META.key()], [self.meta]
        for cells_of in (FrozenFlow.head_cells, FrozenFlow.batch_cells, FrozenFlow.piece_cells):
            for flow in self.flows:
                for key, value in cells_of(flow):
                    yield [key], [value]
        for part in self.rows:
            yield from part.columns()
        for client_id in self.sessions.ids():
            yield [SESSIONS.key(client_id)], [self.sessions.image(client_id)]
        yield from self.keys.by_number()
        yield [FLOWS.key()], [self.flow_index]
        for number, changes in self.ends:
            for row in sorted_in_runs(changes):
                life = changes[row]
                yield [ENDS.key(number, row)], [None if life is None else ENDS.encode(life)]
        yield from self.keys.by_name()


def meta_of(machine: Machine, point: SavedPoint) -> Meta:
    """Return the cell with the point that a machine has reached."""
    return Meta(
        point,
        machine.commit,
        machine.time_ms,
        machine.sessions.next_id,
        machine.replayed,
        len(machine.sessions),
        len(machine.flows.names()),
        [
            *(_table(table, None) for table in machine.tables.values()),
            *(_table(closing.table, closing.swept) for closing in machine.closing.values()),
        ],
        machine.keys.next,
        machine.keys.forgotten_ms,
        machine.identity,
        *machine.origin,
        machine.level,
        len(machine.ends),
        machine.tables_declared,
        [*machine.sessions.closed.items()],
    )


def _table(table: Table, swept: str | None) -> TableMeta:
    size = table.bytes, len(table.rows)
    return TableMeta(table.name, table.kind, table.quota_bytes, *size, table.number, table.since, swept)


def freeze(machine: Machine, point: SavedPoint, marks: FlowMarks) -> tuple[Frozen, list[Retired]]:
    """Freeze a machine between two entries; the freeze before must be durable.

    Returns:
        What to write, and the dicts of rows that the machine no longer uses.
    """
    sessions = SessionImages(machine.sessions, machine.trackers, machine.touched)
    machine.touched = set()
    machine.before_change = sessions.before_change
    rows: list[FrozenRows] = []
    retired: list[Retired] = []
    changed = machine.ends.take_changes()
    parts = [(table.number, table.rows, changed.get(table.name, {})) for table in machine.every_table()]
    parts += [(gone.number, gone.rows, gone.ends) for gone in machine.swept]
    machine.swept = []
    parts.sort(key=itemgetter(0))
    for _, stored, _ in parts:
        if isinstance(stored, StoredRows) and (part := stored.freeze()) is not None:
            rows.append(part[0])
            retired.append(part[1])
    flows, numbers = marks.freeze(machine.flows.all())
    index = FLOWS.encode(FlowIndex(numbers, machine.flows.retired.snapshot()))
    meta = META.encode(meta_of(machine, point))
    ends = [(number, lives) for number, _, lives in parts if lives]
    if not isinstance(records := machine.keys.records, StoredKeys):
        raise InvariantViolation("the idempotency keys of this machine are in memory alone")
    keys, unused = records.freeze(machine.keys)
    return Frozen(point, meta, flows, rows, sessions, keys, index, ends), retired + unused
