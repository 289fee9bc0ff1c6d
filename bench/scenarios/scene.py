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
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from pyspark.sql import SparkSession

from bench.pipeline import WAIT_S_MAX, Job, finished, flow
from bench.scenarios.sales import Rows
from bench.scenarios.traffic import TABLE, Traffic
from examples.demo.recount import Check
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.derivation import Derivation
from oncegate.stores.tables import StoreTable

CONSUMER: Final = "sales-tables"
_SAMPLE_S: Final = 0.2
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
        name = derivation.__name__.replace("_", "-")
        settings: dict[str, Any] = {
            "endpoints": ",".join(self.cluster.endpoints), "flow": TABLE, "consumer": CONSUMER, "store": self.store,
            "checkpoint": str(self.directory / "checkpoint"), "timeout_s": 10, **more,
        }  # fmt: skip
        self._meant.add(f"{CONSUMER}.replay.{more['replay']}" if "replay" in more else CONSUMER)
        started = Job(self._spark, name, derivation, tables, **settings)
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
        return flow(self.cluster.endpoints, TABLE)

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
        done = partial(finished, self.cluster.endpoints, TABLE, CONSUMER)
        wait_for(done, WAIT_S_MAX, "the job has caught up", every_s=_SAMPLE_S)

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
