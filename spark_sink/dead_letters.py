"""Dead letters: items that became no row, with the value's bytes as they came, why, and where they came from.

Owns: how an item becomes a letter. Every sink writes them, whatever its derivation. Their table, and how they are found
again: :mod:`oncegate.stores.dead_letters`. Read next: `applying`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from oncegate.spark_sink.derivation import FlowBatch
from oncegate.stores.dead_letters import DEAD_LETTERS as DEAD_LETTERS
from oncegate.stores.tables import WRITE_TS


def letters(batch: FlowBatch, job: str, errors: Mapping[int, str]) -> pa.RecordBatch:
    """Return rows of `DEAD_LETTERS` for the items of ``batch`` that ``errors`` names, by commit number."""
    chosen = np.flatnonzero(np.isin(np.asarray(batch.items.column("commit")), list(errors)))
    items = batch.items.take(pa.array(chosen))
    commit, count = items.column("commit"), len(chosen)
    columns = {
        "job": pa.array([job] * count, pa.string()),
        "flow": pa.array([batch.flow] * count, pa.string()),
        "batch": pa.array([batch.number] * count, pa.int64()),
        "commit": commit,
        "item_key": items.column("key"),
        "raw": items.column("value").cast(pa.binary()).fill_null(b""),
        "error": pa.array([errors[number] for number in commit.to_pylist()], pa.string()),
        "client_id": items.column("client_id"),
        "sequence": items.column("sequence"),
        "time_ms": items.column("time_ms"),
        "traceparent": items.column("traceparent"),
        WRITE_TS: commit,
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=DEAD_LETTERS.schema)
