"""Whose micro-batches a table holds: one checkpoint's, by record; another one needs a named rebuild. Needs no Spark.

Owns: the record in the store, the write timestamps of a micro-batch's rows, and what is stale after a rebuild. Read
next: `table_sink`.

Rows that a stateful query emits derive from all that it has read so far, not from one flow batch. They are stamped with
the number of their micro-batch, counted from the floor of a **generation**: the micro-batches of one checkpoint. Spark
notes the offsets of a micro-batch in the checkpoint before it runs, and runs it again with the same offsets after a
crash; so the same rows come again under the same stamp, and those of a later micro-batch have a larger one. A new
checkpoint counts from zero: its rows would lose to older ones in silence. So a generation is bound to the first
checkpoint that writes in it (Spark keeps the query's id there), and any other is refused. A rebuild begins a new
generation, whose floor is above all that the table holds, and above all micro-batches of the one before: a row that one
of them deleted is not seen any more, and its deletion would win over the rebuild's row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.errors import SinkError
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

GENERATIONS: Final = StoreTable(
    name="job_generations",
    columns=(
        Column("job", ColumnType.TEXT),
        Column("generation", ColumnType.INT64),
        Column("rebuild", ColumnType.TEXT),
        Column("floor", ColumnType.INT64),
        Column("query", ColumnType.TEXT),
    ),
    partition_key=("job",),
    clustering=(Clustering("generation"),),
)
"""One row a generation; ``query`` is the id of the query that it is bound to, empty: none yet."""
MICRO_BATCHES_MAX: Final = 2**32
"""Of a generation: ten a second for thirteen years. The floor of the next one is so far above."""
_BEGUN, _BOUND = 1, 2
"""Write timestamps of the two states of a row."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The micro-batches of one checkpoint, as recorded."""

    job: str
    generation: int
    rebuild: str
    floor: int
    query: str = ""

    def stamp(self, micro_batch: int) -> int:
        """Return the write timestamp of the rows of a micro-batch, which Spark counts from 0."""
        return self.floor + micro_batch + 1


def generation_of(store: ClaimedStore, tables: Iterable[StoreTable], job: str, rebuild: str = "") -> Generation:
    """Return the generation that a job writes in; begin one for a new job, and for a ``rebuild`` of a new name.

    Args:
        store: it holds `GENERATIONS` and ``tables``.
        tables: of the job; read as a whole where a generation begins.
        job: its name.
        rebuild: name of the rebuild that is wanted; empty: go on.

    Raises:
        StoreError: CURSOR_MISMATCH, when a later rebuild has followed the one of this name.
    """
    rows = [row for part in store.scan(GENERATIONS) for row in part.to_pylist() if row["job"] == job]
    known = [Generation(**{name: row[name] for name in Generation.__slots__}) for row in rows]
    newest = max(known, key=lambda one: one.generation, default=None)
    if newest is not None and rebuild in ("", newest.rebuild):
        return newest
    if any(one.rebuild == rebuild for one in known):
        raise SinkError(
            StoreCode.CURSOR_MISMATCH, f"rebuild {rebuild} of {job} was followed by another: name a new one"
        )
    stamps = [int(np.asarray(part.column(WRITE_TS)).max()) for table in tables for part in store.scan(table) if part]
    if newest is not None:
        stamps.append(newest.floor + MICRO_BATCHES_MAX)  # no scan shows the stamps of deletions
    begun = Generation(job, 1 if newest is None else newest.generation + 1, rebuild, max(stamps, default=0) + 1)
    _write(store, begun, _BEGUN)
    return begun


def bind(store: ClaimedStore, wanted: Generation, query: str, micro_batch: int) -> None:
    """See that the generation is this query's; the first one that asks gets it. Idempotent; for every task.

    Raises:
        StoreError: CURSOR_MISMATCH, when it is another query's, or a newer generation has begun; STORE_MISMATCH, when
            this store holds nothing of the earlier micro-batches.
    """
    found = _read(store, wanted)
    if found is not None and not found.query:
        if micro_batch:
            raise SinkError(
                StoreCode.STORE_MISMATCH,
                f"{wanted.job} comes with micro-batch {micro_batch}, and this store holds none of the earlier ones: "
                "name the store where they went, or rebuild with another checkpoint (rebuild=…)",
            )
        _write(store, replace(wanted, query=query), _BOUND)
        found = _read(store, wanted)
    newer = store.get(GENERATIONS, {"job": wanted.job, "generation": wanted.generation + 1})
    if found != replace(wanted, query=query) or newer is not None:
        raise SinkError(
            StoreCode.CURSOR_MISMATCH,
            f"what the tables of {wanted.job} hold was made with another checkpoint: use that one; or, if it is lost, "
            "rebuild under a new name (rebuild=…), from the first batch",
        )


def sweep(store: ClaimedStore, tables: Iterable[StoreTable], job: str) -> int:
    """Delete the rows of earlier generations that the newest one has not written, and return their number.

    Call it when a rebuild has caught up; idempotent. Reads whole tables.
    """
    tables = tuple(tables)
    floor = generation_of(store, tables, job).floor
    removed = 0
    for table in tables:
        for rows in store.scan(table):
            stale = rows.filter(pa.array(np.asarray(rows.column(WRITE_TS)) < floor))
            stamps = pa.array(np.full(stale.num_rows, floor))
            columns = [stamps if name == WRITE_TS else stale.column(name) for name in table.key_schema.names]
            if stale.num_rows:
                store.delete(table, pa.RecordBatch.from_arrays(columns, schema=table.key_schema))
            removed += stale.num_rows
    return removed


def _read(store: ClaimedStore, wanted: Generation) -> Generation | None:
    row = store.get(GENERATIONS, {"job": wanted.job, "generation": wanted.generation})
    return None if row is None else Generation(**{name: row[name] for name in Generation.__slots__})


def _write(store: ClaimedStore, generation: Generation, write_ts: int) -> None:
    row = {name: getattr(generation, name) for name in Generation.__slots__}
    store.write(GENERATIONS, pa.RecordBatch.from_pylist([{**row, WRITE_TS: write_ts}], schema=GENERATIONS.schema))
