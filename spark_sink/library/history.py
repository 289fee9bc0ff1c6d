"""A slowly changing table as all its versions, and the version of each key as of an item's commit.

Owns: the versions and the join with them. Must not know Spark. Read next: `copies`.

Both tables are of one log, so a commit number says what was before what, whichever flow is read first. A row that was
derived from an item has the item's commit number; the version that held then is the newest with a smaller one. So the
join is made when rows are read: it is the same after any crash, replay or re-reading, once the job of the versions has
caught up, and it needs no waiting of one job for the other. What is joined earlier lacks the newest versions: `version`
says which one it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.compaction import AnyStore
from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.spark_sink.library.fields import COMMIT, KEY, Field, Kind, agreed, take
from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS, Clustering, Column, ColumnType, StoreTable

_GONE: Final = "gone"
VERSION: Final = "version"


@dataclass(frozen=True, slots=True)
class History:
    """A derivation that keeps all versions of each key, deletions as versions without values.

    Attributes:
        table: by key, newest first; `gone` is 1 for a deletion.
        fields: what is kept of an item.
    """

    table: StoreTable
    fields: tuple[Field, ...]

    @property
    def tables(self) -> tuple[StoreTable, ...]:
        """The tables that the derivation writes."""
        return (self.table,)

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield a version for each item."""
        taken = take(batch, self.fields)
        yield from taken.rejects
        for rows, gone in ((taken.rows, 0), (taken.deleted, 1)):
            if rows.num_rows:
                yield Upsert(self.table, self._versions(rows, gone))

    def as_of(self, store: AnyStore, key: str, commit: int) -> dict[str, Any] | None:
        """Return the version of a key that an item with this commit number saw; None: deleted, or none yet."""
        found: list[dict[str, Any]] = store.range(self.table, {KEY.name: key}, stop=commit, limit=1).to_pylist()
        return found[0] if found and not found[0][_GONE] else None

    def join(self, store: AnyStore, rows: pa.Table | pa.RecordBatch, on: str, *, commit: str = WRITE_TS) -> pa.Table:
        """Return the rows with the columns of the version that each one's item saw, null where there was none.

        Args:
            store: where the versions are; all are read, and held in memory.
            rows: rows of any table.
            on: their column that names a key of this table.
            commit: their column with the item's commit number: `write_ts` is, where the newest item of a key wins.

        Returns:
            The rows, in their order, with the fields' columns, and `version`, the commit number of the version.
        """
        versions = pa.Table.from_batches(store.scan(self.table), self.table.schema)
        keys = pa.table({KEY.name: rows[on]}).cast(pa.schema([KEY]))
        names = pa.concat_tables([versions.select([KEY.name]), keys])[KEY.name].combine_chunks().dictionary_encode()
        codes, known = np.asarray(names.indices, np.int64), versions.num_rows
        # One order of (key, commit): a version that an item saw is the last one before it.
        commits = np.append(np.asarray(versions[COMMIT.name]), np.asarray(rows[commit]))
        order = np.lexsort((np.arange(len(codes)) < known, commits, codes))
        is_version = order < known
        last = np.maximum.accumulate(np.where(is_version, np.arange(len(order)), -1))
        seen = np.full(len(codes), -1)
        seen[order] = np.where(last >= 0, order[last], -1)
        found = seen[known:]
        gone = np.asarray(versions[_GONE])
        right = (found >= 0) & (codes[found] == codes[known:])
        right[right] &= gone[found[right]] == 0
        rows = pa.table(rows)
        at = pa.array(found, mask=~right)
        for field in self.fields:
            rows = rows.append_column(field.column, versions[field.column].take(at))
        return rows.append_column(VERSION, versions[COMMIT.name].take(at))

    def _versions(self, rows: pa.RecordBatch, gone: int) -> pa.RecordBatch:
        count, commit = rows.num_rows, rows.column(COMMIT.name)
        empty: dict[Kind, Any] = {Kind.TEXT: "", Kind.WHOLE: 0, Kind.REAL: 0.0, Kind.MOMENT: None}
        columns = {
            field.column: pa.array([empty[field.kind]] * count, field.taken().type)
            if gone
            else rows.column(field.column)
            for field in self.fields
        }
        columns |= {KEY.name: rows.column(KEY.name), COMMIT.name: commit, WRITE_TS: commit}
        columns |= {_GONE: pa.array(np.full(count, gone))}
        return pa.RecordBatch.from_arrays([columns[name] for name in self.table.schema.names], schema=self.table.schema)


def history(name: str, fields: Sequence[Field]) -> History:
    """Return the derivation that keeps all versions of a table's keys.

    Args:
        name: of the table.
        fields: what is kept of an item.

    Raises:
        StoreError: BAD_TABLE, when a name is malformed or repeats, or a field is of another kind.
    """
    agreed(*fields)
    if {_GONE, VERSION} & {field.column for field in fields}:
        raise StoreError(StoreCode.BAD_TABLE, f"{name}: {_GONE} and {VERSION} are columns of a version")
    own = [Column(KEY.name, ColumnType.TEXT), Column(COMMIT.name, ColumnType.INT64), Column(_GONE, ColumnType.INT64)]
    columns = (*own, *(field.stored() for field in fields))
    return History(StoreTable(name, columns, (KEY.name,), (Clustering(COMMIT.name, descending=True),)), tuple(fields))
