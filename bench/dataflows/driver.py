"""The Spark job of the integrated data flow, a process of its own.

``python -m bench.dataflows.driver STORE DIRECTORY ENDPOINTS AUTHORS LARGEST SEED`` follows the flow of posts until
standard input closes, and writes tweets and copies.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from bench.dataflows.architectures import TABLE
from bench.dataflows.workload import TIMELINES, TWEETS, Audience, Posts, copies, followers_of, tweets
from bench.scenarios.scene import Job
from oncegate.spark_sink import session
from oncegate.spark_sink.derivation import Change, FlowBatch, Upsert
from oncegate.spark_sink.jobs.settings import JobSettings
from oncegate.spark_sink.rows import Contacts
from oncegate.spark_sink.sink import sink_of

CONSUMER: Final = "fan-out"
CORES: Final = 2


@lru_cache(maxsize=1)
def _known(audience: Audience, seed: int) -> Contacts:
    return followers_of(audience, seed)


@dataclass(frozen=True)
class FanOut:
    """Derives the tweet and the copies of each post."""

    audience: Audience
    seed: int

    def __call__(self, batch: FlowBatch) -> Iterator[Change]:
        """Yield the rows of a batch, in pieces."""
        keys, values = (batch.items.column(name).to_pylist() for name in ("key", "value"))
        # A value of the table is JSON; a post is JSON inside a string.
        posts = Posts.of(map(int, keys), map(json.loads, values))
        yield Upsert(TWEETS, tweets(posts))
        for rows in copies(posts, _known(self.audience, self.seed)):
            yield Upsert(TIMELINES, rows)


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
        interval_ms=200,
    )
    job = Job(spark, settings)
    print(json.dumps({"event": "started"}), flush=True)
    sys.stdin.read()
    status = job.stop()
    spark.stop()
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
