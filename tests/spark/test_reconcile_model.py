"""Reconcile against two dictionaries: what a range of batches leaves in an empty store, and what a tampered one holds.

Batches write, update, delete and reject rows of tables whose keys name an item, a batch or neither, some of them
partial, some compacted; a job goes on meanwhile and has written any part of what comes behind the range. Then rows are
changed by hand in ways that are differences, and in ways that are none. The reference compares row by row.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from oncegate.spark_sink import reconcile as checked
from oncegate.spark_sink.applying import Applier, Done
from oncegate.spark_sink.compaction import COMPACTIONS
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Change, FlowBatch
from oncegate.spark_sink.reconcile import reconcile
from oncegate.stores.limits import sift
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

NUMBER, TEXT = ColumnType.INT64, ColumnType.TEXT
WIDE = StoreTable(
    "wide",
    (Column("key", TEXT), *(Column(name, NUMBER, nullable=True) for name in "ab"), Column("c", TEXT, nullable=True)),
    ("key",),
)
ITEMS = StoreTable("items", (Column("key", TEXT), Column("commit", NUMBER), Column("a", NUMBER)), ("key", "commit"))
COUNTS = StoreTable("counts", (Column("key", TEXT), Column("batch", NUMBER), Column("a", NUMBER)), ("key", "batch"))
CELLS = StoreTable(
    "cells", (Column("key", TEXT), *(Column(name, NUMBER, nullable=True) for name in "ab")), ("key",), partial=True
)
TABLES = (WIDE, ITEMS, COUNTS, CELLS, DEAD_LETTERS)
CLAIMS = {"wide": WRITE_TS, "items": "commit", "counts": "batch", "cells": WRITE_TS, DEAD_LETTERS.name: "batch"}
KEYS = "pqrstu"
TOO_LONG = "k" * 70_000
Key = tuple[Any, ...]


def derive(batch: FlowBatch) -> Iterator[Change]:
    """Each item says what is done for it; the deletion and the writing of one row by one item leave no row."""
    counts: Counter[str] = Counter()
    for item in batch:
        told = item.json()
        counts[item.key] += told["a"] or 0
        if "reject" in told["do"]:
            yield item.reject("it says so")
        if "write" in told["do"]:
            yield item.upsert(WIDE, key=item.key, **{name: told[name] for name in "abc"})
        if "delete" in told["do"]:
            yield item.delete(WIDE, key=item.key)
        if "log" in told["do"]:
            yield item.upsert(ITEMS, key=item.key, commit=item.commit, a=told["a"] or 0)
        if "cell" in told["do"]:
            yield item.update(CELLS, key=item.key, **{told["cell"]: told["a"]})
        if "empty" in told["do"]:
            yield item.delete(CELLS, key=item.key)
    for key, count in sorted(counts.items()):
        yield batch.upsert(COUNTS, key=key, batch=batch.number, a=count)


class Memory:
    """A store of dictionaries: of each row and cell the last write wins, of equally late ones a deletion."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[Key, dict[str, Any]]] = {table.name: {} for table in TABLES}
        self.deleted: dict[tuple[str, Key], int] = {}
        self.compacted: dict[str, int] = {}

    def _put(self, table: StoreTable, rows: pa.RecordBatch, schema: pa.Schema) -> None:
        sifted = sift(table, rows, schema)
        for row in sifted.rows.to_pylist():
            key = tuple(row[name] for name in table.key)
            known = self.rows[table.name].get(key)
            if known is None or known[WRITE_TS] <= row[WRITE_TS]:
                known = dict.fromkeys(table.schema.names) if known is None or not table.partial else known
                self.rows[table.name][key] = {**known, **row}
        sifted.raise_rejected()

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self._put(table, rows, table.schema)

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        self._put(table, rows, table.update_schema(rows.schema.names))

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        for row in keys.to_pylist():
            place = table.name, tuple(row[name] for name in table.key)
            self.deleted[place] = max(row[WRITE_TS], self.deleted.get(place, 0))

    def there(self, table: str) -> dict[Key, dict[str, Any]]:
        return {key: r for key, r in self.rows[table].items() if r[WRITE_TS] > self.deleted.get((table, key), -1)}

    def tables(self) -> list[str]:
        return [*self.rows, COMPACTIONS.name]

    def get(self, table: StoreTable, key: Mapping[str, Any]) -> dict[str, Any] | None:
        begun = self.compacted.get(key["partials"])
        return None if begun is None else {"planned": begun, "begun": begun, WRITE_TS: 1}

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        rows = list(self.there(table.name).values())
        for at in range(0, len(rows), 3):
            yield pa.RecordBatch.from_pylist(rows[at : at + 3], schema=table.schema)


def batches_of(dice: random.Random, count: int) -> dict[int, FlowBatch]:
    made, commit = {}, dice.randint(1, 5)
    for number in range(1, count + 1):
        items = []
        for _ in range(dice.randint(1, 5)):
            do = dice.sample(("write", "write", "write", "delete", "log", "cell", "cell", "empty", "reject"), 3)
            told = {"do": do, "cell": dice.choice("ab"), "a": dice.choice((None, 0, 1, 2)), "b": dice.choice((None, 1))}
            key = dice.choice(KEYS) if dice.random() > 0.03 else TOO_LONG
            items.append((key, {**told, "c": dice.choice((None, "", "x"))}))
        made[number] = FlowBatch.of(*items, number=number, first_commit=commit)
        commit += len(items) + dice.randint(0, 2)  # commits of other tables lie between
    return made


def tampered(dice: random.Random, store: Memory, commits: range, numbers: range) -> None:
    """Change a row: its values, its claim, its being there; or add one."""
    table = dice.choice((WIDE, *TABLES))
    rows = store.rows[table.name]
    if not rows:
        return
    key = dice.choice(sorted(rows))
    row = dict(rows[key])
    match dice.choice(("drop", "value", "null", "swap", "claim", "other log", "other log", "add", "other job")):
        case "drop":
            del rows[key]
            return
        case "value" if table is not DEAD_LETTERS:
            row["a"] = dice.randint(0, 9)
        case "null" if table in (WIDE, CELLS):
            name = dice.choice("ab")
            row[name] = 0 if row[name] is None else None if not row[name] else row[name]
        case "swap" if table in (WIDE, CELLS):
            row["a"], row["b"] = row["b"], row["a"]
        case "claim" if table in (WIDE, CELLS):
            row[WRITE_TS] = dice.choice(commits)
        case "other log":
            row[WRITE_TS] = 0
        case "add" if table is not DEAD_LETTERS:
            row["key"] = dice.choice("xyz")
            row |= {"commit": dice.choice(commits)} if table is ITEMS else {}
            row |= {"batch": dice.choice(numbers)} if table is COUNTS else {}
            row[WRITE_TS] = dice.choice(commits)
        case "other job" if table is DEAD_LETTERS:
            row[dice.choice(("job", "flow"))] = "another"
        case _:
            return
    rows[tuple(row[name] for name in table.key)] = row


class Judged:
    """What a plain comparison finds."""

    def __init__(self, batches: dict[int, FlowBatch], first: int, last: int, newest: int, store: Memory) -> None:
        applier = Applier(derive, "j")
        should, later = Memory(), Memory()
        for number in range(first, last + 1):
            applier.apply(batches[number], should, Done())
        for number in range(last + 1, newest + 1):
            applier.apply(batches[number], later, Done())
        self.batches, self.first, self.last = batches, first, last
        self.found: set[tuple[str, str, int, Key]] = set()
        self.rows, self.differing = 0, set[int]()
        for table in TABLES:
            name, begun = table.name, store.compacted.get(table.name, 0)
            mine, theirs = (
                {key: row for key, row in side.there(name).items() if self.is_judged(name, row, begun)}
                for side in (should, store)
            )
            self.rows += len(mine)
            touched = later.rows[name].keys() | {key for of, key in later.deleted if of == name}
            for key in mine.keys() | theirs.keys():
                one, other = mine.get(key), theirs.get(key)
                if one is None or other is None or self.shown(table, one) != self.shown(table, other):
                    sides = [self.batch_of(name, row) for row in (one, other) if row is not None]
                    self.differing |= set(sides)
                    kind = "surplus" if one is None else "missing" if other is None else "differs"
                    if key not in touched:
                        self.found.add((kind, name, sides[0], key))

    def is_judged(self, table: str, row: dict[str, Any], begun: int) -> bool:
        own = table != DEAD_LETTERS.name or (row["job"], row["flow"]) == ("j", "flow")
        behind = not begun or row[CLAIMS[table]] > begun
        return own and behind and row[WRITE_TS] > 0 and self.first <= self.batch_of(table, row) <= self.last

    def batch_of(self, table: str, row: dict[str, Any]) -> int:
        """Number of the batch that holds the row's claim, of the first or last one what lies outside all."""
        claim = row[CLAIMS[table]]
        if CLAIMS[table] == "batch":
            return int(claim)
        if claim < self.batches[self.first].items.column("commit")[0].as_py():
            return self.first - 1
        return next((n for n in range(self.first, self.last + 1) if claim <= self.batches[n].last_commit), 1 << 20)

    def shown(self, table: StoreTable, row: dict[str, Any]) -> tuple[Any, ...]:
        values = () if table.partial else tuple(row[column.name] for column in table.values)
        return (row[CLAIMS[table.name]], *values)


@pytest.mark.parametrize("seed", range(12))
def test_reconcile_finds_of_any_range_what_a_comparison_row_by_row_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    named_max = dice.choice((3, 1000, 1000))
    monkeypatch.setattr(checked, "DIFFERENCES_MAX", named_max)
    for heavily in (False, True):
        count = dice.randint(2, 7)
        batches = batches_of(dice, count)
        first = dice.randint(1, count)
        last = dice.randint(first, min(first + 2, count))
        newest = dice.randint(last, count) if dice.random() < 0.7 else last
        store, applier = Memory(), Applier(derive, "j")
        for number in range(1, dice.randint(last, newest) + 1):
            applier.apply(batches[number], store, Done())
        commits = range(batches[first].items.column("commit")[0].as_py(), batches[last].last_commit + 1)
        for _ in range(24 if heavily else dice.randint(0, 2)):
            tampered(dice, store, commits, range(first, last + 1))
        if dice.random() < 0.4:
            store.compacted = {"counts": dice.randint(1, count)}
        held: Any = store
        judged = Judged(batches, first, last, newest, store)
        found = reconcile(batches.__getitem__, first, last, applier, held, tables=TABLES, newest=lambda: newest)  # noqa: B023
        named = {(one.kind, one.table, one.batch, tuple(one.key.values())) for one in found.differences}
        assert named <= judged.found
        assert len(named) == len(found.differences) == min(named_max, len(judged.found))
        assert found.counts == Counter(kind for kind, *_ in judged.found)
        assert found.rows == judged.rows
        assert found.batches_differing == judged.differing
        assert found.equal == (not judged.found)
