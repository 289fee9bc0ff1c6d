"""The process that the soak kills: one Spark session that follows the flows of all cases until it is told to stop.

`python -m bench.soak_fanout.driver STORE DIRECTORY ENDPOINTS CASE…`
"""

from __future__ import annotations

import logging
import signal
import sys
import threading

from bench.scenarios.scene import Job
from bench.soak_fanout.timeline import CASE
from oncegate.spark_sink import session
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of
from tests.spark.library.case import Case, all_cases
from tests.spark.library.every_case import EVERY_CASE

_CORES = 4


def chosen(names: list[str]) -> dict[str, Case]:
    """Return the cases of these names; by default the timeline's, and all of the library as one job."""
    usual = {one.name: one for one in (CASE, EVERY_CASE)}
    known = {**usual, **all_cases()}
    return {name: known[name] for name in names} if names else usual


def main() -> int:
    """Run until SIGTERM; returns the exit status, 1 when a job has ended by itself."""
    store, directory, endpoints, *names = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spark = session.build("soak", cores=_CORES)
    running = [
        Job(
            spark,
            JobSettings(
                tables=case.tables,
                sink=sink_of(case.derivation, f"oncegate-{name}"),
                endpoints=endpoints,
                flow=name,
                consumer=name,
                store=store,
                checkpoint=f"{directory}/{name}",
                available_now=False,
                interval_ms=500,
                batches_per_trigger=4,
            ),
        )
        for name, case in chosen(names).items()
    ]
    while not stopping.wait(1.0) and all(one.status is None for one in running):
        pass
    statuses = [one.stop() for one in running]
    spark.stop()
    return max(status or 0 for status in statuses)


if __name__ == "__main__":
    sys.exit(main())
