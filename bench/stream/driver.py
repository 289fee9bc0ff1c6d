"""The Spark job of a stream run, a process of its own: ``python -m bench.stream.driver STORE DIRECTORY ENDPOINTS``.

Follows the flow until standard input closes. A line of input ``FIRST LAST`` replays these batches beside the live job
and prints how that ended, as JSON; the first line that it prints says that the live job was started.
"""

from __future__ import annotations

import json
import logging
import sys
import time

from bench.scenarios.scene import Job
from bench.stream.events import CONSUMER, RUNS, TABLE, derive
from oncegate.spark_sink import session
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of

_CORES = 2


def settings(
    store: str, directory: str, endpoints: str, replay: str = "", first: int = 0, last: int = 0
) -> JobSettings:
    """Return the settings of the live job, or of a replay."""
    return JobSettings(
        tables=(RUNS,),
        sink=sink_of(derive, "oncegate-event-runs"),
        endpoints=endpoints,
        flow=TABLE,
        consumer=CONSUMER,
        store=store,
        checkpoint=f"{directory}/checkpoint",
        available_now=False,
        interval_ms=200,
        replay=replay,
        from_batch=first,
        to_batch=last,
    )


def main() -> int:
    """Run until standard input closes; returns the exit status of the live job."""
    store, directory, endpoints = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session.build("stream", cores=_CORES)
    live = Job(spark, settings(store, directory, endpoints))
    print(json.dumps({"event": "started"}), flush=True)
    for number, line in enumerate(sys.stdin, start=1):
        first, last = map(int, line.split())
        began = time.monotonic()
        replay = Job(spark, settings(store, directory, endpoints, f"again-{number}", first, last))
        while (status := replay.ended()) is None:
            continue  # it waits for some minutes each time
        print(json.dumps({"event": "replayed", "status": status, "seconds": time.monotonic() - began}), flush=True)
    status = live.stop()
    spark.stop()
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
