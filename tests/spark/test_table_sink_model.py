"""Tables of stateful queries against dictionaries: micro-batches that come again, deletions, rebuilds and sweeps.

A micro-batch changes each table whole; one that was cut off comes again as it was, maybe after a part of it is written.
A rebuild begins anew with the first micro-batch and wins over all that was there, rows that were deleted among them;
what it no longer makes goes with the sweep. Two jobs whose names begin alike have nothing to do with one another.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark import DEAD_LETTERS, ClaimedStore, Column, ColumnType, StoreTable, claimed_store
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.generations import GENERATIONS, Generation, bind, generation_of, sweep
from oncegate.spark_sink.table_sink import write_rows
from oncegate.stores.errors import StoreCode

JOBS = ("job", "job2")
TABLES = {
    job: [
        StoreTable(f"{job}_{at}", (Column("user", ColumnType.TEXT), Column("total", ColumnType.INT64)), ("user",))
        for at in range(2)
    ]
    for job in JOBS
}
FRAME = pa.schema([("user", pa.string()), ("total", pa.int64()), ("deleted", pa.bool_())])
Row = tuple[int, int | None]
"""The stamp's place, counted over all generations, and the total; None: deleted."""


class Job:
    """One job: its generations, what its tables hold, and what its micro-batches were."""

    def __init__(self, name: str, store: ClaimedStore, dice: random.Random) -> None:
        self.name, self.store, self.dice = name, store, dice
        self.tables: list[dict[str, Row]] = [{}, {}]
        self.letters: dict[str, int] = {}
        self.names = [""]
        self.generation: Generation = generation_of(store, TABLES[name], name)
        self.begun = 0
        self.batches: list[list[list[dict[str, Any]]]] = []
        self.older: list[Generation] = []

    def micro_batch(self) -> None:
        """Run the next micro-batch, or the last one again."""
        again = bool(self.batches) and self.dice.random() < 0.3
        bind(self.store, self.generation, self._query(), len(self.batches))
        if not again:
            users, goes = [f"u{at}" for at in range(6)], [True, False, None]
            if self.dice.random() < 0.25:  # a while without rows, and then only some that go
                self.batches += [[[], []]] * self.dice.randint(1, 40)
                goes = [True]
            rows = [
                [{"user": user, "total": self.dice.randint(0, 99)} for user in self.dice.sample(users, 3)]
                for _ in range(2)
            ]
            for part in rows:
                for row in part:
                    row["deleted"] = self.dice.choice(goes)
                if self.dice.random() < 0.1:
                    part.append({"user": "x" * 70_000, "total": 1, "deleted": False})
            self.batches.append(rows)
        number = len(self.batches) - 1
        bind(self.store, self.generation, self._query(), number)
        for at in range(2):
            part = self.batches[number][at]
            if self.dice.random() < 0.15 and not again:
                # Cut off after some rows: what is written stays, and comes again.
                self._write(at, number, part[:1])
                self.micro_batch_again(number)
                return
            self._write(at, number, part)

    def micro_batch_again(self, number: int) -> None:
        for at in range(2):
            self._write(at, number, self.batches[number][at])

    def _write(self, at: int, number: int, part: list[dict[str, Any]]) -> None:
        table = TABLES[self.name][at]
        write_rows(
            pa.Table.from_pylist(part, FRAME), table, self.store, self.generation.stamp(number), self.name, number
        )
        place = self.begun + number
        for row in part:
            if len(row["user"]) > 100:
                self.letters[table.name] = number
                continue
            if self.tables[at].get(row["user"], (-1, 0))[0] <= place:
                self.tables[at][row["user"]] = place, None if row["deleted"] else row["total"]

    def _query(self) -> str:
        return f"{self.name} {self.generation.generation}"

    def rebuild(self) -> None:
        """Begin anew with another checkpoint; a name of before is refused, and so is the one that was before."""
        if len(self.names) > 2:
            with pytest.raises(SinkError) as refused:
                generation_of(self.store, TABLES[self.name], self.name, self.dice.choice(self.names[1:-1]))
            assert refused.value.code is StoreCode.CURSOR_MISMATCH
        self.begun += len(self.batches) + 1
        self.names.append(f"fix{len(self.names)}")
        self.older.append(self.generation)
        self.generation = generation_of(self.store, TABLES[self.name], self.name, self.names[-1])
        self.batches = []
        if self.dice.random() < 0.5:
            with pytest.raises(SinkError) as refused:
                bind(self.store, self.generation, self._query(), 3)
            assert refused.value.code is StoreCode.STORE_MISMATCH
        bind(self.store, self.generation, self._query(), 0)

    def strangers(self) -> None:
        """Another checkpoint, and whoever is behind a rebuild, is refused; a restart gets the same generation."""
        if self.batches or self.older:
            bind(self.store, self.generation, self._query(), len(self.batches))
            with pytest.raises(SinkError) as refused:
                bind(self.store, self.generation, "another", 0)
            assert refused.value.code is StoreCode.CURSOR_MISMATCH
        for one in self.older:
            with pytest.raises(SinkError):
                bind(self.store, one, f"{self.name} {one.generation}", 9)
        for name in ("", self.names[-1]):
            again = generation_of(self.store, TABLES[self.name], self.name, name)
            assert again.stamp(0) == self.generation.stamp(0)
            assert (again.generation, again.rebuild) == (len(self.names), self.names[-1])

    def sweep(self) -> None:
        gone = 0
        for rows in self.tables:
            for user in [user for user, (place, total) in rows.items() if place < self.begun and total is not None]:
                rows[user] = self.begun - 1, None
                gone += 1
        assert sweep(self.store, TABLES[self.name], self.name) == gone
        assert sweep(self.store, TABLES[self.name], self.name) == 0

    def check(self) -> None:
        for at, table in enumerate(TABLES[self.name]):
            found = {row["user"]: row["total"] for part in self.store.scan(table) for row in part.to_pylist()}
            wanted = {user: total for user, (_, total) in self.tables[at].items() if total is not None}
            assert found == wanted, (self.name, at)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_holds_what_the_newest_generation_made_whatever_came_again(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    with claimed_store(f"sqlite://{tmp_path}/store", "c0ffee") as store:
        store.create([*TABLES["job"], *TABLES["job2"], GENERATIONS, DEAD_LETTERS])
        jobs = [Job(name, store, dice) for name in JOBS]
        for _ in range(24):
            job = dice.choice(jobs)
            dice.choices((job.micro_batch, job.rebuild, job.sweep, job.strangers), (12, 2, 1, 2))[0]()
            for one in jobs:
                one.check()
        letters = [row for part in store.scan(DEAD_LETTERS) for row in part.to_pylist()]
        for one in jobs:
            told = {row["error"].partition(":")[0]: row for row in letters if row["job"] == one.name}
            assert told.keys() == one.letters.keys()
            newest = {row["batch"] for row in letters if row["job"] == one.name}
            assert set(one.letters.values()) <= newest
            assert all(row["item_key"].startswith('["xxx') for row in told.values())
