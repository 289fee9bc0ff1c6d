"""The Spark job of the integrated data flow, a process of its own.

``python -m bench.dataflows.driver STORE DIRECTORY ENDPOINTS AUTHORS LARGEST SEED`` follows the flow of posts until
standard input closes, and writes tweets and copies.
"""

from __future__ import annotations

import sys
from typing import Final

from bench.children import say
from bench.dataflows.architectures import TABLE
from bench.dataflows.fan_out import FanOut
from bench.dataflows.workload import TIMELINES, TWEETS, Audience
from bench.dataflows.writers import INTERVAL_MS
from bench.pipeline import Job, spark_of

CONSUMER: Final = "fan-out"
CORES: Final = 2


def main() -> int:
    """Run until standard input closes; returns the exit status of the job."""
    store, directory, endpoints, authors, largest, seed = sys.argv[1:]
    derivation = FanOut(Audience(int(authors), int(largest)), int(seed))
    with spark_of("data flows", CORES) as spark:
        job = Job(
            spark, "oncegate-posts", derivation, (TWEETS, TIMELINES), endpoints=endpoints, flow=TABLE,
            consumer=CONSUMER, store=store, checkpoint=f"{directory}/checkpoint", interval_ms=INTERVAL_MS,
        )  # fmt: skip
        say("started")
        sys.stdin.read()
        status = job.stop()
        return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
