"""Commands a second and their latency at 1, 64 and 512 outstanding, and with 100 operations a command."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from bench.raft.profile import limit
from tests.faults.harness.scene import Scene, running

OPERATION_BYTES = 200
SINGLE = ((1, 1), (64, 1), (512, 1))
BATCHED = ((64, 100),)
PROFILED = ((64, 1), (512, 1))
WARM_UP_S = 0.5


def busy_s() -> float:
    """Seconds that all cores of the machine together have been busy since it started."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    ticks = [int(word) for word in words[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


async def measure(scene: Scene, outstanding: int, operations: int, *, seconds: float, seed: int) -> dict[str, Any]:
    """One closed loop in the leader's process; returns its row, with every process's use of a core."""
    client = scene.client
    await scene.settled()
    leader = await scene.leader()
    names = [leader, *scene.others(leader)]
    await client.ask(leader, "load", [outstanding, OPERATION_BYTES * operations, seed])
    await asyncio.sleep(WARM_UP_S)
    before, busy, began = await scene.statuses(), busy_s(), time.perf_counter()
    await client.ask(leader, "mark")
    await asyncio.sleep(seconds)
    row: dict[str, Any] = await client.ask(leader, "report")
    after, elapsed = await scene.statuses(), time.perf_counter() - began
    await client.ask(leader, "unload")
    machine_busy = (busy_s() - busy) / elapsed
    cpu = {name: (after[name]["cpu_s"] - before[name]["cpu_s"]) / elapsed for name in names}
    row["per_second"] *= operations
    return {"outstanding": outstanding, "operations": operations, **row, "cpu": cpu, "machine_busy": machine_busy}


async def profiled(scene: Scene, outstanding: int, *, seconds: float, seed: int) -> dict[str, float]:
    """The same under a profiler in the leader; returns seconds of own time by part."""
    client = scene.client
    leader = await scene.leader()
    await client.ask(leader, "load", [outstanding, OPERATION_BYTES, seed])
    await asyncio.sleep(WARM_UP_S)
    await client.ask(leader, "profile", argument=True)
    await asyncio.sleep(seconds)
    parts: dict[str, float] = await client.ask(leader, "profile", argument=False)
    await client.ask(leader, "unload")
    return parts


def cluster(directory: Path, name: str, **options: Any) -> Any:
    """Three processes with the default settings and a state machine without state."""
    how = {"linked": False, "config": {}, "record": False, "module": "bench.raft.node", **options}
    return running(directory / name, **how)


async def run(
    directory: Path, cases: tuple[tuple[int, int], ...], *, seconds: float, seed: int
) -> list[dict[str, Any]]:
    """Measure the cases, one cluster for all."""
    async with cluster(directory, f"throughput-{cases[0]}") as scene:
        return [await measure(scene, *case, seconds=seconds, seed=seed) for case in cases]


async def run_profile(directory: Path, *, seconds: float, seed: int) -> list[dict[str, Any]]:
    """Profile the leader at 64 and 512 outstanding, each beside a run without profiler."""
    rows = []
    async with cluster(directory, "profile") as scene:
        for outstanding, operations in PROFILED:
            plain = await measure(scene, outstanding, operations, seconds=seconds, seed=seed)
            parts = await profiled(scene, outstanding, seconds=seconds, seed=seed)
            total = sum(parts.values()) or 1.0
            rows.append(
                {
                    "outstanding": outstanding,
                    "per_second": plain["per_second"],
                    "cpu": plain["cpu"],
                    "share": {part: seconds / total for part, seconds in parts.items()},
                    "limit": limit(plain),
                }
            )
    return rows
