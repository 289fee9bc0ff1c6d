"""A derivation as one SQL text over the items of a batch, run by DuckDB in the process of the task.

Owns: which texts are refused, and how a result becomes rows of a table. Must not know a store. Read next: `aggregates`.

DuckDB runs on one thread, in UTC, without files, network or settings, so that a batch gives the same rows each time. A
text that asks for a clock, a random number, a sample or anything but the items is refused before the job starts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.compaction import AnyStore, Partials
from oncegate.spark_sink.derivation import Change, Delete, FlowBatch, Upsert
from oncegate.stores.claimed import ClaimedStore
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

_COMMIT: Final = "commit"
_DELETED: Final = "deleted"
_MERGES: Final = ("sum", "min", "max")
_TABLE_FUNCTIONS: Final = {"unnest", "range", "generate_series", "json_each", "json_tree"}
_NAMES: Final = {
    *("current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"),
    *("current_catalog", "current_schema"),
}
"""Functions that are called without parentheses, and so are read as names of columns."""
_UNMARKED: Final = _NAMES | {
    *("current_localtime", "current_localtimestamp", "age", "ago", "pg_conf_load_time", "pg_postmaster_start_time"),
    *("pg_get_viewdef", "pg_get_constraintdef", "format_type", "reservoir_quantile", "version"),
}
"""Those that DuckDB's catalogue does not mark, or not in each of their forms; macros and a sample among them."""
_ITEM_FAULTS: Final = (
    *(duckdb.DataError, duckdb.InvalidInputException, duckdb.NotImplementedException, duckdb.SyntaxException),
    *(duckdb.ConstraintException, duckdb.InvalidTypeException),
)
"""What a value of an item may cause: the text itself was run over no items before. Not memory, files or faults of its
own."""
_SETTINGS: Final = (
    "SET threads = 1",
    "SET python_enable_replacements = false",
    "SET TimeZone = 'UTC'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


@dataclass(frozen=True, slots=True)
class ItemRows:
    """A derivation whose rows derive from single items: the newest item of a key wins.

    Attributes:
        table: the columns of the result; `commit` is one of them only if it is in the key.
        text: the query.
    """

    table: StoreTable
    text: str

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (self.table,)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the rows of the result, and deletions where its column `deleted` is true."""
        found = _run(self.text, batch.items)
        found = found.append_column(WRITE_TS, found[_COMMIT])
        dead = np.asarray(found[_DELETED]) if _DELETED in found.column_names else np.zeros(found.num_rows, np.bool_)
        for rows in _fit(found.filter(pa.array(dead)), self.table.key_schema):
            yield Delete(self.table, rows)
        for rows in _fit(found.filter(pa.array(~dead)), self.table.schema):
            yield Upsert(self.table, rows)


@dataclass(frozen=True, slots=True)
class BatchRows:
    """A derivation whose rows are partials of a batch, merged when they are read, compacted behind the job.

    Attributes:
        partials: what is stored.
        text: the query.
    """

    partials: Partials
    text: str

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (self.partials.table,)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the rows of the result with the batch's number."""
        found = _run(self.text, batch.items)
        for name, number in (("batch", batch.number), (WRITE_TS, batch.last_commit)):
            found = found.append_column(name, pa.array(np.full(found.num_rows, number)))
        for rows in _fit(found, self.partials.table.schema):
            yield Upsert(self.partials.table, rows)

    def read(self, store: AnyStore) -> pa.Table:
        """Return one row for each key, in key order, values of all batches merged."""
        return self.partials.read(store).drop_columns(["through", "batches"])

    def maintain(self, store: ClaimedStore, finished: int) -> None:
        """Compact the partials of batches up to ``finished``; see `jobs.maintenance`."""
        self.partials.compact(store, finished)


def item_rows(name: str, text: str, key: Sequence[str]) -> ItemRows:
    """Return the derivation that ``text`` is: each row of its result derives from one item.

    Args:
        name: of the table.
        text: one SELECT from `items`, whose columns are `commit`, `key`, `value` (JSON text, null = deleted),
            `time_ms`, `client_id`, `sequence` and `traceparent`. Its result has `commit`, that of the item; where it
            has `deleted`, a boolean, true deletes the row of the key. Other columns are whole numbers, texts or blobs.
        key: columns of the table's key; the first one chooses the partition.

    Raises:
        StoreError: BAD_TABLE, when the text is no such query, is not deterministic, or does not fit the key.
    """
    columns = _columns(name, text)
    if _COMMIT not in columns:
        raise _bad(name, "a row of an item has the item's commit; rows of a whole batch are made by batch_rows")
    columns.pop(_DELETED, None)
    kept = [column for column in columns.values() if column is not None and (column.name != _COMMIT or _COMMIT in key)]
    return ItemRows(StoreTable(name, tuple(kept), tuple(key[:1]), tuple(map(Clustering, key[1:]))), text)


def batch_rows(name: str, text: str, key: Sequence[str], *, merge: Mapping[str, str] | None = None) -> BatchRows:
    """Return the derivation that ``text`` is: its result summarises the items of one batch, one row a key.

    Args:
        name: of the table.
        text: as for `item_rows`, without `commit` and `deleted`.
        key: columns by which it groups; the first one chooses the partition.
        merge: how values of several batches become one: `sum` (whole numbers; the default), `min` or `max`.

    Raises:
        StoreError: BAD_TABLE, as for `item_rows`, or when a text would have to be added.
    """
    columns = _columns(name, text)
    values = tuple(column for column in columns.values() if column is not None and column.name not in key)
    how = {column.name: (merge or {}).get(column.name, "sum") for column in values}
    if {_COMMIT, _DELETED} & set(columns) or not set(key) <= set(columns) or not set(merge or {}) <= set(how):
        raise _bad(name, "key and merge name columns of the result, which has neither commit nor deleted")
    if any(how[column.name] == "sum" and column.type is not ColumnType.INT64 for column in values):
        raise _bad(name, "only whole numbers are added; merge other columns by min or max")
    if not set(how.values()) <= set(_MERGES):
        raise _bad(name, f"merge is one of {', '.join(_MERGES)}")
    by = tuple(column for name in key if (column := columns[name]) is not None)
    return BatchRows(Partials(name, by, values, partial(_merged, tuple(how.items()))), text)


def _merged(how: tuple[tuple[str, str], ...], rows: pa.Table, key: list[str]) -> pa.Table:
    found = rows.group_by(key, use_threads=False).aggregate(list(how))
    return found.rename_columns([*key, *(name for name, _ in how)])


def _columns(name: str, text: str) -> dict[str, Column | None]:
    """The columns of the result by name, checked; None for `deleted`."""
    try:
        _check(name, text)
        schema = _result(text, PLAIN_SCHEMA.empty_table()).schema
    except duckdb.Error as error:
        raise _bad(name, str(error)) from error
    found: dict[str, Column | None] = {}
    for field in schema:
        if field.name in found:
            raise _bad(name, f"two columns of the result are named {field.name}")
        if field.name == _DELETED and pa.types.is_boolean(field.type):
            found[field.name] = None
        elif pa.types.is_integer(field.type) or (pa.types.is_decimal(field.type) and field.type.scale == 0):
            found[field.name] = Column(field.name, ColumnType.INT64)
        elif pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            found[field.name] = Column(field.name, ColumnType.TEXT)
        elif pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            found[field.name] = Column(field.name, ColumnType.BLOB)
        else:
            raise _bad(name, f"{field.name} is {field.type}: cast it to bigint, varchar or blob")
    return found


def _check(name: str, text: str) -> None:
    [(told,)] = _engine().execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    parsed = json.loads(told)
    if parsed["error"] or len(parsed["statements"]) != 1:
        raise _bad(name, parsed.get("error_message") or "one SELECT is wanted")
    nodes = [*_nodes(parsed["statements"][0])]
    named = (one["key"].lower() for node in nodes for one in (node.get("cte_map") or {}).get("map", ()))
    tables = {"items", *named}
    for node in nodes:
        called = str(node.get("function_name", "")).lower()
        names = node.get("column_names") or [""]
        if called in _changing() or (len(names) == 1 and names[0].lower() in _NAMES):
            raise _bad(name, f"{called or names[0]} has another value each time; an item has time_ms and commit")
        if node.get("sample") is not None:
            raise _bad(name, "a sample is another one each time")
        kind = node.get("type")
        if (
            (kind == "TABLE_FUNCTION" and node["function"]["function_name"].lower() not in _TABLE_FUNCTIONS)
            or (kind == "BASE_TABLE" and (node["schema_name"] or node["table_name"].lower() not in tables))
            or (kind == "SHOW_REF" and node["show_type"] == "SHOW_SPECIAL")
        ):
            raise _bad(name, "a query reads the table items alone")


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _nodes(inner)


@lru_cache(maxsize=1)
def _changing() -> frozenset[str]:
    """The functions that DuckDB does not take for constant."""
    asked = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
    return frozenset(name for (name,) in _engine().execute(asked).fetchall()) | _UNMARKED


def _run(text: str, items: pa.RecordBatch) -> pa.Table:
    """The result for these items; raises ValueError for what is in an item, so that the item is found and rejected."""
    try:
        return _result(text, pa.Table.from_batches([items]))
    except _ITEM_FAULTS as error:
        raise ValueError(str(error)) from error


def _result(text: str, items: pa.Table) -> pa.Table:
    cursor = _engine().cursor()
    try:
        cursor.register("items", items)
        return cursor.sql(text).to_arrow_table()
    finally:
        cursor.close()


def _fit(found: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    """The rows with the columns of ``schema``; raises ValueError where one is null, again for the item's sake."""
    null = [name for name in schema.names if found[name].null_count]
    if null:
        raise ValueError(f"{', '.join(null)} is null")
    batches: list[pa.RecordBatch] = found.select(schema.names).cast(schema).combine_chunks().to_batches()
    return batches


def _engine() -> duckdb.DuckDBPyConnection:
    return _engine_of(os.getpid(), threading.get_ident())


@lru_cache(maxsize=8)
def _engine_of(_process: int, _thread: int) -> duckdb.DuckDBPyConnection:
    engine = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        engine.execute(setting)
    return engine


def _bad(name: str, why: str) -> StoreError:
    return StoreError(StoreCode.BAD_TABLE, f"{name}: {why}")
