"""The parts of a scenario: three gateway nodes, jobs of one Spark session, the lag over time, and the checks.

Owns: their order of start and end, and the clock of the run. Must not know what happens to whom: that is a scenario.
Read next: `bench.scenarios.plays`, `bench.scenarios.page`.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from pyspark.sql import SparkSession

from bench.scenarios.sales import Rows, Written
from bench.scenarios.traffic import TABLE, Traffic
from examples.demo.recount import Check
from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.derivation import Derivation
from oncegate.spark_sink.flow_client import close_connections
from oncegate.spark_sink.jobs import job
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of
from oncegate.stores.tables import StoreTable

CONSUMER: Final = "sales-tables"
WAIT_S_MAX: Final = 600.0
_SAMPLE_S: Final = 0.2
_ASK_S: Final = 1.0
_NAMED_MAX: Final = 5


class Sample(NamedTuple):
    """How many items each consumer still has to read; none where no node answered."""

    at_s: float
    behind: dict[str, int]


class Phase(NamedTuple):
    """A named span of the run; ``fault``: shaded in the plot."""

    name: str
    begin_s: float
    end_s: float
    fault: bool


class Job:
    """A job in a thread of this process, on the session of all jobs: as `job.run` runs it in a process of its own."""

    def __init__(self, spark: SparkSession, settings: JobSettings) -> None:
        self.settings = settings
        self.status: int | None = None
        self._spark = spark
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=settings.replay or settings.consumer)
        self._thread.start()

    def stop(self) -> int | None:
        """Ask it to end and wait; its exit status."""
        self._stopping.set()
        return self.ended()

    def ended(self) -> int | None:
        """Wait until it has ended by itself; its exit status, None when it does not."""
        self._thread.join(WAIT_S_MAX)
        return self.status

    def _run(self) -> None:
        # Spark looks sinks up in the session that is active in this thread; making a frame makes it that.
        self._spark.createDataFrame([(1,)], "number int")
        self.status = job.run(self._spark, self.settings, self._stopping)
        close_connections()  # they are this thread's


class Scene:
    """What one run of a scenario needs; leaving it ends everything that it has started.

    Args:
        directory: for all files.
        spark: the session that jobs run on; stays.
        store: URL of the store.
        rate: writes a second.
        seed: chooses what is written.
        say: told what happens.
    """

    def __init__(
        self, directory: Path, spark: SparkSession, store: str, *, rate: int, seed: int, say: Callable[[str], None]
    ) -> None:
        self.directory, self.store, self.rate, self.seed = directory, store, rate, seed
        self.samples: list[Sample] = []
        self.phases: list[Phase] = []
        self.checks: list[Check] = []
        self.figures: dict[str, str] = {}
        self._spark, self._say = spark, say
        self._jobs: list[Job] = []
        self._traffic: list[Traffic] = []
        self._meant: set[str] = {CONSUMER}
        self._ending = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="lag")

    def __enter__(self) -> Self:
        self.cluster = LocalCluster(self.directory / "nodes")
        self.cluster.start()
        self.cluster.wait_ready()
        self._began = time.monotonic()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._sampler.join()
        for traffic in self._traffic:
            traffic.abandon()
        for running in self._jobs:
            running.stop()
        self.cluster.close()

    def now_s(self) -> float:
        """Return the seconds since all nodes were ready."""
        return time.monotonic() - self._began

    @contextmanager
    def phase(self, name: str, *, fault: bool = False) -> Iterator[None]:
        """Note a span of the run."""
        begin = self.now_s()
        self._say(f"{begin:6.1f} s  {name}")
        yield
        self.phases.append(Phase(name, begin, self.now_s(), fault))

    def traffic(self, seed: int = 0) -> Traffic:
        """Start writing."""
        started = Traffic(self.cluster.endpoints, self.rate, self.seed + seed)
        self._traffic.append(started)
        started.start()
        return started

    def start_job(self, derivation: Derivation, tables: Sequence[StoreTable], **more: Any) -> Job:
        """Start a job as the one consumer of all jobs here."""
        settings: dict[str, Any] = {
            "tables": tuple(tables),
            "sink": sink_of(derivation, derivation.__name__.replace("_", "-")),
            "endpoints": ",".join(self.cluster.endpoints),
            "flow": TABLE,
            "consumer": CONSUMER,
            "store": self.store,
            "checkpoint": str(self.directory / "checkpoint"),
            "available_now": False,
            "timeout_s": 10,
            **more,
        }
        self._meant.add(f"{CONSUMER}.replay.{more['replay']}" if "replay" in more else CONSUMER)
        started = Job(self._spark, JobSettings(**settings))
        self._jobs.append(started)
        return started

    def rebuild(self) -> None:
        """Kill all nodes, remove their data, and start them anew: another cluster at the same addresses."""
        self.cluster.kill()
        for node_id in self.cluster.ids:
            shutil.rmtree(self.cluster.directory / node_id)
        self.cluster.start()
        self.cluster.wait_ready()

    def flow(self) -> dict[str, Any] | None:
        """Return the description of the flow by the first node that answers."""
        answers = (get_json(f"{endpoint}/v1/flows/{TABLE}", _ASK_S) for endpoint in self.cluster.endpoints)
        return next((answer for answer in answers if answer is not None), None)

    def cursor(self) -> int:
        """Return the last batch that the job has finished, 0 = none."""
        return int(((self.flow() or {}).get("consumers", {}).get(CONSUMER) or {}).get("cursor", 0))

    def last_batch(self) -> int:
        """Return the newest sealed batch, 0 = none."""
        return int((self.flow() or {}).get("last_batch", 0))

    def catch_up(self) -> None:
        """Wait until the job has finished all that is written.

        Raises:
            TimeoutError: not within `WAIT_S_MAX`.
        """

        def finished() -> bool:
            found = self.flow()
            return found is not None and not found["open_items"] and self.cursor() >= found["last_batch"] > 0

        wait_for(finished, WAIT_S_MAX, "the job has caught up", every_s=_SAMPLE_S)

    def delivering(self) -> None:
        """Wait until the job has finished its first batch.

        Raises:
            TimeoutError: not within `WAIT_S_MAX`.
        """
        wait_for(lambda: self.cursor() > 0, WAIT_S_MAX, "the job delivers", every_s=_SAMPLE_S)

    def pass_s(self, seconds: float) -> None:
        """Let time pass: a scenario's phases last as long as they are asked to."""
        self._ending.wait(seconds)

    def behind(self, consumer: str = CONSUMER, since_s: float = 0.0) -> int:
        """Return the largest lag seen, in items."""
        return max((one.behind.get(consumer, 0) for one in self.samples if one.at_s >= since_s), default=0)

    def check(self, name: str, expected: object, found: object, *named: str) -> None:
        """Note a check of two values."""
        self.checks.append(Check(name, f"{expected}", f"{found}", expected == found, named))

    def check_rows(self, name: str, expected: Rows, found: Rows) -> None:
        """Note a check of rows, and name some that differ."""
        differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        named = tuple(f"{key}: {expected.get(key)} expected, {found.get(key)} found" for key in differing[:_NAMED_MAX])
        self.checks.append(Check(name, f"{len(expected):,}", f"{len(found):,}", not differing, named))

    def _sample(self) -> None:
        while not self._ending.wait(_SAMPLE_S):
            found = self.flow()
            behind: dict[str, int] = {}
            for consumer in self._meant if found is not None else ():
                known = found["consumers"].get(consumer) if found is not None else None
                if known is not None:
                    behind[consumer] = int(known["lag_items"] or 0)
                elif consumer == CONSUMER and found is not None:
                    # Not attached yet: it has all of it to read.
                    behind[consumer] = int(found["items"] or 0)
            self.samples.append(Sample(self.now_s(), behind))


def all_of(*parts: Sequence[Written]) -> list[Written]:
    """Return the writes of several spells of traffic."""
    return [one for part in parts for one in part]
