"""The interface of a keyed-row store, and how one is chosen by URL.

Owns: the contract that every store keeps (tests/spark/test_store_conformance.py) and the URL forms. Must not know how a
store works inside. Read next: `sqlite`, `cassandra`.

The contract, row by row: the write or deletion with the largest timestamp wins; of equal timestamps a deletion
beats a write, and of two writes the larger value wins, column by column, compared as unsigned bytes (`cells`). So the
outcome depends on the set of writes alone, not on their order, their number or who sent them. A deletion is
remembered: an older write that arrives later stays dead. A null overwrites what is older, and beats a value of its own
timestamp; in a table with the item's `commit` in its key, whose rows never change, it is no value and loses to every
other. In a table declared partial the same holds cell by cell, and a row's `write_ts` is that of its latest write.

A row whose table names a column `expires`, and whose time there has come, is not there for any reader. It still wins
and loses as before: so an older write does not raise the dead, and the end does not depend on when a row was written.
Two writes of one key at one timestamp, with other values, have to come in one call where rows expire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeAlias
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import StoreTable

Value: TypeAlias = Any
"""A cell as Python sees it (`column_types`), None where it is null."""
RANGE_ROWS_DEFAULT: Final = 1_000


class Store(Protocol):
    """A keyed-row store. Not for use by several threads, nor across a fork.

    Attributes:
        clock: seconds since 1970 as readers see them; tests replace it.
    """

    clock: Callable[[], float]

    def create(self, tables: Iterable[StoreTable]) -> None:
        """Create the tables that are missing, and their nullable columns that are missing; idempotent.

        Changes no schema where nothing is missing. Jobs that do not know an added column go on meanwhile.

        Raises:
            StoreError: STORE_MISMATCH, when a table of that name exists with other columns or keys; STORE_REFUSED, when
                something is missing and this user may not create it.
        """
        ...

    def write(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Upsert rows of `table.schema`. When it returns, all are durable (see `durability`); idempotent.

        Raises:
            BadRows: the store does not take some rows for their own content (`limits`, or what a server refuses
                beyond); all others are durable. The same rows are refused when they are written again.
            StoreError: BAD_ROWS, when the batch as a whole does not fit, and nothing is written; STORE_UNAVAILABLE,
                when the deadline passed: some rows may be written.
        """
        ...

    def update(self, table: StoreTable, rows: pa.RecordBatch) -> None:
        """Write the cells of ``rows``, of `table.update_schema`, each at its row's timestamp, no others; idempotent.

        A row that is not there comes to be. For tables declared partial.

        Raises:
            StoreError: as `write`; BAD_ROWS, when the table is not partial, or no column outside the key is named.
        """
        ...

    def delete(self, table: StoreTable, keys: pa.RecordBatch) -> None:
        """Delete rows by keys of `table.key_schema`, each at its own timestamp; idempotent.

        Raises:
            StoreError: as `write`.
        """
        ...

    def get(self, table: StoreTable, key: Mapping[str, Value]) -> dict[str, Value] | None:
        """Return the live row at a whole primary key, `write_ts` included, or None; lists and maps as Python's."""
        ...

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
        """Return live rows of one partition in the table's order, rows of `table.schema`.

        Args:
            table: that the rows are of.
            prefix: values of the partition key, and of the first clustering columns, if rows are to agree in them.
            start: smallest value of the key's next column; None: no bound.
            stop: value of that column that is too large; None: no bound.
            after: last row of the call before, or its key: go on behind it.
            limit: of rows, 1 .. 100,000; as many come if there are as many.
            reverse: against the table's order.

        Raises:
            StoreError: BAD_ROWS, for columns or values that are not the key's; BAD_OPTION, for the limit.
        """
        ...

    def scan(self, table: StoreTable) -> Iterator[pa.RecordBatch]:
        """Yield all live rows as batches of `table.schema`, in no promised order. For verification."""
        ...

    def count(self, table: StoreTable) -> int:
        """Return the number of live rows."""
        ...

    def tables(self) -> list[str]:
        """Return the names of all tables there are; none where there is no store. Creates nothing."""
        ...

    def replace(self, table: StoreTable, before: Mapping[str, Value] | None, row: Mapping[str, Value]) -> bool:
        """Write a row if its values are those of ``before`` (None: if it is absent), in one atomic step.

        Not for rows that `write` writes: the two do not see each other's timestamps. After False, and after an error,
        look: an earlier attempt of this very call may have written the row.

        Raises:
            StoreError: STORE_UNAVAILABLE.
        """
        ...

    def clear(self, tables: Iterable[str]) -> None:
        """Delete all rows of the tables with these names, whatever their timestamps; idempotent.

        Raises:
            StoreError: STORE_UNAVAILABLE, when the deadline passed: some rows may be left.
        """
        ...

    def durability(self) -> str:
        """Return one line that says what an acknowledged write survives in this store."""
        ...

    def close(self) -> None:
        """Release connections; idempotent."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_store(url: str) -> Store:
    """Return the store that ``url`` names.

    | form | options, as a query string |
    |---|---|
    | `sqlite:///absolute/directory` | `shards` (1..64, fixed when first created), `retry_s` |
    | `cassandra://host[:port][,host…]/keyspace` | `stores.cassandra.options.CassandraOptions`, docs/cassandra.md |

    `retry_s` bounds how long one call is retried while the store does not answer. Nothing is connected yet for
    Cassandra, nothing is created for SQLite. A URL never holds a secret: one with a password is refused. The store's
    timestamps are those that it compares: whoever writes or reads rows of a flow opens it by
    `oncegate.stores.claimed.claimed_store`.

    Raises:
        StoreError: BAD_OPTION, when the URL is none of these; it names the option.
    """
    # Import a store's library only when that store is used.
    if url.startswith("cassandra://"):
        from oncegate.stores.cassandra.store import CassandraStore

        return CassandraStore.from_url(url)
    if not url.startswith("sqlite://"):
        raise StoreError(StoreCode.BAD_OPTION, "a store URL starts with sqlite:// or cassandra://")
    from oncegate.stores.sqlite.store import SqliteStore

    parts = urlsplit(url)
    try:
        options = {
            name: int(values[-1]) for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
        }
    except ValueError as error:
        raise StoreError(StoreCode.BAD_OPTION, "options of a store URL are name=integer pairs") from error
    return SqliteStore.from_url(parts, options)
