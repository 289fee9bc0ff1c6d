"""The embedded store: SQLite files sharded by partition, write-ahead logged, for one machine.

Owns: files, transactions, locks and their retries. Must not know Spark or flows. Read next:
:mod:`oncegate.stores.sqlite.statements`, :mod:`oncegate.stores.sqlite.scan`.

A directory holds `store.json` (version, shards) and one file a shard. Several processes may write at once: each
writes a shard in one transaction, and takes first a shard that nobody else is writing.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self, TypeVar
from urllib.parse import SplitResult, unquote

import numpy as np
import pyarrow as pa

from oncegate.flows.directories import flush_directory, make_directory
from oncegate.stores import layout, limits
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.retry import Retry
from oncegate.stores.sqlite import scan as sqlite_scan
from oncegate.stores.sqlite import statements as sqlite_statements
from oncegate.stores.store import Store, Value
from oncegate.stores.tables import WRITE_TS, StoreTable

T = TypeVar("T")

_SHARDS_DEFAULT: Final = 4
_SHARDS_MAX: Final = 64
_RETRY_S_DEFAULT: Final = 120
_ROWS_PER_TRANSACTION_MAX: Final = 100_000
_BUSY_WAIT_MS: Final = 2_000
_CACHE_KIB: Final = 262_144
_SETTINGS: Final = (
    "PRAGMA page_size = 8192",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 8000",
)
_META: Final = "store.json"


class SqliteStore(Store):
    """A `Store` in a directory, which `create` makes; ``shards``, the number of files, is only used then.

    Raises BAD_OPTION. Without a store in the directory all but `create` and `tables` raise STORE_MISMATCH.
    """

    def __init__(self, directory: Path, *, shards: int = _SHARDS_DEFAULT, retry_s: float = _RETRY_S_DEFAULT) -> None:
        if not 1 <= shards <= _SHARDS_MAX:
            raise StoreError(StoreCode.BAD_OPTION, f"shards must be 1..{_SHARDS_MAX}")
        self._directory = directory
        self._retry = Retry(retry_s)
        self._open: dict[int, sqlite3.Connection] = {}
        self._shards_wanted = shards
        self._settled = 0

    @classmethod
    def from_url(cls, parts: SplitResult, options: Mapping[str, int]) -> Self:
        """Return the store of an `sqlite:///directory` URL."""
        if parts.netloc or not parts.path.startswith("/") or set(options) - {"shards", "retry_s"}:
            raise StoreError(StoreCode.BAD_OPTION, "use sqlite:///absolute/directory, options shards and retry_s")
        shards, retry_s = options.get("shards", _SHARDS_DEFAULT), options.get("retry_s", _RETRY_S_DEFAULT)
        return cls(Path(unquote(parts.path)), shards=shards, retry_s=retry_s)

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create missing tables in every shard; see `Store.create`."""
        self._settled = self._retrying(partial(_settle_shards, self._directory, self._shards_wanted))
        for table in tables:
            for shard in range(self._shards):
                self._retrying(partial(self._create_one, shard, table))

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows; see `Store.write`."""
        sifted = limits.sift(table, rows, table.schema)
        fit = sifted.rows
        # Binding None costs several times what other values do: it is looked up among the adapters each time.
        absent = [name for name, column in zip(fit.schema.names, fit.columns, strict=True) if _is_null(column)]
        self._run(table, sqlite_statements.upsert(table, absent), fit.drop_columns(absent) if absent else fit)
        sifted.raise_rejected()

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows; see `Store.delete`."""
        sifted = limits.sift(table, keys, table.key_schema)
        self._run(table, sqlite_statements.delete(table), sifted.rows)
        sifted.raise_rejected()

    def get(self, table: StoreTable, key: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return one live row; see `Store.get`."""
        query, values = sqlite_statements.select_one(table), table.key_values(key)
        shard = self._shard_of(table, key)
        row = self._retrying(lambda: self._connection(shard).execute(query, values).fetchone())
        return None if row is None else dict(zip(table.schema.names, row, strict=True))

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows; see `Store.scan`. Large files are read by processes of their own, at once."""
        return sqlite_scan.scan(table, [self._path(shard) for shard in range(self._shards)])

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows; see `Store.count`."""
        return sum(self._retrying(partial(self._count_one, shard, table)) for shard in range(self._shards))

    def tables(self) -> list[str]:
        """See `Store.tables`."""
        if not (self._directory / _META).exists():
            return []
        there = [shard for shard in range(self._shards) if self._path(shard).exists()]
        return sorted({name for shard in there for name in self._retrying(partial(self._tables_one, shard))})

    def replace(self, table: StoreTable, before: Mapping[str, Value] | None, row: Mapping[str, Value]) -> bool:
        """See `Store.replace`."""
        shard = self._shard_of(table, row)
        return self._retrying(partial(self._replace_one, shard, table, before, row))

    def clear(self, tables: Iterable[str]) -> None:
        """See `Store.clear`."""
        for name in tables:
            for shard in range(self._shards):
                self._retrying(partial(self._clear_one, shard, name))

    def durability(self) -> str:
        """See `Store.durability`."""
        return f"sqlite {sqlite3.sqlite_version}, {self._shards} shards, WAL, synchronous=FULL: survives power loss"

    def close(self) -> None:
        """Close all files; idempotent."""
        while self._open:
            self._open.popitem()[1].close()

    def _run(self, table: StoreTable, statement: str, rows: pa.RecordBatch) -> None:
        ordered = layout.sort_by_key(table, rows)
        shards = layout.shard_of(table, ordered, self._shards)
        waiting: list[tuple[int, pa.RecordBatch]] = []
        # Processes start at different shards, so that they meet as seldom as possible.
        for shard in np.roll(np.unique(shards), -os.getpid()).tolist():
            mine = ordered.take(pa.array(np.flatnonzero(shards == shard)))
            pieces = range(0, mine.num_rows, _ROWS_PER_TRANSACTION_MAX)
            waiting.extend((shard, mine.slice(at, _ROWS_PER_TRANSACTION_MAX)) for at in pieces)
        while waiting:
            busy = [(shard, piece) for shard, piece in waiting if not self._try_write(shard, statement, piece)]
            if len(busy) == len(waiting):
                shard, piece = busy.pop()
                self._retrying(partial(self._write_one, shard, statement, piece))
            waiting = busy

    def _try_write(self, shard: int, statement: str, rows: pa.RecordBatch) -> bool:
        try:
            self._write_one(shard, statement, rows, wait_ms=0)
        except sqlite3.OperationalError as error:
            if _transient(error):
                return False
            raise
        return True

    @property
    def _shards(self) -> int:
        if not self._settled:
            self._settled = self._retrying(partial(_shards_of, self._directory))
        return self._settled

    def _shard_of(self, table: StoreTable, row: Mapping[str, Value]) -> int:
        one = pa.RecordBatch.from_pylist([{**row, WRITE_TS: 1}], schema=table.key_schema)
        return int(layout.shard_of(table, one, self._shards)[0])

    def _write_one(self, shard: int, statement: str, rows: pa.RecordBatch, *, wait_ms: int = _BUSY_WAIT_MS) -> None:
        with self._transaction(shard, wait_ms) as connection:
            connection.executemany(statement, zip(*map(_values, rows.columns), strict=True))

    def _replace_one(
        self, shard: int, table: StoreTable, before: Mapping[str, Value] | None, row: Mapping[str, Value]
    ) -> bool:
        columns = [column.name for column in table.columns]
        with self._transaction(shard) as connection:
            key = [row[name] for name in table.key]
            found = connection.execute(sqlite_statements.select_one(table), key).fetchone()
            if (found and found[:-1]) != (before and tuple(before[name] for name in columns)):
                return False
            connection.execute(sqlite_statements.replace(table), [row[name] for name in columns])
        return True

    def _tables_one(self, shard: int) -> list[str]:
        return [name for (name,) in self._connection(shard).execute(sqlite_statements.TABLES)]

    def _clear_one(self, shard: int, name: str) -> None:
        with self._transaction(shard) as connection:
            if name in self._tables_one(shard):
                connection.execute(sqlite_statements.clear(name))

    @contextmanager
    def _transaction(self, shard: int, wait_ms: int = _BUSY_WAIT_MS) -> Iterator[sqlite3.Connection]:
        connection = self._connection(shard)
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _create_one(self, shard: int, table: StoreTable) -> None:
        wanted = sqlite_statements.create(table)
        with self._transaction(shard) as connection:
            found = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [table.name]).fetchone()
            if found is None:
                connection.execute(wanted)
            elif found[0] != wanted:
                raise StoreError(StoreCode.STORE_MISMATCH, f"{self._path(shard)} holds another table {table.name}")

    def _count_one(self, shard: int, table: StoreTable) -> int:
        return int(self._connection(shard).execute(sqlite_statements.count(table)).fetchone()[0])

    def _connection(self, shard: int) -> sqlite3.Connection:
        if shard not in self._open:
            connection = sqlite3.connect(self._path(shard), isolation_level=None, timeout=_BUSY_WAIT_MS / 1000)
            for setting in (*_SETTINGS, f"PRAGMA cache_size = -{_CACHE_KIB // self._shards}"):
                connection.execute(setting)
            self._open[shard] = connection
        return self._open[shard]

    def _path(self, shard: int) -> Path:
        return self._directory / f"shard-{shard:02d}.sqlite"

    def _retrying(self, action: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return action()
            except (OSError, sqlite3.OperationalError) as error:
                if isinstance(error, OSError) or not _busy(error):
                    # A replaced file, or a disk that failed for a while, needs a new descriptor.
                    self.close()
                raise

        try:
            return self._retry.run(attempt, _transient)
        except (OSError, sqlite3.OperationalError) as error:
            if _transient(error):
                raise StoreError(StoreCode.STORE_UNAVAILABLE, f"{self._directory}: {error}") from error
            raise


def _settle_shards(directory: Path, wanted: int) -> int:
    """The number of shards of the store in the directory; the first process writes it, once."""
    make_directory(directory)
    meta = directory / _META
    if not meta.exists():
        draft = directory / f".{_META}.{os.getpid()}"
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
    return _shards_of(directory)


def _shards_of(directory: Path) -> int:
    meta = directory / _META
    try:
        found = json.loads(meta.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(StoreCode.STORE_MISMATCH, f"{directory} holds no store") from None
    if found.get("version") != 1:
        raise StoreError(StoreCode.STORE_MISMATCH, f"{meta} is of an unknown version")
    return int(found["shards"])


def _is_null(column: pa.Array) -> bool:
    return bool(0 < len(column) == column.null_count)


def _values(column: pa.Array) -> list[Value | None]:
    if pa.types.is_int64(column.type):
        return np.asarray(column).tolist()  # type: ignore[no-any-return]
    # Texts repeat within a batch: make each Python object once.
    coded = column.dictionary_encode(null_encoding="encode")
    distinct = coded.dictionary.to_pylist()
    return [distinct[at] for at in np.asarray(coded.indices).tolist()]


_TRANSIENT_CODES: Final = frozenset(
    {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN}
    | {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PROTOCOL}
)


def _primary_code(error: sqlite3.OperationalError) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _busy(error: sqlite3.OperationalError) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _transient(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return _primary_code(error) in _TRANSIENT_CODES
    return isinstance(error, OSError)
