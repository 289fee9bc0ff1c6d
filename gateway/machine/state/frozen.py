"""One save: everything that changed between two freezes, as cells in key order.

Owns: freezing a machine, in time proportional to the number of tables and flows, and the order of the cells. The point
of the save is a cell among the others, so it becomes durable with them or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from oncegate.gateway.machine.state.session_images import SessionImages
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.errors import InvariantViolation

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
