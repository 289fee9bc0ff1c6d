"""How long a client of 64 outstanding commands waits when the leader is killed, frozen, cut off, or hands over.

The client is this process; it finds the new leader by itself (:mod:`tests.faults.harness.raw_client`). A trial's figure
is its longest time without an acknowledgement. After each trial the cluster is whole and settled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, Literal

from bench.figures import Latency
from bench.raft.throughput import cluster
from tests.faults.harness.scene import Scene

Fault = Literal["kill", "freeze", "cut", "transfer"]
OUTSTANDING: Final = 64
BEFORE_S: Final = (0.3, 0.6)
AFTER_COMMANDS: Final = 2000


@contextlib.asynccontextmanager
async def _inflicted(scene: Scene, fault: Fault, leader: str) -> AsyncIterator[None]:
    """Do it to the leader, and undo it after the block."""
    if fault == "kill":
        scene.cluster.kill(leader)
        yield
        scene.cluster.start(leader)
    elif fault == "freeze":
        scene.cluster.freeze(leader)
        yield
        scene.cluster.thaw(leader)
    elif fault == "cut":
        scene.links.isolate(leader)
        yield
        scene.links.heal()
    else:
        answer = await scene.client.ask(leader, "transfer")
        if answer != "done":
            raise RuntimeError(f"the transfer failed: {answer}")
        yield


async def trial(scene: Scene, fault: Fault, rng: random.Random) -> tuple[float, float, list[float]]:
    """One interruption under load; returns the gap, the gap's start relative to the fault, and the latencies."""
    await scene.settled()
    leader = await scene.leader()
    history = scene.client.history
    history.acknowledged.clear()
    began = time.monotonic()
    async with scene.client.loaded(OUTSTANDING):
        await asyncio.sleep(rng.uniform(*BEFORE_S))
        at = time.monotonic()
        async with _inflicted(scene, fault, leader):
            await scene.progress(AFTER_COMMANDS)
            await asyncio.sleep(0.2)
            ended = time.monotonic()
    gap, start = history.longest_gap(at, ended)
    return gap, start - at, history.latencies(began, ended)


async def run(directory: Path, fault: Fault, *, trials: int, seed: int) -> dict[str, Any]:
    """Repeat the fault; returns the gaps."""
    rng = random.Random(seed)
    gaps: list[float] = []
    latencies: list[float] = []
    async with cluster(directory, fault, linked=fault == "cut") as scene:
        for _ in range(trials):
            gap, _, seen = await trial(scene, fault, rng)
            gaps.append(gap)
            latencies += seen
    of_all = Latency.of(latencies)
    return {
        "fault": fault,
        "trials": trials,
        "median_ms": 1000 * statistics.median(gaps),
        "p90_ms": 1000 * sorted(gaps)[(len(gaps) * 9) // 10 if len(gaps) > 9 else -1],
        "worst_ms": 1000 * max(gaps),
        "gaps_ms": [round(1000 * gap, 1) for gap in gaps],
        "p50_ms": of_all.p50_ms,
        "p99_ms": of_all.p99_ms,
        "max_ms": of_all.max_ms,
    }
