"""Processes beside the nodes: a Spark job that follows a flow, and a Cassandra that it delivers to.

Owns: their commands and files below a run's directory, kill -9 of all that belongs to one, and whether this machine
can have them. Both are :class:`~oncegate.proof.check.equipment.Target`: faults kill them and start them again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from oncegate.gateway.local.processes import end_session, spawn
from oncegate.proof.check.errors import CheckError
from oncegate.stores.devcassandra import Config, DevCluster
from oncegate.stores.devcassandra.cluster import free_ports
from oncegate.stores.devcassandra.jars import java
from oncegate.stores.errors import StoreError

CASSANDRA_HEAP: Final = "512m"
KEYSPACE: Final = "oncegate_check"
CALL_S: Final = 5
"""How long the job tries one call to the gateway before its query begins anew."""
INTERVAL_MS: Final = 100


def lacking(*, cassandra: bool) -> str:
    """Return what keeps this machine from running the job and, if asked for, Cassandra; empty: nothing."""
    needed = ("pyspark", "cassandra") if cassandra else ("pyspark",)
    for module in needed:
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    try:
        java()
    except StoreError as reason:
        return reason.detail
    return ""


class StreamRowsJob:
    """The job behind a stream table, as a session of processes: the driver, its JVM and its Python workers.

    ``directory`` is for its checkpoint; its log is ``spark.log`` beside it. Each start asks ``endpoints``.
    """

    name = "spark"

    def __init__(self, directory: Path, endpoints: Callable[[], Sequence[str]], table: str, store: str) -> None:
        self.kills = 0
        """How often it was running and was killed."""
        self.ended: list[int] = []
        """Exit statuses with which it ended by itself: a job that follows a flow never does."""
        self._directory, self._endpoints, self._table, self._store = directory, endpoints, table, store
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def log(self) -> Path:
        """What it says."""
        return self._directory.with_name("spark.log")

    def command(self) -> list[str]:
        """Return how it is started."""
        return [
            *(sys.executable, "-m", "oncegate.spark_sink.jobs.stream_rows"),
            *("--endpoints", ",".join(self._endpoints())),
            *("--table", self._table, "--store", self._store),
            *("--checkpoint", str(self._directory / "checkpoint")),
            *("--trigger", "processing-time", "--interval-ms", str(INTERVAL_MS)),
            *("--timeout-s", str(CALL_S), "--cores", "1"),
        ]

    def start(self) -> None:
        """Start it; without effect while it runs. It reads its first batch some seconds later."""
        with self._lock:
            if self._runs():
                return
            self._directory.mkdir(parents=True, exist_ok=True)
            self._process = spawn(self.command(), self.log)

    def kill(self) -> None:
        """Kill -9 everything of it, and wait until all of it is gone; raises TimeoutError if something stays."""
        with self._lock:
            process = self._process
            if process is None:
                return
            self.kills += self._runs()
            end_session(process.pid)
            process.wait()
            self._process = None

    def is_running(self) -> bool:
        """Whether its driver lives."""
        with self._lock:
            return self._runs()

    def _runs(self) -> bool:
        if self._process is None:
            return False
        status = self._process.poll()
        if status is None:
            return True
        end_session(self._process.pid)
        self._process = None
        self.ended.append(status)
        return False


class CassandraProcess:
    """One Cassandra node with its data below a directory; it flushes before it acknowledges."""

    name = "cassandra"

    def __init__(self, directory: Path) -> None:
        self._cluster = DevCluster(directory, free_ports(Config(commitlog_sync="group", heap=CASSANDRA_HEAP)))

    @property
    def url(self) -> str:
        """URL of the store in it."""
        return self._cluster.url(KEYSPACE)

    def start(self) -> None:
        """Start it and wait until it answers; without effect while it runs. Raises CheckError."""
        with _as_check_error():
            self._cluster.up()

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        with _as_check_error():
            self._cluster.kill(1)

    def is_running(self) -> bool:
        """Whether it lives."""
        return self._cluster.nodes[0].pid() is not None


@contextlib.contextmanager
def _as_check_error() -> Iterator[None]:
    try:
        yield
    except StoreError as wrong:
        raise CheckError(f"Cassandra: {wrong.detail}") from wrong
