"""What is the SQLite store's alone: its files may be replaced while it runs, and a process holds one opened store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa

from oncegate.stores.store import drop_process_store, open_store, process_store
from oncegate.stores.tables import WRITE_TS, Column, ColumnType, StoreTable

ROWS = StoreTable("rows", (Column("key", ColumnType.TEXT), Column("value", ColumnType.INT64)), ("key",))


def rows(*cells: tuple[str, int, int]) -> pa.RecordBatch:
    names = ("key", "value", WRITE_TS)
    return pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in cells], schema=ROWS.schema)


def test_file_replaced_under_an_open_store_is_opened_anew_and_written(tmp_path: Path) -> None:
    with open_store(f"sqlite://{tmp_path}/store?shards=1&retry_s=5") as store:
        store.create([ROWS])
        store.write(ROWS, rows(("a", 1, 1)))
        store.close()  # so that the file is whole without its log
        store.write(ROWS, rows(("b", 2, 2)))
        (file,) = (tmp_path / "store").glob("*.sqlite")
        shutil.copy(file, file.with_suffix(".copy"))
        file.with_suffix(".copy").rename(file)
        store.write(ROWS, rows(("c", 3, 3)))
    with open_store(f"sqlite://{tmp_path}/store") as again:
        found = {row["key"] for batch in again.scan(ROWS) for row in batch.to_pylist()}
    assert "c" in found, "written to the file that is there now, not to the one that was removed"


def test_dropped_store_is_opened_anew_at_the_next_use(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store"
    first = process_store(url)
    assert process_store(url) is first
    drop_process_store(url)
    drop_process_store(url)
    second = process_store(url)
    assert second is not first
    drop_process_store(url)
