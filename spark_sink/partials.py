"""Aggregates as partials: one row a batch, added up when they are read. Pure.

Owns: the sum over the batches. A partial is overwritten by itself when its batch comes again, so a sum of partials is
exact under crashes and replays, which a running total is not. Read next: `derivation`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from oncegate.stores.tables import ColumnType, StoreTable


def summed(table: StoreTable, rows: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return the sums of all integer columns outside the key, by the columns of the key other than `batch`.

    Args:
        table: partials, with `batch` in its key.
        rows: of the table, as ``store.scan(table)`` yields them; held in memory only as sums and one batch.

    Returns:
        The key columns without `batch`, then the sums under the columns' own names.
    """
    by = [name for name in table.key if name != "batch"]
    values = [column.name for column in table.values if column.type is ColumnType.INT64]
    wanted = [*by, *values]
    empty = pa.schema([table.schema.field(name) for name in wanted]).empty_table()
    total = empty
    for batch in rows:
        joined = pa.concat_tables([total, pa.Table.from_batches([batch.select(wanted)]).cast(empty.schema)])
        total = joined.group_by(by).aggregate([(name, "sum") for name in values]).rename_columns(wanted)
        total = total.cast(empty.schema)
    return total
