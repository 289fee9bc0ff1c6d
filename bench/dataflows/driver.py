"""The Spark job of the integrated data flow, a process of its own.

``python -m bench.dataflows.driver STORE DIRECTORY ENDPOINTS AUTHORS LARGEST SEED`` follows the flow of posts until
standard input closes, and writes tweets and copies.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Final

from bench.dataflows.architectures import TABLE
from bench.dataflows.fan_out import FanOut
from bench.dataflows.workload import TIMELINES, TWEETS, Audience
from bench.dataflows.writers import INTERVAL_MS
from bench.scenarios.scene import Job
from oncegate.spark_sink import session
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.sink import sink_of

CONSUMER: Final = "fan-out"
CORES: Final = 2


def main() -> int:
    """Run until standard input closes; returns the exit status of the job."""
    store, directory, endpoints, authors, largest, seed = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session.build("data flows", cores=CORES)
    settings = JobSettings(
        tables=(TWEETS, TIMELINES),
        sink=sink_of(FanOut(Audience(int(authors), int(largest)), int(seed)), "oncegate-posts"),
        endpoints=endpoints,
        flow=TABLE,
        consumer=CONSUMER,
        store=store,
        checkpoint=f"{directory}/checkpoint",
        available_now=False,
        interval_ms=INTERVAL_MS,
    )
    job = Job(spark, settings)
    print(json.dumps({"event": "started"}), flush=True)
    sys.stdin.read()
    status = job.stop()
    spark.stop()
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
