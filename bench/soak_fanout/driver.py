"""The process that the soak kills: one Spark session that follows the flows of all cases until it is told to stop.

`python -m bench.soak_fanout.driver STORE DIRECTORY ENDPOINTS CASE…`
"""

from __future__ import annotations

import signal
import sys
import threading

from bench.pipeline import Job, spark_of
from bench.soak_fanout.timeline import CASE
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
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    with spark_of("soak", _CORES) as spark:
        running = [
            Job(
                spark, f"oncegate-{name}", case.derivation, case.tables, endpoints=endpoints, flow=name, consumer=name,
                store=store, checkpoint=f"{directory}/{name}", interval_ms=500, batches_per_trigger=4,
            )
            for name, case in chosen(names).items()
        ]  # fmt: skip
        while not stopping.wait(1.0) and all(one.status is None for one in running):
            pass
        return max(one.stop() or 0 for one in running)


if __name__ == "__main__":
    sys.exit(main())
