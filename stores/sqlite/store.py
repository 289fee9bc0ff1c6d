"""The embedded store: SQLite files sharded by partition, write-ahead logged, for one machine.

Owns: files, transactions, locks and their retries. Must not know Spark or flows. Read next:
:mod:`oncegate.stores.sqlite.statements`, :mod:`oncegate.stores.sqlite.forms`, :mod:`oncegate.stores.sqlite.scan`.

A directory holds `store.json` and one file a shard. Several processes may write at once: each
writes a shard in one transaction, and takes first a shard that nobody else is writing.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar
from urllib.parse import SplitResult, unquote

import numpy as np
import pyarrow as pa

from oncegate.stores import layout, limits
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.ranges import slices
from oncegate.stores.retry import Retry
from oncegate.stores.sqlite import files, forms, schema
from oncegate.stores.sqlite import scan as sqlite_scan
from oncegate.stores.sqlite import statements as sqlite_statements
from oncegate.stores.store import RANGE_ROWS_DEFAULT, Store, Value
from oncegate.stores.tables import StoreTable

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
        self.clock: Callable[[], float] = time.time

    @classmethod
    def from_url(cls, parts: SplitResult, options: Mapping[str, int]) -> Self:
        """Return the store of an `sqlite:///directory` URL."""
        if parts.netloc or not parts.path.startswith("/") or set(options) - {"shards", "retry_s"}:
            raise StoreError(StoreCode.BAD_OPTION, "use sqlite:///absolute/directory, options shards and retry_s")
        shards, retry_s = options.get("shards", _SHARDS_DEFAULT), options.get("retry_s", _RETRY_S_DEFAULT)
        return cls(Path(unquote(parts.path)), shards=shards, retry_s=retry_s)

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create missing tables and nullable columns in every shard; see `Store.create`."""
        self._settled = self._retrying(partial(files.settle_shards, self._directory, self._shards_wanted))
        for table in tables:
            for shard in range(self._shards):
                self._retrying(partial(self._create_one, shard, table))

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows; see `Store.write`."""
        self._upsert(table, rows, table.schema)

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Write some cells of rows; see `Store.update`."""
        self._upsert(table, rows, table.update_schema(rows.schema.names))

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows; see `Store.delete`."""
        sifted = limits.sift(table, keys, table.key_schema)
        self._run(table, sqlite_statements.delete(table), sifted.rows)
        sifted.raise_rejected()

    def get(self, table: StoreTable, key: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return one live row; see `Store.get`."""
        values = forms.key_values(table, dict(zip(table.key, table.key_values(key), strict=True)))
        row = self._read(self._shard_of(table, key), table, sqlite_statements.select_one(table), values)
        return forms.row_of(table, row[0]) if row else None

    def range(
        self,
        table: StoreTable,
        prefix: Mapping[str, Value],
        start: Value = None,
        stop: Value = None,
        *,
        after: Mapping[str, Value] | None = None,
        limit: int = RANGE_ROWS_DEFAULT,
        reverse: bool = False,
    ) -> pa.Table:
        """Return rows of one partition in order; see `Store.range`."""
        rows: list[tuple[Any, ...]] = []
        for one in slices(table, prefix, start, stop, after, limit=limit, reverse=reverse):
            bound = [forms.key_values(table, {name: value})[0] for name, _, value in one.conditions]
            query = sqlite_statements.select_slice(table, one)
            rows += self._read(self._shard_of(table, one.equal), table, query, [*bound, limit - len(rows)])
            if len(rows) >= limit:
                break
        return pa.Table.from_batches([forms.rows_of(table, rows)] if rows else [], table.schema)

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows; see `Store.scan`. Large files are read by processes of their own, at once."""
        return sqlite_scan.scan(table, [self._path(shard) for shard in range(self._shards)], self._now_ms())

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows; see `Store.count`."""
        return sum(self._count_one(shard, table) for shard in range(self._shards))

    def tables(self) -> list[str]:
        """See `Store.tables`."""
        if not (self._directory / files.META).exists():
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

    def _upsert(self, table: StoreTable, rows: pa.RecordBatch, wanted: pa.Schema) -> None:
        sifted = limits.sift(table, rows, wanted)
        fit = sifted.rows
        # Binding None costs several times what other values do: it is looked up among the adapters each time.
        absent = [name for name, column in zip(fit.schema.names, fit.columns, strict=True) if _is_null(column)]
        statement = sqlite_statements.upsert(table, absent, wanted.names[:-1])
        self._run(table, statement, fit.drop_columns(absent) if absent else fit)
        sifted.raise_rejected()

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
            busy = [(shard, piece) for shard, piece in waiting if not self._try_write(table, shard, statement, piece)]
            if len(busy) == len(waiting):
                shard, piece = busy.pop()
                self._retrying(partial(self._write_one, table, shard, statement, piece))
            waiting = busy

    def _try_write(self, table: StoreTable, shard: int, statement: str, rows: pa.RecordBatch) -> bool:
        try:
            self._write_one(table, shard, statement, rows, wait_ms=0)
        except sqlite3.OperationalError as error:
            if files.transient(error):
                return False
            raise
        return True

    @property
    def _shards(self) -> int:
        if not self._settled:
            self._settled = self._retrying(partial(files.shards_of, self._directory))
        return self._settled

    def _shard_of(self, table: StoreTable, row: Mapping[str, Value]) -> int:
        return int(layout.shard_of(table, forms.with_key(table, row), self._shards)[0])

    def _write_one(
        self, table: StoreTable, shard: int, statement: str, rows: pa.RecordBatch, *, wait_ms: int = _BUSY_WAIT_MS
    ) -> None:
        given = forms.parameters(table, rows)
        with self._transaction(shard, wait_ms) as connection:
            connection.executemany(statement, given)

    def _read(self, shard: int, table: StoreTable, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        given = [*sqlite_statements.live_at(table, self._now_ms()), *values]
        return self._retrying(lambda: self._connection(shard).execute(query, given).fetchall())

    def _now_ms(self) -> int:
        return int(self.clock() * 1000)

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
        with self._transaction(shard) as connection:
            schema.settle(connection, table, str(self._path(shard)))

    def _count_one(self, shard: int, table: StoreTable) -> int:
        return int(self._read(shard, table, sqlite_statements.count(table), [])[0][0])

    def _connection(self, shard: int) -> sqlite3.Connection:
        if shard not in self._open:
            connection = sqlite3.connect(self._path(shard), isolation_level=None, timeout=_BUSY_WAIT_MS / 1000)
            for setting in (*_SETTINGS, f"PRAGMA cache_size = -{_CACHE_KIB // self._shards}"):
                connection.execute(setting)
            self._open[shard] = connection
        return self._open[shard]

    def _path(self, shard: int) -> Path:
        return files.shard_path(self._directory, shard)

    def _retrying(self, action: Callable[[], T]) -> T:
        def attempt() -> T:
            try:
                return action()
            except (OSError, sqlite3.OperationalError) as error:
                if isinstance(error, OSError) or not files.busy(error):
                    # A replaced file, or a disk that failed for a while, needs a new descriptor.
                    self.close()
                raise

        try:
            return self._retry.run(attempt, files.transient)
        except (OSError, sqlite3.OperationalError) as error:
            if files.transient(error):
                raise StoreError(StoreCode.STORE_UNAVAILABLE, f"{self._directory}: {error}") from error
            raise


def _is_null(column: pa.Array) -> bool:
    return bool(0 < len(column) == column.null_count)
