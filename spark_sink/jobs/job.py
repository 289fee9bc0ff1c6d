"""The common part of all jobs that follow a flow: command line, query, and restarts after a failure.

Owns: the options that all jobs take, attaching the consumer, the trigger, restarts and exit statuses. Must not know
which rows are derived, HTTP or a database. Read next: `timeline`, `stream_rows`.

A job stops at SIGTERM or SIGINT after asking the query to; a restart with the same checkpoint goes on where it was.
While the store or the gateway does not answer, tasks retry, then Spark retries tasks, then the query is started
again: the lag grows, nothing is lost.

Exit status: 0 done or stopped, 1 an error without a code kept coming back, 2 bad options, 3 fenced by another
instance, 4 a batch is no longer retained, 5 another refusal.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from oncegate.spark_sink import session
from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.spark_sink.options import (
    BATCHES_PER_TRIGGER_DEFAULT,
    ROWS_PER_WRITE_DEFAULT,
    TIMEOUT_S_DEFAULT,
    FlowOptions,
)
from oncegate.spark_sink.sink import StoreSink
from oncegate.spark_sink.source import OncegateSource
from oncegate.stores.errors import REGISTRY, StoreCode, StoreError
from oncegate.stores.store import open_store
from oncegate.stores.tables import StoreTable

_log = logging.getLogger(__name__)

_STATUS: Final = {StoreCode.BAD_OPTION: 2, StoreCode.FENCED: 3, StoreCode.RETENTION_EXCEEDED: 4}
_UNKNOWN_FAILURES_MAX: Final = 5
_RESTART_WAIT_S_MAX: Final = 10.0
_POLL_S: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings of a job; see the command line's help. Each job subclasses it.

    Attributes:
        tables: what the sink writes to; created where missing.
    """

    tables: ClassVar[tuple[StoreTable, ...]]

    endpoints: str
    flow: str
    consumer: str
    store: str
    checkpoint: str
    sink: type[StoreSink]
    starting_batch: str = ""
    available_now: bool = True
    interval_ms: int = 200
    batches_per_trigger: int = BATCHES_PER_TRIGGER_DEFAULT
    rows_per_write: int = ROWS_PER_WRITE_DEFAULT
    timeout_s: int = TIMEOUT_S_DEFAULT
    progress: str = ""
    cores: int = 2

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's options beyond those of every sink; raises BAD_OPTION; called before the job begins."""
        return {}


def start(spark: SparkSession, settings: JobSettings) -> StreamingQuery:
    """Create missing tables, attach the consumer, and start the query; each start takes over the cursor.

    Raises:
        SinkError: the store or the gateway did not answer, or refused.
    """
    told = settings.sink_options()
    with open_store(settings.store) as store:
        store.create(settings.tables)
        _log.info("store: %s", store.durability())
    spark.dataSource.register(OncegateSource)
    spark.dataSource.register(settings.sink)
    flow = {
        "endpoints": settings.endpoints,
        "flow": settings.flow,
        "consumer": settings.consumer,
        "timeout_s": str(settings.timeout_s),
    }
    attachment = FlowOptions.parse(flow).client().attach(settings.consumer, secrets.token_hex(16))
    flow["fence"] = str(attachment.fence)
    items = (
        spark.readStream.format(OncegateSource.name())
        .options(**flow)
        .option("starting_batch", settings.starting_batch or attachment.cursor + 1)
        # A given start means that the rows are wanted again, perhaps in another store.
        .option("delivered", 0 if settings.starting_batch else attachment.cursor)
        .option("batches_per_trigger", settings.batches_per_trigger)
        .option("partitions_max", spark.sparkContext.defaultParallelism)
        .load()
    )
    writer = (
        items.writeStream.format(settings.sink.name())
        .options(**flow, **told, store=settings.store, progress=settings.progress)
        .option("rows_per_write", settings.rows_per_write)
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.available_now:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.interval_ms} milliseconds").start()


def run(spark: SparkSession, settings: JobSettings, stopping: threading.Event) -> int:
    """Run until everything available is delivered, or ``stopping`` is set; start again after a passing failure.

    Returns:
        The exit status.
    """
    wait_s, unknown = 0.1, 0
    while not stopping.is_set():
        try:
            query = start(spark, settings)
            while not query.awaitTermination(_POLL_S):
                if query.lastProgress is not None:
                    wait_s, unknown = 0.1, 0
                if stopping.is_set():
                    query.stop()
            return 0
        except (StoreError, PySparkException, Py4JError) as error:
            if stopping.is_set():  # the signal reached Spark's processes as well
                return 0
            code = error.code if isinstance(error, StoreError) else code_in(str(error))
            if code is not None and not REGISTRY[code].retryable:
                _log.error("%s", SinkError(code, _cause(error, code)))
                return _STATUS.get(code, 5)
            unknown += code is None
            if unknown > _UNKNOWN_FAILURES_MAX:
                _log.exception("the query keeps failing")
                return 1
            _log.warning("the query ended and starts again in %.1f s: %s", wait_s, _cause(error, code))
        stopping.wait(wait_s)
        wait_s = min(wait_s * 2, _RESTART_WAIT_S_MAX)
    return 0


def _cause(error: Exception, code: StoreCode | None) -> str:
    """The line of the error that names the code, or the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if code is not None and f"[{code}]" in line]
    return (named or lines or [type(error).__name__])[-1 if named else 0]


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every job; ``name`` is that of the job's module."""
    built = argparse.ArgumentParser(prog=f"oncegate.spark_sink.jobs.{name}", description=description)
    add = built.add_argument
    add("--endpoints", required=True, help="base URLs of gateway nodes, separated by commas")
    add("--store", required=True, help="sqlite:///absolute/directory or cassandra://host:port/keyspace")
    add("--checkpoint", required=True, help="directory of the query's own state; one job, one checkpoint")
    add("--starting-batch", default="", help="number, earliest or latest; default: after the cursor")
    add("--trigger", choices=("available-now", "processing-time"), default="available-now")
    add("--interval-ms", type=int, default=200, help="of the trigger processing-time")
    add("--batches-per-trigger", type=int, default=BATCHES_PER_TRIGGER_DEFAULT)
    add("--rows-per-write", type=int, default=ROWS_PER_WRITE_DEFAULT)
    add("--timeout-s", type=int, default=TIMEOUT_S_DEFAULT, help="how long one call to the gateway is retried")
    add("--progress", default="", help="file to which a JSON line is appended for each micro-batch")
    add("--cores", type=int, default=2, help="threads for tasks; not under spark-submit")
    return built


def parsed(options: argparse.ArgumentParser, arguments: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of `Settings` that a command line gives; ends the process on a wrong one."""
    found = vars(options.parse_args(arguments))
    available_now = found.pop("trigger") == "available-now"
    return {**found, "available_now": available_now}


def main(name: str, settings: JobSettings) -> int:
    """Run a job as a process of its own; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    spark = session.build(f"oncegate {name}", cores=settings.cores)
    try:
        return run(spark, settings, stopping)
    finally:
        spark.stop()
