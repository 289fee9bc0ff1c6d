"""What is asked of the parts of a stream run while it runs: how far they are, and what they have used.

Owns: the figures that are taken each second. Read next: `bench.stream.__main__`.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from bench.children import Talking
from bench.pipeline import flow
from bench.stream.events import CONSUMER, TABLE
from bench.usage import Usage
from oncegate.gateway.local.cluster import LocalCluster

SAMPLE_S: Final = 1.0


class Sample(NamedTuple):
    """The state at a time of the run: events acknowledged, items and batches that the job still has to read."""

    at_s: float
    acknowledged: int
    lag_items: int
    cursor: int
    last_batch: int


def sample(cluster: LocalCluster, writer: Talking, began_s: float) -> Sample | None:
    """Return the state now, or None where no node answers."""
    found = flow(cluster.endpoints, TABLE)
    if found is None:
        return None
    told = writer.of("progress")
    job = found["consumers"].get(CONSUMER) or {}
    behind = int(job.get("lag_items") or 0) if job else int(found["items"] or 0)
    acknowledged = int(told[-1]["acknowledged"]) if told else 0
    return Sample(time.monotonic() - began_s, acknowledged, behind, int(job.get("cursor", 0)), int(found["last_batch"]))


def used(cluster: LocalCluster, writer: Talking, driver: Talking) -> dict[str, Usage]:
    """Return what each part has used so far."""
    nodes = Usage.of(cluster.pid(name) for name in cluster.ids)
    return {"nodes": nodes, "client": Usage.of(writer.pids()), "spark": Usage.of(driver.pids())}
