"""What the embedded store has on disk beside rows, and which of SQLite's errors pass.

Owns: `store.json` (version, shards), and where each shard is. Must not know tables. Read next:
:mod:`oncegate.stores.sqlite.store`.
"""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from oncegate.flows.directories import flush_directory, make_directory
from oncegate.stores.errors import StoreCode, StoreError

META: Final = "store.json"


def shard_path(directory: Path, shard: int) -> Path:
    """Return the file of a shard."""
    return directory / f"shard-{shard:02d}.sqlite"


def settle_shards(directory: Path, wanted: int) -> int:
    """Return the number of shards of the store in the directory; the first process writes it, once."""
    make_directory(directory)
    meta = directory / META
    if not meta.exists():
        draft = directory / f".{META}.{os.getpid()}"
        with draft.open("w") as file:
            file.write(json.dumps({"version": 1, "shards": wanted}))
            file.flush()
            os.fsync(file.fileno())
        # The link fails if another process was first; use its number then.
        with suppress(FileExistsError):
            os.link(draft, meta)
        draft.unlink()
    # The number of shards decides where rows are: it must be durable before the first row.
    flush_directory(directory)
    return shards_of(directory)


def shards_of(directory: Path) -> int:
    """Return the number of shards; raises STORE_MISMATCH, when there is no store, or one of a later version."""
    meta = directory / META
    try:
        found = json.loads(meta.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(StoreCode.STORE_MISMATCH, f"{directory} holds no store") from None
    if found.get("version") != 1:
        raise StoreError(
            StoreCode.STORE_MISMATCH,
            f"{meta} is of version {found.get('version')}: take a newer build",
        )
    return int(found["shards"])


_TRANSIENT_CODES: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL}
)


def _primary_code(error: sqlite3.OperationalError) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def busy(error: sqlite3.OperationalError) -> bool:
    """Whether somebody else holds the lock."""
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def transient(error: Exception) -> bool:
    """Whether the same statement may succeed later."""
    if isinstance(error, sqlite3.OperationalError):
        return _primary_code(error) in _TRANSIENT_CODES
    return isinstance(error, OSError)
