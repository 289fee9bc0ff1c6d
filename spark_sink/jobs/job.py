"""The common part of all jobs that follow a flow: command line, query, and restarts after a failure.

Owns: the options that all jobs take, the trigger, restarts and exit statuses. Must not know which rows are derived,
HTTP or a database. Read next: `replay`, `timeline`, `stream_rows`, `oncegate.spark_sink.consumer`.

A job stops at SIGTERM or SIGINT after asking the query to; a restart with the same checkpoint goes on where it was.
Whatever else ends the query, it is started again, after a wait of 0.1 s that doubles up to 10 s: the lag grows, nothing
is lost. When the JVM itself is gone, the process starts itself anew under its own process id. Only a refusal that no
repetition cures ends a job.

Exit status: 0 done or stopped, 1 the JVM is gone and is not this process's to start (spark-submit), 2 bad options,
3 fenced by another instance, 4 a batch is no longer retained, 5 another refusal, 6 --reconcile found a difference.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from oncegate.spark_sink import session
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import Derivation
from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.spark_sink.flow_client import FlowClient
from oncegate.spark_sink.jobs import reconcile as comparison
from oncegate.spark_sink.jobs import replay as replays
from oncegate.spark_sink.options import BATCHES_PER_TRIGGER_DEFAULT, ROWS_PER_WRITE_DEFAULT, TIMEOUT_S_DEFAULT
from oncegate.spark_sink.sink import StoreSink, sink_of
from oncegate.spark_sink.source import OncegateSource
from oncegate.stores.claimed import ClaimedStore, claimed_store, place_of
from oncegate.stores.errors import REGISTRY, StoreCode, StoreError
from oncegate.stores.retry import Retry
from oncegate.stores.tables import StoreTable

_log = logging.getLogger(__name__)

SESSION_LOST: Final = 1
_STATUS: Final = {StoreCode.BAD_OPTION: 2, StoreCode.FENCED: 3, StoreCode.RETENTION_EXCEEDED: 4}
_REFUSED: Final = 5
_DIFFERS: Final = 6
_RESTART_WAIT_S_MIN: Final = 0.1
_RESTART_WAIT_S_MAX: Final = 10.0
_POLL_S: Final = 1
_ROWS_OF_ANY_SIZE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """The settings of a job; see the command line's help. Jobs with options of their own subclass it.

    Attributes:
        tables: what the sink writes to beside dead letters; created where missing.
        sink: the format that derives and writes.
    """

    tables: tuple[StoreTable, ...]
    sink: type[StoreSink]
    endpoints: str
    flow: str
    consumer: str
    store: str
    checkpoint: str
    starting_batch: str = ""
    available_now: bool = True
    interval_ms: int = 200
    batches_per_trigger: int = BATCHES_PER_TRIGGER_DEFAULT
    rows_per_write: int = ROWS_PER_WRITE_DEFAULT
    timeout_s: int = TIMEOUT_S_DEFAULT
    progress: str = ""
    cores: int = 2
    replay: str = ""
    from_batch: int = 0
    to_batch: int = 0
    keep_timestamps: bool = False
    dry_run: bool = False
    reconcile: bool = False
    archive: str = ""

    def own_rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Return for each table that the job shares with others the column values that mark its own rows."""
        return {}

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's options beyond those of every sink; raises BAD_OPTION; called before the job begins."""
        return {}


def start(spark: SparkSession, settings: JobSettings) -> StreamingQuery | None:
    """Create missing tables, attach the consumer, and start the query; each start takes over the cursor.

    Returns:
        The query; None for a replay that has nothing left to read.

    Raises:
        SinkError: the store or the gateway did not answer, or refused.
    """
    told = {**settings.sink_options(), "job": settings.consumer}
    checkpoint, ending = settings.checkpoint, ""
    state = FlowClient(settings.endpoints.split(","), settings.flow, retry=Retry(settings.timeout_s)).state()
    with claimed_store(settings.store, state.cluster_identity) as store:
        if not settings.replay:
            position = state.consumers.get(settings.consumer)
            _check_delivered(store, position.cursor if position is not None and position.attached else 0, settings)
        store.create((*settings.tables, DEAD_LETTERS))
        epoch = store.claim().epoch
        _log.info("store: %s, epoch %d", store.durability(), epoch)
        if settings.replay:
            replay, found = replays.begin(settings, store)
            if found is None:
                return None
            consumer, ending = found, str(replay.last_batch)
            checkpoint = f"{settings.checkpoint.rstrip('/')}-replay-{replay.name}"
            told["stamp"] = str(replay.stamp)
        else:
            store.begin(settings.flow, settings.consumer)
            consumer = FlowConsumer.attach(
                settings.endpoints, settings.flow, settings.consumer, timeout_s=settings.timeout_s
            )
    spark.dataSource.register(OncegateSource)
    spark.dataSource.register(settings.sink)
    items = (
        spark.readStream.format(OncegateSource.name())
        .options(**consumer.options(), ending_batch=ending)
        .option("starting_batch", settings.starting_batch or consumer.cursor + 1)
        .option("batches_per_trigger", settings.batches_per_trigger)
        .option("partitions_max", _parallel_tasks(spark))
        .load()
    )
    writer = (
        items.writeStream.format(settings.sink.name())
        .options(**consumer.options(), **told, store=settings.store, progress=settings.progress)
        .options(cluster=state.cluster_identity, epoch=epoch, rows_per_write=settings.rows_per_write)
        .option("checkpointLocation", checkpoint)
    )
    if settings.available_now or settings.replay:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{settings.interval_ms} milliseconds").start()


def _check_delivered(store: ClaimedStore, cursor: int, settings: JobSettings) -> None:
    """Refuse to go on behind a cursor that was reached in another store: the rows before it would be missing here."""
    flow, consumer, begin = settings.flow, settings.consumer, settings.starting_batch
    left_out = begin == "latest" or (begin.isdecimal() and int(begin) > cursor)
    if cursor and not left_out and not (store.tables() and store.began(flow, consumer)):
        raise SinkError(
            StoreCode.STORE_MISMATCH,
            f"{place_of(settings.store)} does not hold what {consumer} has finished of {flow}, batches up to {cursor}: "
            "they went into another store, or into this one before it was wiped or taken over. Name that store; or "
            f"begin anew here, with another checkpoint: `oncegate consumer remove {flow} {consumer}`; or leave them "
            f"out with --starting-batch {cursor + 1}",
        )


def run(spark: SparkSession, settings: JobSettings, stopping: threading.Event) -> int:
    """Run until everything available is delivered, or ``stopping`` is set; start again after any failure that passes.

    Returns:
        The exit status; `SESSION_LOST` when ``spark`` answers no more.
    """
    wait_s = _RESTART_WAIT_S_MIN
    while not stopping.is_set():
        try:
            query = start(spark, settings)
            while query is not None and not query.awaitTermination(_POLL_S):
                if query.lastProgress is not None:
                    wait_s = _RESTART_WAIT_S_MIN
                if stopping.is_set():
                    query.stop()
            if settings.replay and not stopping.is_set():
                replays.end(settings)
            return 0
        except Exception as error:  # noqa: BLE001 - whatever it was, the next attempt finds out whether it has passed
            if stopping.is_set():  # the signal reached Spark's processes as well
                return 0
            code = error.code if isinstance(error, StoreError) else code_in(str(error))
            if code is not None and not REGISTRY[code].retryable:
                _log.error("%s", SinkError(code, _cause(error, code)))
                return _STATUS.get(code, _REFUSED)
            if not _answers(spark):
                _log.warning("the Spark session is gone: %s", _cause(error, code))
                return SESSION_LOST
            # An error without a code is nobody's plan: its whole text is worth having.
            _log.warning(
                "the query ended and starts again in %.1f s: %s", wait_s, _cause(error, code), exc_info=code is None
            )
        stopping.wait(wait_s)
        wait_s = min(wait_s * 2, _RESTART_WAIT_S_MAX)
    return 0


def _answers(spark: SparkSession) -> bool:
    try:
        spark.conf.get("spark.app.name")
    except Exception:  # noqa: BLE001 - a session of Spark Connect and one of a JVM fail in many ways
        return False
    return True


def _parallel_tasks(spark: SparkSession) -> int:
    """How many tasks run at once. Spark Connect has no context to ask: a plan of many rows has as many partitions."""
    told = spark.conf.get("spark.default.parallelism", "")
    if told:
        return int(told)
    partitions = spark.range(_ROWS_OF_ANY_SIZE).select(sql.spark_partition_id().alias("at"))
    last = partitions.agg(sql.max("at")).first()
    return 1 if last is None else int(last[0]) + 1


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
    add("--starting-batch", default="", help="where a new consumer begins: number, earliest or latest")
    add("--trigger", choices=("available-now", "processing-time"), default="available-now")
    add("--interval-ms", type=int, default=200, help="of the trigger processing-time")
    add("--batches-per-trigger", type=int, default=BATCHES_PER_TRIGGER_DEFAULT)
    add("--rows-per-write", type=int, default=ROWS_PER_WRITE_DEFAULT)
    add("--timeout-s", type=int, default=TIMEOUT_S_DEFAULT, help="how long one call to the gateway is retried")
    add("--progress", default="", help="file to which a JSON line is appended for each micro-batch")
    add("--cores", type=int, default=2, help="threads for tasks; not under spark-submit")
    add("--replay", default="", metavar="NAME", help="read a range again, beside the job, and revise its rows")
    add("--from-batch", type=int, default=0, help="first batch of the replay")
    add("--to-batch", type=int, default=0, help="last batch of the replay")
    add("--keep-timestamps", action="store_true", help="the replay restores lost rows of an unchanged job")
    add("--dry-run", action="store_true", help="print what the replay would read and write")
    add("--reconcile", action="store_true", help="compare the store with a range of batches, all by default")
    add("--archive", default="", help="URL of the flow's archive: --reconcile reads dropped batches there")
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
    if settings.reconcile or settings.dry_run:
        return _told(settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    spark = session.build(f"oncegate {name}", cores=settings.cores)
    status = SESSION_LOST
    try:
        status = run(spark, settings, stopping)
    finally:
        if status != SESSION_LOST:
            spark.stop()
    if status == SESSION_LOST and not session.is_submitted():
        stopping.wait(_RESTART_WAIT_S_MAX)
        if not stopping.is_set():
            # A JVM that died leaves threads and sockets of its client behind: only a new process image is rid of them.
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again
        return 0
    return status


def _told(settings: JobSettings) -> int:
    """Print the comparison, or the preview of a replay; returns the exit status."""
    try:
        found = comparison.reconciled(settings) if settings.reconcile else None
        told = replays.preview(settings) if found is None else comparison.lines(found)
        sys.stdout.write("".join(f"{line}\n" for line in told))
    except StoreError as error:
        _log.error("%s", error)
        return _STATUS.get(error.code, _REFUSED)
    return 0 if found is None or found.equal else _DIFFERS


def run_derivation(
    derivation: Derivation, tables: Sequence[StoreTable], arguments: Sequence[str] | None, name: str
) -> int:
    """Run ``derivation`` as a job of its own, with the options of every job; returns the exit status."""
    options = parser(name, f"The job {name}: exit statuses and options as in docs/spark.md.")
    options.prog = name
    options.add_argument("--flow", required=True)
    options.add_argument("--consumer", required=True, help="named consumer whose cursor this job moves")
    found = parsed(options, arguments)
    return main(name, JobSettings(tables=tuple(tables), sink=sink_of(derivation, f"oncegate-{name}"), **found))
