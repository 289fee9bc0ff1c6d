"""The job behind a stream table: each item of the table's flow becomes its row in the store.

Owns: the job's own options. Must not know HTTP or a database. What it does at a stop and after a failure, and its
exit statuses: `job`. Read next: `oncegate.stores.stream_rows`, `sink`.

Runs as `python -m oncegate.spark_sink.jobs.stream_rows …` and as a file under spark-submit. It moves the cursor of the
consumer that the table's flow requires (`ROWS_CONSUMER`): a batch is dropped only when its rows are in the store.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncegate.spark_sink.derivation import Change, Derivation, FlowBatch, Upsert
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs.settings import JobSettings, parsed, parser
from oncegate.spark_sink.options import FlowOptions
from oncegate.spark_sink.sink import StoreSink
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS, rows_of
from oncegate.stores.tables import StoreTable


@dataclass(frozen=True)
class StreamRows:
    """Derives the rows of a stream table from the items of its flow, which has the table's name."""

    source: str

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the newest row of each key, in pieces."""
        for piece in rows_of(batch.items, self.source, batch.rows_max):
            yield Upsert(STREAM_ROWS, piece)


class StreamRowsSink(StoreSink):
    """`format("oncegate-stream-rows")`: options of `SinkOptions`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "oncegate-stream-rows"

    def derivation(self) -> Derivation:
        """Return the derivation of rows."""
        return StreamRows(FlowOptions.parse(self.options).flow)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRowsSettings(JobSettings):
    """The settings of the job; see the command line's help. ``flow`` is the table's name."""

    tables: tuple[StoreTable, ...] = (STREAM_ROWS,)

    consumer: str = ROWS_CONSUMER
    sink: type[StoreSink] = StreamRowsSink

    def own_rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what marks the rows of this stream table."""
        return {STREAM_ROWS.name: {"source": self.flow}}


def parse(arguments: Sequence[str] | None = None) -> StreamRowsSettings:
    """Return the settings of a command line; ends the process on a wrong one."""
    options = parser("stream_rows", (__doc__ or "").splitlines()[0])
    options.add_argument("--table", dest="flow", required=True, help="stream table whose flow is read")
    return StreamRowsSettings(**parsed(options, arguments))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job as a process of its own; returns the exit status."""
    return job.main("stream rows", parse(arguments))


if __name__ == "__main__":
    # Spark would pickle classes of `__main__` by value; under their own name they go by reference.
    raise SystemExit(importlib.import_module("oncegate.spark_sink.jobs.stream_rows").main())
