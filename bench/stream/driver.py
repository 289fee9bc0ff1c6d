"""The Spark job of a stream run, a process of its own: ``python -m bench.stream.driver STORE DIRECTORY ENDPOINTS``.

Follows the flow until standard input closes. A line of input ``FIRST LAST`` replays these batches beside the live job
and prints how that ended, as JSON; the first line that it prints says that the live job was started.
"""

from __future__ import annotations

import sys
import time

from bench.children import say
from bench.pipeline import Job, spark_of
from bench.stream.events import CONSUMER, RUNS, TABLE, derive

_CORES = 2


def main() -> int:
    """Run until standard input closes; returns the exit status of the live job."""
    store, directory, endpoints = sys.argv[1:]
    with spark_of("stream", _CORES) as spark:

        def started(**more: object) -> Job:
            return Job(
                spark, "oncegate-event-runs", derive, (RUNS,), endpoints=endpoints, flow=TABLE, consumer=CONSUMER,
                store=store, checkpoint=f"{directory}/checkpoint", interval_ms=200, **more,
            )  # fmt: skip

        live = started()
        say("started")
        for number, line in enumerate(sys.stdin, start=1):
            first, last = map(int, line.split())
            began = time.monotonic()
            replay = started(replay=f"again-{number}", from_batch=first, to_batch=last)
            while (status := replay.ended()) is None:
                continue  # it waits for some minutes each time
            say("replayed", status=status, seconds=time.monotonic() - began)
        status = live.stop()
        return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
