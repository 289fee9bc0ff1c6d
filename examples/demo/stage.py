"""The processes and files of one run: three nodes, the Spark job, and where a real Cassandra is wanted, that.

Owns: where things lie and that nothing is left behind, whichever way the run ends. Must not know what is run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from examples.demo.delivery import TimelineJob
from examples.demo.errors import CouldNotRun
from examples.demo.ingest import TABLE
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.stores.devcassandra.cluster import DevCluster, free_ports
from oncegate.stores.devcassandra.node import Config
from oncegate.stores.errors import StoreError

JAVA_MIN: Final = 17
NODES: Final = 3
KEYSPACE: Final = "demo"


class StageError(CouldNotRun):
    """Something that the demo needs is missing, or did not start."""


class Stage:
    """What one run needs; leaving it ends all processes and removes the files, unless they are kept.

    Args:
        store: ``sqlite`` or ``cassandra``.
        directory: for all files, which then stay; a temporary one by default.
    """

    def __init__(self, store: str, directory: Path | None) -> None:
        self.store = store
        self._temporary = directory is None
        self._directory = directory
        self._job: TimelineJob | None = None
        self._cassandra: DevCluster | None = None
        self._kept = False
        self.cluster: LocalCluster
        self.store_url: str

    def __enter__(self) -> Self:
        self.directory = self._directory or Path(tempfile.mkdtemp(prefix="oncegate-demo-"))
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if any(self.directory.iterdir()):
                raise StageError(f"{self.directory} is not empty: a run starts from nothing")
        except OSError as fault:
            raise StageError(f"cannot write to {self.directory}: {fault}") from fault
        self.directory = self.directory.resolve()
        self.store_url = f"sqlite://{self.directory / 'store'}"
        self.cluster = LocalCluster(self.directory / "nodes", NODES)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not leave half of it behind.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        job, self._job = self._job, None
        try:
            if job is not None:
                job.close(at_once=kind is not None)
            if self._kept and kind is None:
                return
            self.cluster.close()
            if self._cassandra is not None:
                self._cassandra.wipe() if self._temporary else self._cassandra.down()
            if self._temporary:
                shutil.rmtree(self.directory, ignore_errors=True)
        finally:
            signal.signal(signal.SIGINT, before)

    def set_up(self, say: Callable[[str], None]) -> None:
        """Start what must run before the clock does: for ``cassandra`` a real one, on this machine.

        Raises:
            StageError: it did not start.
        """
        if self.store != "cassandra":
            return
        say("starting a real Cassandra; the first time its jars are fetched (63 MB)")
        # Flushes before it acknowledges: what is reported as delivered survives a kill of this only node.
        config = free_ports(Config(nodes=1, commitlog_sync="group"))
        self._cassandra = DevCluster(self.directory / "cassandra", config)
        try:
            self._cassandra.up()
        except StoreError as fault:
            raise StageError(f"Cassandra did not start: {fault.detail}") from fault
        self.store_url = self._cassandra.url(KEYSPACE)
        say(f"Cassandra is up: {self.store_url}")

    def start_job(self) -> TimelineJob:
        """Start the Spark job; returns at once."""
        self._job = TimelineJob(self.directory / "spark", self.cluster.endpoints, self.store_url)
        self._job.start()
        return self._job

    def stop_job(self) -> None:
        """Ask the Spark job to end; what it leaves is ended on leaving. Idempotent."""
        if self._job is not None:
            self._job.stop()

    def keep(self) -> list[str]:
        """Leave nodes and store running on leaving; returns lines to try, and how to stop."""
        self._kept = True
        node = self.cluster.endpoints[0]
        pids = " ".join(str(self.cluster.pid(node_id)) for node_id in self.cluster.ids)
        lines = [
            f"curl -s {node}/v1/cluster",
            f"curl -s {node}/v1/flows/{TABLE}",
            f"curl -s {node}/v1/tables/{TABLE}/rows/m0000001",
            f"curl -s -H 'Accept: application/x-ndjson' {node}/v1/flows/{TABLE}/batches/1 | head -n 3",
        ]
        stop = [f"kill {pids}", f"rm -r {self.directory}"]
        if self._cassandra is not None:
            home = self._cassandra.home
            stop.insert(1, f"{sys.executable} -m oncegate cassandra --home {home} down")
        return [*lines, f"{'; '.join(stop)}   # stops everything and removes its files"]


def check_java() -> str:
    """Return the version of the Java that Spark will use.

    Raises:
        StageError: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if java is None:
        raise StageError(f"missing: Java >= {JAVA_MIN} (no java {'in JAVA_HOME' if home else 'on the path'})")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "((\d+)[^"]*)"', said)
    if found is None or int(found[2]) < JAVA_MIN:
        raise StageError(f"missing: Java >= {JAVA_MIN} (found: {found[1] if found else 'one that tells no version'})")
    return found[1]
