"""A burst's load on the gateway alone, no Spark and no database beside it: what its answers take by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

from bench.children import talking
from bench.dataflows.stage import STARTED_S, Run, declare, words_of
from bench.dataflows.workload import Audience
from bench.usage import MachineTime, Usage
from oncegate.gateway.local.cluster import LocalCluster

ENDED_S: Final = 240.0
"""After the load at most, for its last answers."""


def alone(directory: Path, audience: Audience, seed: int, wanted: Run) -> dict[str, Any]:
    """Send the posts of a run to a gateway whose flow nobody follows.

    Returns:
        ``by_phase`` as in the row of a data flow, processor time of a post by part, and ``busy_cores`` of the machine.
    """
    directory.mkdir(parents=True)
    with LocalCluster(directory / "nodes") as cluster:
        cluster.start()
        cluster.wait_ready()
        asyncio.run(declare(cluster))
        words = [*words_of(wanted, audience, seed, directory / "acknowledged.npy"),
                 "--endpoints", ",".join(cluster.endpoints)]  # fmt: skip
        with talking("bench.dataflows.app", *words, log=directory / "app.log") as app:
            app.wait("warm", STARTED_S)
            machine, before = MachineTime.now(), _used(cluster)
            app.tell("begin")
            result = app.wait("result", sum(seconds for _, seconds in wanted.phases) + ENDED_S)
            seen, nodes = MachineTime.now().since(machine), _used(cluster).since(before)
            app.finish(STARTED_S)
    posts = max(1, result["measured"])
    return {
        "phases": list(wanted.phases),
        **{name: result[name] for name in ("measured", "dropped", "failed", "by_phase", "max_ms")},
        "cpu_us": {"app": 1e6 * result["cpu_s"] / posts, "queue": 1e6 * nodes.cpu_s / posts},
        "busy_cores": seen.busy_s / result["seconds"],
    }


def _used(cluster: LocalCluster) -> Usage:
    return Usage.of([cluster.pid(name) for name in cluster.ids])
