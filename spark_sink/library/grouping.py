"""Sums by key, and rows of a key together, over Arrow columns. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.library.events import Int64s


def added(rows: pa.Table, by: list[str]) -> pa.Table:
    """Return the sums of all columns but ``by``, which are int64, by ``by``; same columns."""
    values = [name for name in rows.column_names if name not in by]
    sums = rows.group_by(by, use_threads=False).aggregate([(name, "sum") for name in values])
    return sums.select([*by, *(f"{name}_sum" for name in values)]).rename_columns([*by, *values])


def grouped(rows: pa.Table | pa.RecordBatch, keys: tuple[str, ...]) -> tuple[Int64s, Int64s]:
    """Return an order in which rows of equal keys lie together, else as they came, and a number for each row's key."""
    codes: list[Int64s] = []
    for name in keys:
        column = rows.column(name)
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        codes.append(np.asarray(whole.dictionary_encode().indices).astype(np.int64))
    order = np.lexsort(codes[::-1])
    begins = np.zeros(len(order), np.int64)
    for code in codes:
        begins[1:] |= code[order][1:] != code[order][:-1]
    return order, np.cumsum(begins)


def repeated(times: Int64s) -> tuple[Int64s, Int64s]:
    """Return each position ``times`` times in a row, and a count from 0 within each."""
    of = np.repeat(np.arange(len(times)), times)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times)
