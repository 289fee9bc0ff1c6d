"""One flow batch into a store: derive, write, and make dead letters of what cannot be written. Needs no Spark.

Owns: which item a refused row is laid at, and the other timestamps of a replay. The Spark sink, a dry run and a unit
test all come through here. Must not know Spark or HTTP. Read next: `derivation`, `dead_letters`, `replay`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.dead_letters import DEAD_LETTERS, letters
from oncegate.spark_sink.derivation import Delete, Derivation, FlowBatch, Reject, Update, Upsert, changes_of
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import BadRows, StoreCode
from oncegate.stores.tables import WRITE_TS, ColumnType, StoreTable

_SHOWN_MAX: Final = 60
"""Characters of each column of a key in an error."""


class RowWriter(Protocol):
    """What a job writes through: the part of `oncegate.stores.store.Store` that changes rows."""

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """See `Store.write`."""
        ...

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """See `Store.update`."""
        ...

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """See `Store.delete`."""
        ...


class Watch(Protocol):
    """What hears how a batch is applied; times are those of `time.perf_counter`. It raises nothing."""

    def derived(self, began_s: float, ended_s: float) -> None:
        """Hear that the derivation worked until it yielded rows, or ended without any."""
        ...

    def write(self, change: str, table: StoreTable, rows: int) -> AbstractContextManager[None]:
        """Return a block in which ``rows`` rows are written, updated or deleted: ``change`` says which."""
        ...


class _Unwatched(Watch):
    def derived(self, began_s: float, ended_s: float) -> None:
        pass

    @contextmanager
    def write(self, change: str, table: StoreTable, rows: int) -> Iterator[None]:
        yield


UNWATCHED: Final[Watch] = _Unwatched()


@dataclass
class Done:
    """What was done so far: numbers of items, of written rows by table, and seconds spent.

    Attributes:
        first_batch, last_batch: smallest and largest number of a batch, 0 = none.
        rows: rows written and deleted, by table; dead letters among them.
    """

    items: int = 0
    first_batch: int = 0
    last_batch: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    derive_s: float = 0.0
    write_s: float = 0.0

    def count(self, batch: FlowBatch) -> None:
        """Count a batch of which all is written."""
        self.items += batch.items.num_rows
        self.first_batch = min(self.first_batch or batch.number, batch.number)
        self.last_batch = max(self.last_batch, batch.number)


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies the changes of batches to a store; idempotent.

    Args:
        derivation: see `oncegate.spark_sink.derivation`.
        job: name under which dead letters are kept.
        stamp: write timestamp of every row instead of its own, for a replay that revises (`replay`); 0 = none.
        stamps_all: False: rows of tables that no batch or item owns (`owner`) keep their own.
    """

    derivation: Derivation
    job: str = ""
    stamp: int = 0
    stamps_all: bool = True

    def apply(self, batch: FlowBatch, store: RowWriter, done: Done, watch: Watch = UNWATCHED) -> None:
        """Write what the batch derives to, and count it in ``done``; when it returns, all of it is durable.

        ``watch`` hears of each step.

        Raises:
            StoreError: STORE_UNAVAILABLE, when the store did not answer until its deadline; BAD_ROWS, when rows do not
                fit their table as a whole.
        """
        begun = mark = time.perf_counter()
        errors: dict[int, str] = {}
        for change in changes_of(self.derivation, batch):
            if isinstance(change, Reject):
                errors.setdefault(change.commit, change.error)
                continue
            now = time.perf_counter()
            done.derive_s += now - mark
            watch.derived(mark, now)
            errors = self._written(change, batch, store, watch) | errors
            done.rows[change.table.name] += change.rows.num_rows
            mark = time.perf_counter()
            done.write_s += mark - now
        now = time.perf_counter()
        done.derive_s += now - mark
        if mark == begun:
            watch.derived(mark, now)
        if errors:
            dead = letters(batch, self.job, errors)
            if dead.num_rows != len(errors):
                raise SinkError(StoreCode.BAD_ROWS, f"batch {batch.number} has no item of a rejected commit number")
            self._written(Upsert(DEAD_LETTERS, dead), batch, store, watch)
            done.rows[DEAD_LETTERS.name] += dead.num_rows
        done.count(batch)

    def _written(
        self, change: Upsert | Update | Delete, batch: FlowBatch, store: RowWriter, watch: Watch
    ) -> dict[int, str]:
        """Write, and return the errors of rows that the store refused, by the commit of the item they derive from."""
        table, rows = change.table, change.rows
        if self.stamp and (self.stamps_all or owned(table)):
            rows = _stamped(table, rows, batch, self.stamp)
            if isinstance(change, Upsert) and table.fixed:
                _erase_nulls(table, rows, store)
        try:
            match change:
                case Upsert():
                    with watch.write("write", table, rows.num_rows):
                        store.write(table, rows)
                case Update():
                    with watch.write("update", table, rows.num_rows):
                        store.update(table, rows)
                case Delete():
                    with watch.write("delete", table, rows.num_rows):
                        store.delete(table, rows)
        except BadRows as refused:
            if table is DEAD_LETTERS:
                raise
            commits, errors = change.rows.column(WRITE_TS), dict[int, str]()
            for one in refused.rejected:
                named = _named(table, change.rows, one.index) if "batch" in table.key else ""
                errors.setdefault(commits[one.index].as_py(), f"{table.name}: {one.reason}{named}")
            return errors
        return {}


def _named(table: StoreTable, rows: pa.RecordBatch, index: int) -> str:
    """Say which row of a whole batch it is: its letter is laid at the last item, which need not be the one to blame."""
    key = ((name, repr(rows.column(name)[index].as_py())) for name in table.key if name != "batch")
    shown = (f"{name}={told[:_SHOWN_MAX]}{'…' * (len(told) > _SHOWN_MAX)}" for name, told in key)
    return f"; the first such row of the batch is {' '.join(shown)}, of whatever item"


def _erase_nulls(table: StoreTable, rows: pa.RecordBatch, store: RowWriter) -> None:
    """Delete what a revised row with nulls had before: where rows never change, stores write no null."""
    nulls = np.zeros(rows.num_rows, dtype=np.bool_)
    for column in table.values:
        nulls |= np.asarray(rows.column(column.name).is_null())
    keys = rows.select(table.key_schema.names).take(pa.array(np.flatnonzero(nulls)))
    if keys.num_rows:
        older = pa.array(np.asarray(keys.column(WRITE_TS)) - 1)
        store.delete(table, keys.set_column(len(table.key), keys.schema.field(WRITE_TS), older))


def _stamped(table: StoreTable, rows: pa.RecordBatch, batch: FlowBatch, stamp: int) -> pa.RecordBatch:
    commits = batch.items.column("commit")
    first, last = {"batch": (batch.number,) * 2, "commit": (commits[0].as_py(), commits[-1].as_py())}[owner(table)]
    owners = np.asarray(rows.column(owner(table)))
    if len(owners) and not first <= owners.min() <= owners.max() <= last:
        raise SinkError(StoreCode.BAD_ROWS, f"{table.name}: a row of batch {batch.number} has another {owner(table)}")
    at = rows.schema.get_field_index(WRITE_TS)
    return rows.set_column(at, table.schema.field(WRITE_TS), pa.array(np.full(rows.num_rows, stamp)))


def owned(table: StoreTable) -> bool:
    """Return whether a row's key says which batch or item alone writes it."""
    return not {"batch", "commit"}.isdisjoint(table.key)


def owner(table: StoreTable) -> str:
    """Return the key column that says which batch or item alone writes a row: `batch` or `commit`.

    Raises:
        SinkError: BAD_TABLE, when there is none: rows, or cells of a partial table, are overwritten by later items, so
            that what an earlier batch made of them cannot be revised.
    """
    numbers = {column.name for column in table.columns if column.type is ColumnType.INT64}
    for name in ("batch", "commit"):
        if name in table.key and name in numbers and not table.partial:
            return name
    has = "cells with timestamps of their own" if table.partial else "neither batch nor commit, a number, in its key"
    raise SinkError(
        StoreCode.BAD_TABLE,
        f"{table.name} has {has}: give the new version of the job a table and a "
        "consumer of its own and let it read from the earliest batch, or replay the unchanged job with "
        "--keep-timestamps",
    )
