"""The data source behind `table_sink`: what a task does with the rows of its part of a micro-batch.

Owns: which micro-batch a task belongs to, by what Spark tells it. Must not know how rows are stamped. Read next:
`table_sink`, `generations`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql.types import StructType

from oncegate.spark_sink.errors import SinkError
from oncegate.spark_sink.generations import Generation, bind
from oncegate.spark_sink.table_sink import write_rows
from oncegate.stores.claimed import process_store
from oncegate.stores.errors import StoreCode
from oncegate.stores.tables import StoreTable

_BATCH_PROPERTY: Final = "streaming.sql.batchId"
_QUERY_PROPERTY: Final = "sql.streaming.queryId"


class TableSink(spark.DataSource):
    """`format("oncegate-table")`, for `table_sink` alone."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "oncegate-table"

    def writer(self, schema: StructType, overwrite: bool) -> spark.DataSourceWriter:
        """Return the writer of one micro-batch."""
        return TableWriter(dict(self.options))


class TableWriter(spark.DataSourceArrowWriter):
    """Writes the rows of a micro-batch."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> spark.WriterCommitMessage:
        """Write one task's rows; when it returns, all are durable. Idempotent.

        Raises:
            StoreError: as `bind` and `write_rows`; STORE_UNAVAILABLE: Spark runs the task again.
        """
        context, options = TaskContext.get(), self._options
        batch = context and context.getLocalProperty(_BATCH_PROPERTY)
        query = context and context.getLocalProperty(_QUERY_PROPERTY)
        if not isinstance(batch, str) or not isinstance(query, str):
            raise SinkError(
                StoreCode.BAD_OPTION, f"{TableSink.name()} writes micro-batches of a stream: see table_sink"
            )
        generation = Generation(**json.loads(options["generation"])) if "generation" in options else None
        with process_store(options["store"], options["cluster"], int(options["epoch"])) as store:
            if generation is not None:
                bind(store, generation, query, int(batch))
            if parts := list(iterator):
                stamp = None if generation is None else generation.stamp(int(batch))
                table = StoreTable.from_json(options["table"])
                write_rows(pa.Table.from_batches(parts), table, store, stamp, options["job"], int(batch))
        return spark.WriterCommitMessage()
