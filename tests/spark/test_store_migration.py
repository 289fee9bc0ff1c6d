"""Tables that change: columns are added while jobs run, another shape is refused, and files of before are read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from oncegate.stores import WRITE_TS, Clustering, Column, ColumnType, ListOf, StoreTable, open_store
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.sqlite import schema

TEXT, INT64 = ColumnType.TEXT, ColumnType.INT64
OLD = StoreTable(
    "notes", (Column("owner", TEXT), Column("at", INT64), Column("text", TEXT)), ("owner",), (Clustering("at", True),)
)
ADDED = (
    Column("tags", ListOf(TEXT), nullable=True),
    Column("until", ColumnType.TIMESTAMP, nullable=True),
    Column("more", INT64, nullable=True),
)
NEW = replace(OLD, columns=(*OLD.columns[:2], *ADDED, OLD.columns[2]), expires="until")
CELLS = StoreTable("cells", (Column("k", TEXT), Column("a", INT64, nullable=True)), ("k",), partial=True)


def rows(table: StoreTable, *found: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(found), schema=table.schema)


def note(at: int, ts: int, **more: Any) -> dict[str, Any]:
    return {"owner": "ann", "at": at, "text": f"{ts}", WRITE_TS: ts, **more}


def test_columns_are_added_while_the_older_job_writes_and_reads(store_url: str) -> None:
    nothing = {"tags": None, "until": None, "more": None}
    with open_store(store_url) as older, open_store(store_url) as newer:
        older.create([OLD])
        older.write(OLD, rows(OLD, note(1, 1)))
        newer.create([NEW])
        newer.create([NEW])
        newer.write(NEW, rows(NEW, note(2, 2, tags=["x"], until=None, more=7)))
        older.write(OLD, rows(OLD, note(3, 3)))
        older.create([OLD])
        found = newer.range(NEW, {"owner": "ann"}).to_pylist()
        assert found == [
            note(3, 3, **nothing),
            note(2, 2, tags=["x"], until=None, more=7),
            note(1, 1, **nothing),
        ]
        assert older.range(OLD, {"owner": "ann"}, limit=1, reverse=True).to_pylist() == [note(1, 1)]
        newer.write(NEW, rows(NEW, note(1, 4, tags=[], until=1, more=None)))
        assert newer.count(NEW) == 2


def test_cells_are_added_with_timestamps_of_their_own(store_url: str) -> None:
    wide = replace(CELLS, columns=(*CELLS.columns, Column("b", TEXT, nullable=True)))
    with open_store(store_url) as older, open_store(store_url) as newer:
        older.create([CELLS])
        older.write(CELLS, rows(CELLS, {"k": "x", "a": 1, WRITE_TS: 5}))
        newer.create([wide])
        newer.update(wide, pa.RecordBatch.from_pylist([{"k": "x", "b": "b", WRITE_TS: 3}], wide.update_schema(["b"])))
        older.write(CELLS, rows(CELLS, {"k": "x", "a": 2, WRITE_TS: 6}))
        assert newer.get(wide, {"k": "x"}) == {"k": "x", "a": 2, "b": "b", WRITE_TS: 6}


@pytest.mark.parametrize(
    "other",
    [
        replace(OLD, columns=(*OLD.columns, Column("must", INT64))),
        replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], type=ColumnType.BLOB))),
        replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], type=ColumnType.UUID))),
        replace(OLD, clustering=(Clustering("at"),)),
        replace(OLD, partition_key=("owner", "at"), clustering=()),
        replace(OLD, columns=(*OLD.columns[:2], replace(OLD.columns[2], nullable=True)), partial=True),
    ],
    ids=["not nullable", "type", "new type", "order", "key", "partial"],
)
def test_another_shape_is_refused_and_says_what_could_be_done(store_url: str, other: StoreTable) -> None:
    with open_store(store_url) as store:
        store.create([OLD])
        with pytest.raises(
            StoreError, match="has to be nullable; a table of another shape needs another name"
        ) as refused:
            store.create([other])
        assert refused.value.code is StoreCode.STORE_MISMATCH
        store.create([OLD])


def test_types_that_a_database_holds_alike_are_told_apart(tmp_path: Path) -> None:
    """In SQLite five types hold all of ours."""
    url, seen = f"sqlite://{tmp_path}/store", set[str]()
    kinds = [*ColumnType, ListOf(TEXT), ListOf(INT64)]
    for kind in kinds:
        table = StoreTable("one", (Column("k", TEXT), Column("v", kind, nullable=True)), ("k",))
        seen.add(schema.create(table))
    assert len(seen) == len(kinds)
    with open_store(url) as store:
        store.create([StoreTable("one", (Column("k", TEXT), Column("v", ListOf(TEXT))), ("k",))])
        with pytest.raises(StoreError, match="another table one"):
            store.create([StoreTable("one", (Column("k", TEXT), Column("v", ListOf(INT64))), ("k",))])


WRITTEN_BEFORE = (
    'CREATE TABLE "notes" ("owner" TEXT NOT NULL, "at" INTEGER NOT NULL, "text" TEXT, write_ts INTEGER NOT NULL, '
    'dead INTEGER NOT NULL, PRIMARY KEY ("owner", "at" DESC)) WITHOUT ROWID'
)


def test_files_of_the_build_before_are_read_written_and_widened(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "store.json").write_text(json.dumps({"version": 1, "shards": 1}))
    with closing(sqlite3.connect(folder / "shard-00.sqlite")) as file:
        file.execute(WRITTEN_BEFORE)
        file.execute("INSERT INTO notes VALUES ('ann', 1, 'one', 5, 0), ('ann', 2, NULL, 6, 1)")
        file.commit()
    with open_store(f"sqlite://{folder}") as store:
        store.create([OLD])
        store.write(OLD, rows(OLD, note(1, 4), note(2, 6), note(3, 7)))
        assert store.range(OLD, {"owner": "ann"}).to_pylist() == [note(3, 7), note(1, 5, text="one")]
        store.create([NEW])
        found = store.get(NEW, {"owner": "ann", "at": 1})
        assert found == note(1, 5, text="one", tags=None, until=None, more=None)


def test_files_of_a_later_build_are_refused(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text(json.dumps({"version": 2, "shards": 1}))
    with open_store(f"sqlite://{tmp_path}") as store, pytest.raises(StoreError, match="take a newer build") as refused:
        store.count(OLD)
    assert refused.value.code is StoreCode.STORE_MISMATCH
