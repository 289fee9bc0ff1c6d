"""Scans that processes read: all live rows of all files or a refusal, whatever becomes of a reader.

How large a file has to be for a process of its own is turned down here, and such a process gives a few rows at a time.
"""

from __future__ import annotations

import io
import os
import random
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from oncegate.stores import WRITE_TS, Column, ColumnType, StoreTable
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.sqlite import scan as sqlite_scan
from oncegate.stores.sqlite.store import SqliteStore

TABLE = StoreTable(
    "rows",
    (
        Column("k", ColumnType.TEXT),
        Column("text", ColumnType.TEXT),
        Column("until", ColumnType.TIMESTAMP, nullable=True),
    ),
    ("k",),
    expires="until",
)
OTHER = StoreTable("others", (Column("k", ColumnType.TEXT),), ("k",))
SHARDS = 3
NOW_S = 1_000.0
WAIT_S = 10.0
"""Bounds a scan that never ends; one that does takes a second."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    """Rows of which some have ended, over three files."""
    dice = random.Random(1)
    ends = (None, int(NOW_S * 1000), int(NOW_S * 1000) + 1, 5)
    rows = [
        {"k": f"k{at}", "text": "x" * dice.randrange(400), "until": dice.choice(ends), WRITE_TS: at + 1}
        for at in range(500)
    ]
    with SqliteStore(tmp_path / "store", shards=SHARDS) as store:
        store.clock = lambda: NOW_S
        store.create([TABLE, OTHER])
        store.write(TABLE, pa.RecordBatch.from_pylist(rows, schema=TABLE.schema))
        yield store


class Reader:
    """A reader as the scan sees it, in a thread; as the process it ends its stream in order also where it fails."""

    begun: list[Reader]

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        assert command[1:3] == ["-m", "oncegate.stores.sqlite.scan"]
        self.file, self.now_ms = Path(command[3]), int(command[4])
        self.returncode: int | None = None
        self.was_killed = False
        self.stdin, self.declared = io.BytesIO(), b""
        self.stdin.close = self._begin  # type: ignore[method-assign]
        reading, self._writing = os.pipe()
        self.stdout = os.fdopen(reading, "rb")
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.begun.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()

    def _begin(self) -> None:
        self.declared = self.stdin.getvalue()
        self._thread.start()

    def _run(self) -> None:
        table, status = StoreTable.from_json(self.declared.decode()), 1
        with suppress(sqlite3.Error, OSError), open(self._writing, "wb") as out:
            with pa.ipc.new_stream(out, table.schema) as stream:
                for batch in sqlite_scan.read_file(table, self.file, self.now_ms):
                    stream.write_batch(batch)
            status = 0
        self.returncode = status

    def kill(self) -> None:
        self.was_killed = True

    def wait(self) -> int:
        self._thread.join(WAIT_S)
        assert self.returncode is not None
        return self.returncode


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Reader]:
    """The readers that were begun; each gives eight rows at a time."""
    monkeypatch.setattr(sqlite_scan, "_ROWS_PER_BATCH", 8)
    monkeypatch.setattr(subprocess, "Popen", Reader)
    Reader.begun = []
    return Reader.begun


def paths(store: SqliteStore) -> list[Path]:
    return [store._path(shard) for shard in range(SHARDS)]


def within(seconds: float, does: Callable[[], Any]) -> Any:
    """Return what comes of it, or fail: a thread that waits for ever is left behind."""
    ends: list[Any] = []

    def run() -> None:
        try:
            ends.append(does())
        except StoreError as fault:
            ends.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert ends, "it does not end"
    return ends[0]


def keys(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return sorted(key for batch in batches for key in batch.column("k").to_pylist())


@pytest.mark.parametrize("larger", [0, 1, SHARDS])
def test_scan_gives_each_live_row_once_whoever_reads_a_file(
    larger: int, store: SqliteStore, started: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = keys(batch for path in paths(store) for batch in sqlite_scan.read_file(TABLE, path, int(NOW_S * 1000)))
    assert 100 < len(expected) < 400, "some have ended"
    sizes = sorted(map(sqlite_scan._bytes_of, paths(store)), reverse=True)
    for at, path in enumerate(paths(store)):
        assert sizes[at] > 0, path
    # One that is as large as the bound is read here.
    least = {0: sizes[0], 1: sizes[1], SHARDS: 0}[larger]
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", least)
    by_processes = sum(size > least for size in sizes)
    assert within(WAIT_S, lambda: keys(store.scan(TABLE))) == expected
    assert len(started) == by_processes


def damage(store: SqliteStore, shard: int) -> None:
    """Overwrite the last page of a file, which holds rows."""
    store.close()
    path = paths(store)[shard]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    data[-page:] = random.Random(2).randbytes(page)
    path.write_bytes(data)


@pytest.mark.parametrize("damaged", range(SHARDS))
@pytest.mark.parametrize("by_process", [False, True])
def test_damaged_file_is_never_scanned_as_if_it_were_whole(
    by_process: bool, damaged: int, store: SqliteStore, started: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader closes its stream in order also where it fails: only its status tells."""
    damage(store, damaged)
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", 0 if by_process else 1 << 30)
    refused = within(WAIT_S, lambda: keys(store.scan(TABLE)))
    assert isinstance(refused, StoreError), refused
    assert refused.code is StoreCode.STORE_UNAVAILABLE
    assert len(started) == SHARDS * by_process


def test_process_reads_a_file_and_its_status_says_whether_to_the_end(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", 0)
    file, now_ms = paths(store)[0], int(NOW_S * 1000)
    assert within(60, lambda: keys(sqlite_scan.scan(TABLE, [file], now_ms))) == keys(
        sqlite_scan.read_file(TABLE, file, now_ms)
    )
    damage(store, 0)
    refused = within(60, lambda: keys(sqlite_scan.scan(TABLE, [file], now_ms)))
    assert isinstance(refused, StoreError)
    assert "status 1" in str(refused)


def test_reader_that_cannot_be_started_or_dies_at_once_is_a_refusal(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", 0)
    for executable in ("/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", executable)
        refused = within(WAIT_S, lambda: keys(store.scan(TABLE)))
        assert isinstance(refused, StoreError), executable
        assert refused.code is StoreCode.STORE_UNAVAILABLE


def test_scan_that_nobody_reads_to_its_end_leaves_no_reader_behind(
    store: SqliteStore, started: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", 0)
    monkeypatch.setattr(sqlite_scan, "_BATCHES_QUEUED_MAX", 1)
    scan = store.scan(TABLE)
    assert within(WAIT_S, lambda: next(scan)).num_rows == 8
    within(WAIT_S, lambda: scan.close() or True)  # type: ignore[attr-defined]
    assert len(started) == SHARDS
    assert all(reader.was_killed for reader in started)
    assert all(reader.returncode is not None for reader in started)


def test_table_or_file_that_is_not_there_has_no_rows(
    store: SqliteStore, started: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_scan, "_BYTES_IN_PROCESS_MAX", 0)
    nowhere = StoreTable("nowhere", OTHER.columns, OTHER.partition_key)
    missing = paths(store)[0].with_name("shard-99.sqlite")
    assert within(WAIT_S, lambda: keys(sqlite_scan.scan(nowhere, [missing, paths(store)[0]], 1))) == []
    assert not missing.exists(), "a scan writes nothing"
