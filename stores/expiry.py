"""Rows that end: which of them a reader still sees, and how long a server has to keep them. Pure; time is passed in.

Owns: the two uses of the column that a table names as `expires`. When a row ends follows from its item alone; the
writer's clock only says how soon a server may forget it, long after nobody sees it any more. Read next: `store`; why:
docs/decisions/0020-rows-that-end.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.stores import layout
from oncegate.stores.column_types import ColumnType
from oncegate.stores.tables import StoreTable

KEPT_S: Final = 86_400
"""So long after its end a server keeps a row, for readers whose clocks are behind."""
_RECLAIMED_UNTIL_MS: Final = 2_145_916_800_000
"""2038-01-01: a server of 5.0 that is compatible with files of 4 counts the end of cells in 32 bits. Rows that end
later stay.
"""


def live(table: StoreTable, rows: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Return the rows that have not ended at ``now_ms``; rows of the table's schema."""
    if not table.expires:
        return rows
    ends = rows.column(table.expires)
    now = pa.scalar(now_ms, pa.int64()).cast(ColumnType.TIMESTAMP.arrow)
    return rows.filter(pc.fill_null(pc.greater(ends, now), fill_value=True))


def seconds_kept(table: StoreTable, rows: pa.RecordBatch, now_ms: int) -> pa.Array:
    """Return for each row in cell form how long the server keeps it, as a CQL int, 0 = for ever.

    A cell that will end beats one that will not, and of two that will the one that ends later, before their values are
    compared. That hangs on clocks, so rows that share key and timestamp with another one of the call stay for ever.
    """
    cells = rows.column(table.expires)
    ends = np.asarray(cells.fill_null(0))
    left = np.maximum((ends - now_ms) // 1000 + KEPT_S, 1)
    never = np.asarray(cells.is_null()) | (ends > _RECLAIMED_UNTIL_MS) | layout.repeated(table, rows)
    return pa.array([seconds.to_bytes(4) for seconds in np.where(never, 0, left).tolist()], pa.binary())
