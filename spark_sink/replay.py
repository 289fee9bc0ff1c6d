"""Replays: named runs over a range of batches, beside live traffic, that revise what an earlier job made of them.

Owns: the record of replays in the store, the write timestamp that lets revised rows win, and which rows are stale
afterwards. Must not know Spark or HTTP. Read next: `jobs.replay`, `applying`.

A replay writes each row with one timestamp, its stamp, which is larger than every commit number of the range and than
the stamp of every replay that this store has seen. So a revised row beats what was there, and two replays beat each
other in the order in which they were recorded. That is sound where one batch or one item alone writes a row, which its
key says (`applying.owner`): no write outside the range ever meets it. Rows of the range that the replay did not write
have older timestamps, and `sweep` deletes them. A replay with stamp 0 keeps the rows' own timestamps: it restores what
was lost and changes nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.applying import owner
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

_NUMBERS: Final = ("first_batch", "last_batch", "first_commit", "last_commit", "stamp", "done")
REPLAYS: Final = StoreTable(
    name="job_replays",
    columns=(
        Column("job", ColumnType.TEXT),
        Column("name", ColumnType.TEXT),
        Column("flow", ColumnType.TEXT),
        *(Column(name, ColumnType.INT64) for name in _NUMBERS),
    ),
    partition_key=("job",),
    clustering=(Clustering("name"),),
)
"""One row a replay; ``stamp`` 0: rows keep their own timestamps; ``done`` 1: nothing is left to do."""

_WRITE_TS: Final = 1
"""All versions of a record have this timestamp: of two values the larger wins, so `done` never goes back."""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay as recorded: batches ``first_batch`` .. ``last_batch`` of ``flow`` for the consumer ``job``."""

    job: str
    name: str
    flow: str
    first_batch: int
    last_batch: int
    first_commit: int
    last_commit: int
    stamp: int
    done: int = 0

    @property
    def consumer(self) -> str:
        """Name of the consumer that the replay reads as."""
        return f"{self.job}.replay.{self.name}"


def recorded(store: ClaimedStore, job: str, name: str) -> Replay | None:
    """Return the replay of this name, or None."""
    row = store.get(REPLAYS, {"job": job, "name": name})
    return None if row is None else _replay(row)


def unfinished(store: ClaimedStore, job: str) -> list[Replay]:
    """Return the replays of a job that are not done."""
    rows = (row for found in store.scan(REPLAYS) for row in found.to_pylist())
    return [_replay(row) for row in rows if row["job"] == job and not row["done"]]


def _replay(row: Mapping[str, Any]) -> Replay:
    return Replay(**{column: value for column, value in row.items() if column != WRITE_TS})


def check_same(known: Replay, flow: str, first_batch: int, last_batch: int, *, revise: bool) -> None:
    """Raise CURSOR_MISMATCH when a name stands for another replay already."""
    if (known.flow, known.first_batch, known.last_batch, known.stamp > 0) != (flow, first_batch, last_batch, revise):
        kind = "revises" if known.stamp else "keeps timestamps"
        raise SinkError(
            StoreCode.CURSOR_MISMATCH,
            f"replay {known.name} of {known.job} is of batches {known.first_batch}..{known.last_batch} of {known.flow} "
            f"and {kind}: choose another name",
        )


def next_stamp(store: ClaimedStore, last_commit: int) -> int:
    """Return a timestamp above all commits up to ``last_commit`` and all stamps of recorded replays."""
    stamps = [pc.max(rows.column("stamp")).as_py() or 0 for rows in store.scan(REPLAYS)]
    return 1 + max([last_commit, *stamps])


def record(store: ClaimedStore, replay: Replay) -> None:
    """Write the record; durable when it returns."""
    row = {name: getattr(replay, name) for name in REPLAYS.schema.names if name != WRITE_TS}
    store.write(REPLAYS, pa.RecordBatch.from_pylist([{**row, WRITE_TS: _WRITE_TS}], schema=REPLAYS.schema))


def sweep(store: ClaimedStore, tables: Iterable[StoreTable], *replays: Replay) -> int:
    """Delete the rows of each range that its replay has not written, and return their number; idempotent.

    Reads whole tables. A table belongs to one job; where it has columns `flow` or `job`, others may share it.
    """
    removed = 0
    for table in tables if replays else ():
        for rows, replay in itertools.product(store.scan(table), replays):
            stale = rows.filter(pa.array(_stale(table, rows, replay))).select(table.key_schema.names)
            if stale.num_rows:
                stamps = pa.array(np.full(stale.num_rows, replay.stamp))
                columns = [stamps if name == WRITE_TS else stale.column(name) for name in stale.schema.names]
                store.delete(table, pa.RecordBatch.from_arrays(columns, schema=table.key_schema))
                removed += stale.num_rows
    return removed


def _stale(table: StoreTable, rows: pa.RecordBatch, replay: Replay) -> Any:
    of_batch = owner(table) == "batch"
    low, high = (replay.first_batch, replay.last_batch) if of_batch else (replay.first_commit, replay.last_commit)
    owners, stamps = np.asarray(rows.column(owner(table))), np.asarray(rows.column(WRITE_TS))
    # Timestamp 0: a row of another cluster's log in an adopted store, whose numbers say nothing here.
    stale = (low <= owners) & (owners <= high) & (stamps > 0) & (stamps < replay.stamp)
    for name in {"flow", "job"} & set(table.key):
        stale &= np.asarray(pc.equal(rows.column(name), getattr(replay, name)))
    return stale
