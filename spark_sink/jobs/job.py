"""The common part of all jobs that follow a flow: command line, query, and restarts after a failure.

Owns: the trigger, and restarts. Must not know which rows are derived, HTTP or a database. Read next: `settings`,
`replay`, `timeline`, `stream_rows`, `oncegate.spark_sink.consumer`.

A job stops at SIGTERM or SIGINT after asking the query to; a restart with the same checkpoint goes on where it was.
Whatever else ends the query, it is started again, after a wait of 0.1 s that doubles up to 10 s: the lag grows, nothing
is lost. When the JVM itself is gone, the process starts itself anew under its own process id. Only a refusal that no
repetition cures ends a job, and a programming error that comes again eight times in a row, no micro-batch between.

Exit status: 0 done or stopped, 1 the JVM is gone and is not this process's to start (spark-submit), 2 bad options,
3 fenced by another instance, 4 a batch is no longer retained, 5 another refusal, 6 --reconcile found a difference, or
--redrive made some items dead letters again.
"""

from __future__ import annotations

import builtins
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

from oncegate.spark_sink import session
from oncegate.spark_sink.checkpoints import clear_drafts
from oncegate.spark_sink.consumer import FlowConsumer
from oncegate.spark_sink.dead_letters import DEAD_LETTERS
from oncegate.spark_sink.derivation import ITEM_FAULTS, Derivation
from oncegate.spark_sink.errors import SinkError, code_in
from oncegate.spark_sink.jobs import redrive as redrives
from oncegate.spark_sink.jobs import replay as replays
from oncegate.spark_sink.jobs.exit_status import DIFFERS, SESSION_LOST, exit_status
from oncegate.spark_sink.jobs.maintenance import maintained
from oncegate.spark_sink.jobs.settings import JobSettings, parsed, parser
from oncegate.spark_sink.session import register
from oncegate.spark_sink.sink import sink_of
from oncegate.spark_sink.source import OncegateSource
from oncegate.spark_sink.tracing import checked_endpoint
from oncegate.stores.claimed import ClaimedStore, claimed_store, place_of
from oncegate.stores.errors import REGISTRY, StoreCode, StoreError
from oncegate.stores.tables import StoreTable

_log = logging.getLogger(__name__)

_RESTART_WAIT_S_MIN: Final = 0.1
_RESTART_WAIT_S_MAX: Final = 10.0
_POLL_S: Final = 1
_FAULTS_MAX: Final = 8
"""Attempts in a row, about 15 s, that may end by a programming error: a data file that is being replaced causes one."""
_ERROR_NAME: Final = re.compile(r"^(?:PySpark|builtins\.)?(\w+)(?::|$)", re.MULTILINE)
_PROGRAMMING: Final = (*ITEM_FAULTS, AssertionError, ImportError, NameError, NotImplementedError)
_ROWS_OF_ANY_SIZE: Final = 1 << 20


def start(spark: SparkSession, settings: JobSettings) -> StreamingQuery | None:
    """Create missing tables, attach the consumer, and start the query; each start takes over the cursor.

    Returns:
        The query; None for a replay that has nothing left to read.

    Raises:
        SinkError: the store or the gateway did not answer, or refused.
    """
    if settings.otlp_endpoint:
        checked_endpoint(settings.otlp_endpoint)
    told = {**settings.sink_options(), "job": settings.consumer, "otlp_endpoint": settings.otlp_endpoint}
    checkpoint, ending = settings.checkpoint, ""
    state = settings.client().state()
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
            told |= {"stamp": str(replay.stamp), "replay": replay.name}
        else:
            store.begin(settings.flow, settings.consumer)
            consumer = FlowConsumer.attach(
                settings.endpoints, settings.flow, settings.consumer, timeout_s=settings.timeout_s
            )
    register(spark, OncegateSource, settings.sink)
    clear_drafts(checkpoint)
    items = (
        spark.readStream.format(OncegateSource.name())
        .options(**consumer.options(), ending_batch=ending, cluster=state.cluster_identity)
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
    wait_s, faults = _RESTART_WAIT_S_MIN, 0
    while not stopping.is_set():
        try:
            query = start(spark, settings)
            while query is not None and not query.awaitTermination(_POLL_S):
                if query.lastProgress is not None:
                    wait_s, faults = _RESTART_WAIT_S_MIN, 0
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
                _log.error("%s", refusal(error, code))
                return exit_status(code)
            if not _answers(spark):
                _log.warning("the Spark session is gone: %s", _cause(error, code))
                return SESSION_LOST
            faults = faults + 1 if code is None and is_programming_error(error) else 0
            if faults == _FAULTS_MAX:
                failed = SinkError(StoreCode.DERIVATION_FAILED, f"{faults} times in a row: {_cause(error, code)}")
                _log.error("%s", failed, exc_info=True)
                return exit_status(failed.code)
            # An error without a code is nobody's plan: its whole text is worth having.
            _log.warning(
                "the query ended and starts again in %.1f s: %s", wait_s, _cause(error, code), exc_info=code is None
            )
        stopping.wait(wait_s)
        wait_s = min(wait_s * 2, _RESTART_WAIT_S_MAX)
    return 0


def is_programming_error(error: Exception) -> bool:
    """Tell whether the innermost Python error in what Spark tells is one that a program makes, not disk or network."""
    found = [getattr(builtins, name, None) for name in _ERROR_NAME.findall(str(error))]
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, Exception)]
    return bool(kinds) and issubclass(kinds[-1], _PROGRAMMING)


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


def refusal(error: Exception, code: StoreCode) -> SinkError:
    """Return the refusal that an error is, or that the text names which Spark makes of it: code and title once."""
    return SinkError(code, _cause(error, code).rpartition(str(SinkError(code, "")))[2])


def _cause(error: Exception, code: StoreCode | None) -> str:
    """The line of the error that names the code, or the first one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if code is not None and f"[{code}]" in line]
    return (named or lines or [type(error).__name__])[-1 if named else 0]


def main(name: str, settings: JobSettings) -> int:
    """Run a job as a process of its own; returns the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    if settings.reconcile or settings.redrive or settings.dry_run:
        return _told(settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    spark = session.build(f"oncegate {name}", cores=settings.cores)
    status = SESSION_LOST
    try:
        with maintained(settings):
            status = run(spark, settings, stopping)
    finally:
        if status != SESSION_LOST:
            _stop(spark, stopping)
    if status == SESSION_LOST and not session.is_submitted():
        stopping.wait(_RESTART_WAIT_S_MAX)
        if not stopping.is_set():
            # A JVM that died leaves threads and sockets of its client behind: only a new process image is rid of them.
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - the same program again
        return 0
    return status


def _stop(spark: SparkSession, stopping: threading.Event) -> None:
    """Stop the session. A signal to the whole group, of a terminal or a supervisor, has ended its JVM before."""
    try:
        spark.stop()
    except Exception:
        if not stopping.is_set():
            raise


def _told(settings: JobSettings) -> int:
    """Do what needs no Spark, compare, redrive or preview a replay, and print what came of it; the exit status."""
    # It needs pandas, whose import takes a second, and Spark's workers import this module.
    from oncegate.spark_sink.jobs import reconcile as comparison

    differs = False
    try:
        if settings.reconcile:
            compared = comparison.reconciled(settings)
            told, differs = comparison.lines(compared), not compared.equal
        elif settings.redrive:
            redriven = redrives.redrive(settings)
            told, differs = redrives.lines(redriven), bool(redriven.left)
        else:
            told = iter(replays.preview(settings))
        sys.stdout.write("".join(f"{line}\n" for line in told))
    except StoreError as error:
        _log.error("%s", error)
        return exit_status(error.code)
    return DIFFERS if differs else 0


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
