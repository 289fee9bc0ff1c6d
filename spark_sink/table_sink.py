"""A DataFrame into a table of a store, for those who think in Spark SQL; exact under kills, also of stateful queries.

Owns: which write timestamp a row of a micro-batch gets, and what is checked of it. Must not know how rows were made.
Read next: `table_format`, `generations`, docs/library-time.md.

| the frame has | a row's write timestamp | what is exact |
|---|---|---|
| a column `write_ts` | that: the commit number of its item | as of a derivation, whatever the checkpoint |
| none | its micro-batch's, in the checkpoint's generation | what this checkpoint emitted, each micro-batch once |

A boolean column `deleted` says which rows are deletions. Of rows without `write_ts`, a micro-batch has one a key: two
would be mixed column by column. Frames come in any output mode: append, or update, where a later row of a key replaces
the earlier one.

The order is: rows durable, then Spark notes the micro-batch as done, then the source moves its consumer's cursor (give
it the option `consumer`). So a batch that was read and not written is never passed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.spark_sink.applying import RowWriter
from oncegate.spark_sink.checkpoints import clear_drafts
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.generations import GENERATIONS, generation_of
from oncegate.spark_sink.options import ROWS_PER_WRITE_DEFAULT, FlowOptions
from oncegate.stores.claimed import claimed_store
from oncegate.stores.errors import BadRows, StoreCode
from oncegate.stores.tables import WRITE_TS, StoreTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DELETED: Final = "deleted"


def table_sink(
    frame: DataFrame,
    table: StoreTable,
    *,
    job: str,
    endpoints: str,
    flow: str,
    store: str,
    checkpoint: str,
    output_mode: str = "append",
    rebuild: str = "",
) -> DataStreamWriter:
    """Return the writer of a streaming frame into ``table``; `trigger` and `start` are the caller's.

    Args:
        frame: it has the table's columns, and may have `write_ts` and `deleted`; others are refused.
        table: it is this job's alone; created where missing.
        job: name under which the micro-batches, and dead letters, are kept.
        endpoints: base URLs of gateway nodes, separated by commas.
        flow: a flow of the cluster whose store it is.
        store: its URL.
        checkpoint: directory of Spark's own state, which a stateful query cannot do without.
        output_mode: `append`, `update` or `complete`, as Spark has them.
        rebuild: a new name begins anew, with a new checkpoint; keep it as long as the rebuild runs. `sweep` of
            `generations` then removes what it no longer makes.

    Raises:
        StoreError: BAD_OPTION, for other columns; STORE_MISMATCH, STORE_UNAVAILABLE, CURSOR_MISMATCH,
            FLOW_UNREACHABLE.
    """
    from oncegate.spark_sink.session import register  # these import Spark, which `write_rows` does without
    from oncegate.spark_sink.table_format import TableSink

    own = set(frame.columns) - {WRITE_TS, DELETED}
    wanted = set(table.schema.names) - {WRITE_TS}
    if own != wanted:
        raise SinkError(StoreCode.BAD_OPTION, f"{table.name} has the columns {sorted(wanted)}, the frame {sorted(own)}")
    if rebuild and WRITE_TS in frame.columns:
        raise SinkError(
            StoreCode.BAD_OPTION, f"a frame with {WRITE_TS} needs no rebuild: replay it, or use a new table"
        )
    cluster = FlowOptions.parse({"endpoints": endpoints, "flow": flow}).client().state().cluster_identity
    with claimed_store(store, cluster) as opened:
        opened.create((table, GENERATIONS, DEAD_LETTERS))
        stamped = WRITE_TS in frame.columns
        generation = None if stamped else generation_of(opened, (table,), job, rebuild)
        options = {"store": store, "cluster": cluster, "epoch": str(opened.claim().epoch)}
    options |= {"job": job, "table": table.to_json()}
    options |= {} if generation is None else {"generation": json.dumps(asdict(generation))}
    register(frame.sparkSession, TableSink)

    def write(rows: DataFrame, _micro_batch: int) -> None:
        # Rows of one key meet in one task, which sees when there are two.
        placed = rows if stamped else rows.repartition(*table.key)
        placed.write.format(TableSink.name()).options(**options).mode("append").save()

    clear_drafts(checkpoint)
    # `foreachBatch`, because Spark's writer for Python data sources refuses the mode `update`.
    return frame.writeStream.outputMode(output_mode).foreachBatch(write).option("checkpointLocation", checkpoint)


def write_rows(
    rows: pa.Table, table: StoreTable, store: RowWriter, stamp: int | None, job: str = "", micro_batch: int = 0
) -> None:
    """Write rows of one micro-batch; a row that the store refuses becomes a dead letter of the job.

    Args:
        rows: the table's columns, maybe `deleted`; and `write_ts`, if ``stamp`` is None.
        table: it exists, and `DEAD_LETTERS`.
        store: where to.
        stamp: write timestamp of them all.
        job: name for dead letters.
        micro_batch: its number, for dead letters.

    Raises:
        StoreError: BAD_ROWS, when a column has another type than the table's, or two rows with ``stamp`` have one key.
    """
    if stamp is not None:
        keys = rows.select(table.key)
        if keys.group_by(list(table.key)).aggregate([]).num_rows != keys.num_rows:
            raise SinkError(
                StoreCode.BAD_ROWS,
                f"micro-batch {micro_batch} has two rows of one key of {table.name}: add to the key, aggregate, or "
                f"give each row the commit number it derives from as {WRITE_TS}",
            )
        rows = rows.append_column(WRITE_TS, pa.array(np.full(rows.num_rows, stamp)))
    dead = pc.fill_null(rows.column(DELETED), False) if DELETED in rows.column_names else None
    alive = rows if dead is None else rows.filter(pc.invert(dead))
    for chosen, schema, write in (
        (alive, table.schema, store.write),
        *(() if dead is None else ((rows.filter(dead), table.key_schema, store.delete),)),
    ):
        for part in _typed(chosen, schema, table).to_batches(max_chunksize=ROWS_PER_WRITE_DEFAULT):
            try:
                write(table, part)
            except BadRows as refused:
                store.write(DEAD_LETTERS, _letters(part, table, job, micro_batch, refused))


def _typed(rows: pa.Table, schema: pa.Schema, table: StoreTable) -> pa.Table:
    try:
        return pa.table([rows.column(field.name).cast(field.type) for field in schema], names=schema.names)
    except pa.ArrowInvalid as error:
        raise SinkError(StoreCode.BAD_ROWS, f"{table.name}: {error}") from error


def _letters(rows: pa.RecordBatch, table: StoreTable, job: str, micro_batch: int, refused: BadRows) -> pa.RecordBatch:
    """Letters of rows instead of items: of no flow, `batch` is the micro-batch, `commit` a hash of the key."""
    found = []
    for one in refused.rejected:
        row = rows.slice(one.index, 1).to_pylist()[0]
        key = json.dumps([row[name] for name in table.key], default=repr)
        commit = int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) >> 1
        letter = {"job": job, "flow": "", "batch": micro_batch, "commit": commit, "item_key": key[:512], "time_ms": 0}
        letter |= {"raw": json.dumps(row, default=repr).encode(), "error": f"{table.name}: {one.reason}"}
        letter |= {"client_id": 0, "sequence": 0, "traceparent": None, WRITE_TS: row[WRITE_TS] or 1}
        found.append(letter)
    return pa.RecordBatch.from_pylist(found, schema=DEAD_LETTERS.schema)
