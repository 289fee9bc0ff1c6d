"""The settings of a job that follows a flow, the options of its command line, and what is opened by them.

Owns: names and defaults of what all jobs take. Read next: `job`, `oncegate.spark_sink.options`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oncegate.spark_sink.archived_flow import ArchivedFlow
from oncegate.spark_sink.derivation import Derivation
from oncegate.spark_sink.flow_client import FlowClient
from oncegate.spark_sink.options import (
    BATCHES_PER_TRIGGER_DEFAULT,
    ROWS_PER_WRITE_DEFAULT,
    TIMEOUT_S_DEFAULT,
    FlowOptions,
)
from oncegate.spark_sink.sink import StoreSink
from oncegate.stores.tables import StoreTable


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
    maintenance_s: int = 60
    redrive: bool = False
    commit: tuple[int, ...] = ()
    error: str = ""
    otlp_endpoint: str = ""

    def flow_options(self) -> FlowOptions:
        """Return where the flow is read, checked; raises BAD_OPTION."""
        return FlowOptions.parse(self._named())

    def client(self) -> FlowClient | ArchivedFlow:
        """Return a client of the flow, and of its archive where one is named; raises BAD_OPTION."""
        return self.flow_options().client()

    def derivation(self) -> Derivation:
        """Return what the job derives; raises BAD_OPTION."""
        return self.sink({**self._named(), "store": self.store, **self.sink_options()}).derivation()

    def _named(self) -> dict[str, str]:
        named = {"endpoints": self.endpoints, "flow": self.flow, "archive": self.archive}
        return {**named, "timeout_s": str(self.timeout_s)}

    def own_rows(self) -> Mapping[str, Mapping[str, Any]]:
        """Return for each table that the job shares with others the column values that mark its own rows."""
        return {}

    def sink_options(self) -> Mapping[str, str]:
        """Return the sink's options beyond those of every sink; raises BAD_OPTION; called before the job begins."""
        return {}


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every job; ``name`` is that of the job's module."""
    built = argparse.ArgumentParser(prog=f"oncegate.spark_sink.jobs.{name}", description=description)
    add = built.add_argument
    add("--endpoints", required=True, help="base URLs of gateway nodes, separated by commas")
    add("--store", required=True, help="sqlite:///absolute/directory or cassandra://host:port/keyspace")
    add("--checkpoint", default="", help="directory of Spark's own state; one job, one checkpoint; needed to run")
    add("--starting-batch", default="", help="where a new consumer begins: number, earliest or latest")
    add("--trigger", choices=("available-now", "processing-time"), default="available-now")
    add("--interval-ms", type=int, default=200, help="of the trigger processing-time")
    add("--batches-per-trigger", type=int, default=BATCHES_PER_TRIGGER_DEFAULT)
    add("--rows-per-write", type=int, default=ROWS_PER_WRITE_DEFAULT)
    add("--timeout-s", type=int, default=TIMEOUT_S_DEFAULT, help="how long one call to the gateway is retried")
    add("--progress", default="", help="file to which a JSON line is appended for each micro-batch")
    add("--otlp-endpoint", default="", metavar="URL", help="collector for spans of batches with traced items (OTLP)")
    add("--cores", type=int, default=2, help="threads for tasks; not under spark-submit")
    add("--replay", default="", metavar="NAME", help="read a range again, beside the job, and revise its rows")
    add("--from-batch", type=int, default=0, help="first batch of the replay")
    add("--to-batch", type=int, default=0, help="last batch of the replay")
    add("--keep-timestamps", action="store_true", help="the replay restores lost rows of an unchanged job")
    add("--dry-run", action="store_true", help="print what the replay would read and write")
    add("--reconcile", action="store_true", help="compare the store with a range of batches, all by default")
    add("--maintenance-s", type=int, default=60, help="how often partials are compacted and the like; 0: never")
    add("--redrive", action="store_true", help="derive dead letters again with this code, all of the job by default")
    add("--commit", type=int, action="append", default=[], help="redrive the item of this commit; again for more")
    add("--error", default="", help="redrive dead letters whose error contains this text")
    add(
        "--archive",
        default="",
        help="URL of the flow's archive, for dropped batches: with --replay, --redrive, --reconcile",
    )
    return built


def parsed(options: argparse.ArgumentParser, arguments: Sequence[str] | None) -> dict[str, Any]:
    """Return the fields of `Settings` that a command line gives; ends the process on a wrong one."""
    found = vars(options.parse_args(arguments))
    modes = [f"--{name}" for name in ("reconcile", "redrive", "replay") if found[name]]
    if len(modes) > 1:
        options.error(f"{' and '.join(modes)} exclude each other")
    if not (found["checkpoint"] or found["reconcile"] or found["redrive"] or found["dry_run"]):
        options.error("the following arguments are required: --checkpoint")
    available_now = found.pop("trigger") == "available-now"
    return {**found, "available_now": available_now, "commit": tuple(found["commit"])}
