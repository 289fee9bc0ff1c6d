"""The Spark job that delivers: its process, what it reports, and when everything has arrived.

Owns: the job's command line, its processes, and the wait for its cursor. Must not know what a timeline row is
(that is the job's business, and the recount's). Read next: :mod:`oncegate.spark_sink.jobs.timeline`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

from examples.demo.dataset import DATA_FILE
from examples.demo.errors import CouldNotRun
from examples.demo.ingest import TABLE
from examples.demo.recording import Delivered, Recording
from oncegate.gateway.local.processes import end_session, spawn
from oncegate.gateway.local.waiting import until

CONSUMER: Final = "timeline"
DEADLINE_S: Final = 300.0
"""How long the job may need for the rest once everything is written."""
ATTACH_S_MAX: Final = 30.0
STOP_S: Final = 15.0
"""For the driver to end, and again for what it started: at its first run the JVM writes a class archive."""
_BATCHES_PER_TRIGGER: Final = 4
"""Few, so that the first rows arrive early and progress is seen; each micro-batch costs about 0.15 s by itself."""
_STARTS_MAX: Final = 2
_NO_FLOW: Final = "FLOW_REFUSED"
_POLL_S: Final = 0.1
_TIMEOUT: Final = aiohttp.ClientTimeout(total=3.0)


class DeliveryError(CouldNotRun):
    """The job ended, or did not arrive in time."""


class TimelineJob:
    """The fan-out job as a session of processes: the driver, its JVM and its Python workers.

    Args:
        directory: for the job's checkpoint, progress file and log.
        endpoints: of the gateway nodes.
        store: URL of the store.
    """

    def __init__(self, directory: Path, endpoints: Sequence[str], store: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "spark.log"
        self.progress = directory / "progress.jsonl"
        self._command = [
            *(sys.executable, "-m", "oncegate.spark_sink.jobs.timeline"),
            *("--endpoints", ",".join(endpoints)),
            *("--flow", TABLE),
            *("--consumer", CONSUMER),
            *("--store", store),
            *("--contacts", str(DATA_FILE)),
            *("--checkpoint", str(directory / "checkpoint")),
            *("--trigger", "processing-time"),
            *("--batches-per-trigger", str(_BATCHES_PER_TRIGGER)),
            *("--progress", str(self.progress)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._starts_left = _STARTS_MAX

    def start(self) -> None:
        """Start the job; returns at once."""
        self._starts_left -= 1
        self._process = spawn(self._command, self.log)

    def check(self) -> None:
        """Raise DeliveryError if the job has ended; start it again if it came before the flow that it asks for."""
        if self._process is None or self._process.poll() is None:
            return
        if self._starts_left and _NO_FLOW in self.log_tail():
            self.start()
        else:
            raise DeliveryError(f"the Spark job ended with status {self._process.returncode}:\n{self.log_tail()}")

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the job's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""

    def stop(self) -> None:
        """Ask the driver to end, and wait for it; its JVM may take longer. Idempotent."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        # The driver alone: it takes its JVM and its workers down in order.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)

    def close(self, *, at_once: bool) -> None:
        """Leave no process of the job behind; idempotent.

        Args:
            at_once: kill what runs; otherwise what ended in order gets the time to do so.
        """
        process, self._process = self._process, None
        if process is None:
            return
        end_session(process.pid, grace_s=0 if at_once else STOP_S)
        process.wait()


class Arrival:
    """Follows the job: rows from its progress file, the cursor from the cluster.

    Args:
        job: started.
        http: connections to the nodes.
        endpoints: of the nodes.
        recording: told of each micro-batch.
    """

    def __init__(
        self, job: TimelineJob, http: aiohttp.ClientSession, endpoints: Sequence[str], recording: Recording
    ) -> None:
        self._job = job
        self._http = http
        self._endpoints = endpoints
        self._recording = recording
        self._offset = 0

    async def follow(self) -> None:
        """Record what the job reports, until cancelled.

        Raises:
            DeliveryError: the job has ended.
        """
        while True:
            self._job.check()
            self._read_progress()
            await asyncio.sleep(_POLL_S)

    async def attached(self) -> None:
        """Wait until the job has attached its consumer, or for ``ATTACH_S_MAX``: later is late, but no failure.

        Raises:
            DeliveryError: the job has ended.
        """

        async def attached() -> bool:
            self._job.check()
            flow = await self._flow()
            return flow is not None and CONSUMER in flow["consumers"]

        with contextlib.suppress(TimeoutError):
            await until(attached, ATTACH_S_MAX, "the consumer is attached", every_s=_POLL_S)

    async def complete(self) -> int:
        """Wait until the cursor has passed the last batch of everything written, and return its number.

        Raises:
            DeliveryError: not within ``DEADLINE_S``, or the job has ended (also raised by :meth:`follow`).
        """

        async def delivered() -> int | None:
            self._job.check()
            flow = await self._flow()
            if flow is None or flow["open_items"] or not flow["last_batch"]:
                return None
            cursor: int = flow["consumers"].get(CONSUMER, {}).get("cursor", 0)
            return cursor if cursor >= flow["last_batch"] else None

        try:
            cursor = await until(
                delivered, DEADLINE_S, "delivered after the last write", state=self._job.log_tail, every_s=_POLL_S
            )
        except TimeoutError as late:
            raise DeliveryError(str(late)) from None
        self._read_progress()
        return cursor

    async def _flow(self) -> dict[str, Any] | None:
        for endpoint in self._endpoints:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self._http.get(f"{endpoint}/v1/flows/{TABLE}", timeout=_TIMEOUT) as response:
                    if response.status == 200:
                        state: dict[str, Any] = await response.json()
                        return state
        return None

    def _read_progress(self) -> None:
        if not self._job.progress.exists():
            return
        with self._job.progress.open("rb") as file:
            file.seek(self._offset)
            news = file.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._offset += len(whole)
        delivered = self._recording.delivered
        for line in whole.splitlines():
            report = json.loads(line)
            before = delivered[-1] if delivered else Delivered(0.0, 0, 0)
            # A micro-batch that runs again reports again; its rows are there already.
            if report["last_batch"] > before.batches:
                rows = before.rows + report["rows_by_table"].get("timeline", 0)
                delivered.append(Delivered(self._recording.now_s(), report["last_batch"], rows))
