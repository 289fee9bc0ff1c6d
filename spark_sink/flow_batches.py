"""Whole flow batches out of whatever record batches Spark hands to a task. Pure.

Owns: the check that a flow batch is complete and in commit order. Must not know Spark or a store. Read next:
`derivation`, `source`.

Spark cuts rows by its own settings (`spark.sql.execution.arrow.maxRecordsPerBatch`), and a transformation between
source and sink may filter or scatter them. The source says with each item how many its batch has (`batch_items`). A
task holds the one batch that it gathers: at most `oncegate.flows.flow.BYTES_MAX` and one range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from oncegate.flows.schema import PLAIN_SCHEMA
from oncegate.spark_sink.derivation import FlowBatch
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import StoreCode

BATCH_FIELD: Final[pa.Field] = pa.field("batch", pa.int64(), nullable=False)
COUNT_FIELD: Final[pa.Field] = pa.field("batch_items", pa.int64(), nullable=False)
_WANTED: Final = [*PLAIN_SCHEMA.names, BATCH_FIELD.name, COUNT_FIELD.name]


def numbered(items: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Return a whole batch's items with the columns `batch` and `batch_items`."""
    count = items.num_rows
    items = items.append_column(BATCH_FIELD, pa.array(np.full(count, number)))
    return items.append_column(COUNT_FIELD, pa.array(np.full(count, count)))


def whole_batches(pieces: Iterable[pa.RecordBatch], flow: str, rows_max: int) -> Iterator[FlowBatch]:
    """Yield each flow batch once, whole, as soon as its last item has come.

    Raises:
        SinkError: BATCH_INCOMPLETE, when items are missing, repeated, out of order, or without the source's columns.
    """
    parts: list[pa.RecordBatch] = []
    number = missing = 0
    for piece in pieces:
        if not set(_WANTED) <= set(piece.schema.names):
            raise _incomplete(f"columns {sorted(set(_WANTED) - set(piece.schema.names))} of the source are missing")
        for part in _by_batch(piece.select(_WANTED)):
            if not parts:
                number, missing = part.column("batch")[0].as_py(), part.column("batch_items")[0].as_py()
            elif part.column("batch")[0].as_py() != number:
                raise _incomplete(f"{missing} items of batch {number} are missing in this task")
            parts.append(part)
            missing -= part.num_rows
            if missing <= 0:
                yield _whole(parts, number, missing, flow, rows_max)
                parts = []
    if parts:
        raise _incomplete(f"{missing} items of batch {number} are missing in this task")


def _by_batch(piece: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    numbers = np.asarray(piece.column("batch"))
    cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
    return (piece.slice(begin, end - begin) for begin, end in pairwise(cuts) if end > begin)


def _whole(parts: list[pa.RecordBatch], number: int, missing: int, flow: str, rows_max: int) -> FlowBatch:
    table = pa.Table.from_batches(parts).combine_chunks()
    commits = np.asarray(table.column("commit"))
    if missing < 0 or np.any(commits[1:] <= commits[:-1]):
        raise _incomplete(f"items of batch {number} are repeated or out of order")
    columns = [table.column(field.name).combine_chunks().cast(field.type) for field in PLAIN_SCHEMA]
    arrays = [column.chunk(0) if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return FlowBatch(flow, number, pa.RecordBatch.from_arrays(arrays, schema=PLAIN_SCHEMA), rows_max)


def _incomplete(why: str) -> SinkError:
    return SinkError(
        StoreCode.BATCH_INCOMPLETE,
        f"{why}; filter in the derivation, and do not repartition between source and sink",
    )
