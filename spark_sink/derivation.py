"""What a job is made of: a derivation takes one whole flow batch and yields changes of rows. Pure; needs no Spark.

Owns: the batch as a derivation sees it, the kinds of change, and which item is to blame when a derivation raises. Must
not know a store, Spark or HTTP. Read next: `applying` (changes into a store), `dead_letters`.

A derivation is any callable ``FlowBatch -> Iterable[Change]``. It is deterministic: what it yields follows from the
batch, so that a batch may be derived any number of times. It is called once for each flow batch, never for a part of
one, whatever Spark does with rows in between; so a number that it counts over a batch is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.stores import cells
from oncegate.stores.column_types import ColumnType
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS, StoreTable

ROWS_MAX_DEFAULT: Final = 400_000
ERROR_CHARACTERS_MAX: Final = 500
"""Of what an item's fault says."""

ITEM_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)
"""What a derivation may raise for the content of an item. Anything else is no item's fault, and ends the attempt."""

Rows: TypeAlias = Any
"""Many rows, a `pyarrow.RecordBatch`, or one, a mapping: the columns of a table and `write_ts`, the commit number of
the item that they derive from. What `changes_of` yields has record batches.
"""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Write rows of ``table``: all its columns; nullable ones may be left out of a single row."""

    table: StoreTable
    rows: Rows


@dataclass(frozen=True, slots=True)
class Update:
    """Write some cells of rows of ``table``, which is declared partial: its key, and one or more other columns."""

    table: StoreTable
    rows: Rows


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete rows of ``table`` by the columns of its key."""

    table: StoreTable
    rows: Rows


@dataclass(frozen=True, slots=True)
class Reject:
    """Make the item with this commit number a dead letter, and say why."""

    commit: int
    error: str


Change: TypeAlias = Upsert | Update | Delete | Reject


class Item(NamedTuple):
    """One committed write, as `oncegate.flows.schema` describes it; ``value`` is JSON text, None = deleted."""

    commit: int
    key: str
    value: str | None
    time_ms: int
    client_id: int
    sequence: int
    traceparent: str | None

    def json(self) -> Any:
        """Return the value as Python sees it, None for a deletion."""
        return None if self.value is None else json.loads(self.value)

    def upsert(self, table: StoreTable, **values: Any) -> Upsert:
        """Return the change that writes a row which derives from this item alone."""
        return Upsert(table, {**values, WRITE_TS: self.commit})

    def update(self, table: StoreTable, **values: Any) -> Update:
        """Return the change that writes these cells of a row, which the key among them names, and leaves others."""
        return Update(table, {**values, WRITE_TS: self.commit})

    def delete(self, table: StoreTable, **key: Any) -> Delete:
        """Return the change that deletes a row because of this item."""
        return Delete(table, {**key, WRITE_TS: self.commit})

    def reject(self, error: str) -> Reject:
        """Return the change that makes this item a dead letter."""
        return Reject(self.commit, error)


@dataclass(frozen=True, slots=True)
class FlowBatch:
    """One flow batch, whole and in commit order. Iterating yields `Item`s; ``items`` are the same as Arrow columns.

    Attributes:
        flow: name of the flow.
        number: of the batch, from 1; the same items have the same number for ever.
        items: columns of `oncegate.flows.schema.PLAIN_SCHEMA`.
        rows_max: how many rows a derivation should yield at once, at most.
    """

    flow: str
    number: int
    items: pa.RecordBatch
    rows_max: int = ROWS_MAX_DEFAULT

    @classmethod
    def of(cls, *written: tuple[str, Any], flow: str = "flow", number: int = 1, first_commit: int = 1) -> FlowBatch:
        """Return a batch of (key, value) pairs for a test; values are JSON data, None = deleted."""
        commits = range(first_commit, first_commit + len(written))
        columns = [
            pa.array(commits, pa.int64()),
            pa.array([key for key, _ in written], pa.string()),
            pa.array([None if value is None else json.dumps(value) for _, value in written], pa.string()),
            *(pa.array(commits, pa.int64()) for _ in ("time_ms", "client_id", "sequence")),
            pa.nulls(len(written), pa.string()),
        ]
        return cls(flow, number, pa.RecordBatch.from_arrays(columns, schema=PLAIN_SCHEMA))

    def __iter__(self) -> Iterator[Item]:
        columns = (self.items.column(name).to_pylist() for name in Item._fields)
        return map(Item._make, zip(*columns, strict=True))

    @property
    def last_commit(self) -> int:
        """Commit number of the last item: the write timestamp of rows that derive from the batch as a whole."""
        return int(self.items.column("commit")[-1].as_py())

    def upsert(self, table: StoreTable, **values: Any) -> Upsert:
        """Return the change that writes a row which derives from the whole batch, such as a partial count.

        ``batch`` has to be in its key and hold `number`: then no other batch writes it, and it may come any number of
        times.
        """
        return Upsert(table, {**values, WRITE_TS: self.last_commit})

    def without(self, commits: Iterable[int]) -> FlowBatch:
        """Return the batch without these items."""
        kept = ~np.isin(np.asarray(self.items.column("commit")), list(commits))
        return replace(self, items=self.items.take(pa.array(np.flatnonzero(kept))))


Derivation: TypeAlias = Callable[[FlowBatch], Iterable[Change]]


def changes_of(derivation: Derivation, batch: FlowBatch) -> Iterator[Change]:
    """Yield what ``derivation`` makes of the batch, rows as Arrow, at most about `rows_max` at once.

    An item for which it raises one of `ITEM_FAULTS` is rejected, and the others are derived without it. Nothing is
    yielded before that is settled, because a count that includes the item must not be seen; so this covers batches
    that make up to `rows_max` rows. A derivation that makes more has to reject by itself, as the fan-out does.

    Raises:
        StoreError: BAD_ROWS, when rows have other columns than their table.
        Exception: what the derivation raised, where no single item is to blame or rows were yielded already.
    """
    return settled(
        lambda part: _packed(derivation(part), part.rows_max),
        batch,
        lambda change: 0 if isinstance(change, Reject) else change.rows.num_rows,
        batch.rows_max,
    )


_Derived = TypeVar("_Derived")


def settled(
    derive: Callable[[FlowBatch], Iterable[_Derived | Reject]],
    batch: FlowBatch,
    size_of: Callable[[_Derived | Reject], int],
    held_max: int,
) -> Iterator[_Derived | Reject]:
    """Yield what ``derive`` makes of the batch, items to blame for one of `ITEM_FAULTS` rejected; see `changes_of`.

    Args:
        derive: deterministic.
        batch: may be empty, of which nothing derives.
        size_of: what of it counts against ``held_max``.
        held_max: size up to which nothing is yielded before all is derived.

    Raises:
        Exception: what ``derive`` raised, where no single item is to blame or something was yielded already.
    """
    if batch.items.num_rows == 0:
        return
    held: list[_Derived | Reject] = []
    size = 0
    changes = iter(derive(batch))
    try:
        for change in changes:
            held.append(change)
            size += size_of(change)
            if size > held_max:
                break
    except ITEM_FAULTS:
        blamed = _blamed(derive, batch)
        if not blamed:
            raise
        yield from blamed
        yield from settled(derive, batch.without(reject.commit for reject in blamed), size_of, held_max)
        return
    yield from held
    yield from changes


def _blamed(derive: Callable[[FlowBatch], Iterable[object]], batch: FlowBatch) -> list[Reject]:
    """The items for which the derivation raises also when it sees each alone: found by halving."""
    try:
        for _ in derive(batch):
            pass
    except ITEM_FAULTS as error:
        count = batch.items.num_rows
        if count == 1:
            return [Reject(batch.last_commit, f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX])]
        parts = (batch.items.slice(0, count // 2), batch.items.slice(count // 2))
        return [reject for items in parts for reject in _blamed(derive, replace(batch, items=items))]
    return []


def _packed(changes: Iterable[Change], rows_max: int) -> Iterator[Change]:
    """The same changes, single rows gathered into Arrow batches of at most ``rows_max``."""
    gathered: dict[tuple[type[Upsert | Update | Delete], StoreTable, tuple[str, ...]], list[Mapping[str, Any]]] = {}
    for change in changes:
        if isinstance(change, Reject) or isinstance(change.rows, pa.RecordBatch):
            yield change
            continue
        kind, table = type(change), change.table
        named = tuple(sorted(change.rows)) if kind is Update else ()
        rows = gathered.setdefault((kind, table, named), [])
        rows.append(change.rows)
        if len(rows) >= rows_max:
            yield kind(table, _arrow(kind, table, rows))
            rows.clear()
    for (kind, table, _), rows in gathered.items():
        if rows:
            yield kind(table, _arrow(kind, table, rows))


def _arrow(kind: type[Upsert | Update | Delete], table: StoreTable, rows: list[Mapping[str, Any]]) -> pa.RecordBatch:
    whole = table.schema if kind is Upsert else table.key_schema
    schema = table.update_schema(rows[0]) if kind is Update else whole
    known = set(schema.names)
    needed = {field.name for field in schema if not field.nullable}
    for row in rows:
        if not needed <= row.keys() <= known:
            raise StoreError(
                StoreCode.BAD_ROWS, f"{table.name} has the columns {sorted(known)}, a row has {sorted(row)}"
            )
    kinds = {column.name: column.type for column in table.columns} | {WRITE_TS: ColumnType.INT64}
    columns = [cells.array_of([row.get(name) for row in rows], kinds[name]) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
