"""Reading a whole table of the SQLite store: one process for each large file, rows come back as an Arrow stream.

Owns: how a scan is spread over processes. Turning millions of rows into Python objects keeps a core busy, so each file
is read by a process of its own (`python -m oncegate.stores.sqlite.scan FILE NOW_MS`, the declaration on standard
input), at most one a core at a time. Must not write.
"""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import Final

import pyarrow as pa

from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.sqlite import forms
from oncegate.stores.sqlite import statements as sqlite_statements
from oncegate.stores.tables import StoreTable

_ROWS_PER_BATCH: Final = 65_536
_BYTES_IN_PROCESS_MAX: Final = 16 * 2**20
_BATCHES_QUEUED_MAX: Final = 8


def scan(table: StoreTable, files: Sequence[Path], now_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows of the files that are live at ``now_ms``; raises STORE_UNAVAILABLE, when a file cannot be read."""
    large = [file for file in files if _bytes_of(file) > _BYTES_IN_PROCESS_MAX]
    for file in files:
        if file not in large:
            try:
                yield from read_file(table, file, now_ms)
            except sqlite3.Error as error:
                raise _failed(table, error) from error
    queue: Queue[pa.RecordBatch | Exception | None] = Queue(_BATCHES_QUEUED_MAX)
    turns, abandoned = threading.Semaphore(os.cpu_count() or 1), threading.Event()
    for file in large:
        threading.Thread(target=_forward, args=(table, file, now_ms, queue, turns, abandoned), daemon=True).start()
    running = len(large)
    try:
        while running:
            item = queue.get()
            if isinstance(item, Exception):
                raise _failed(table, item) from item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        abandoned.set()
        while running:
            running -= queue.get() is None


def read_file(table: StoreTable, file: Path, now_ms: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows of one file that are live at ``now_ms``, read here; a missing file or table has none."""
    if not file.exists():
        return
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [table.name]).fetchone()
        if known is None:
            return
        cursor = connection.execute(sqlite_statements.select(table), sqlite_statements.live_at(table, now_ms))
        while rows := cursor.fetchmany(_ROWS_PER_BATCH):
            yield forms.rows_of(table, rows)


def _forward(
    table: StoreTable,
    file: Path,
    now_ms: int,
    queue: Queue[pa.RecordBatch | Exception | None],
    turns: threading.Semaphore,
    abandoned: threading.Event,
) -> None:
    command = [sys.executable, "-m", "oncegate.stores.sqlite.scan", str(file), str(now_ms)]
    try:
        with turns, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            if process.stdin is None or process.stdout is None:
                raise OSError("no pipes")
            process.stdin.write(table.to_json().encode())
            process.stdin.close()
            with pa.ipc.open_stream(process.stdout) as stream:
                for batch in stream:
                    if abandoned.is_set():
                        process.kill()
                        break
                    queue.put(batch)
            if process.wait() != 0 and not abandoned.is_set():
                raise OSError(f"the reader of {file} ended with status {process.returncode}")
    except (OSError, pa.ArrowInvalid) as error:
        queue.put(error)
    queue.put(None)


def _failed(table: StoreTable, error: Exception) -> StoreError:
    return StoreError(StoreCode.STORE_UNAVAILABLE, f"scan of {table.name} failed: {error}")


def _bytes_of(file: Path) -> int:
    """Size on disk, the write-ahead log included."""
    return sum(path.stat().st_size for path in (file, Path(f"{file}-wal")) if path.exists())


def _main() -> None:
    # The rows form no cycles, and looking for some among millions of tuples doubles the time.
    gc.disable()
    table = StoreTable.from_json(sys.stdin.read())
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as stream:
        for batch in read_file(table, Path(sys.argv[1]), int(sys.argv[2])):
            stream.write_batch(batch)


if __name__ == "__main__":
    _main()
