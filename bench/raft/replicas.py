"""Bare replicas under load: commands a second, gaps under faults of the leader, and a follower that comes back behind.

The load runs inside the leader's process (:mod:`bench.raft.node`); where the leader is hurt, the client is this process
and finds the next leader by itself (:mod:`tests.faults.harness.raw_client`).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from bench.figures import Latency
from bench.usage import MachineTime
from tests.faults.harness.scene import Scene, running

OPERATION_BYTES: Final = 200
OUTSTANDING: Final = 64
WARM_UP_S: Final = 0.5
BEFORE_S: Final = (0.3, 0.6)
AFTER_COMMANDS: Final = 2000
FAULTS: Final = ("kill", "freeze", "cut", "transfer")


def cluster(directory: Path, name: str, **options: Any) -> Any:
    """Three processes with the default settings and a state machine without state."""
    how = {"linked": False, "config": {}, "record": False, "module": "bench.raft.node", **options}
    return running(directory / name, **how)


async def throughput(
    directory: Path, outstanding: int, operations: int, *, seconds: float, seed: int
) -> dict[str, Any]:
    """One closed loop in the leader's process; returns its figures, with every process's use of a core."""
    async with cluster(directory, f"throughput-{outstanding}-{operations}") as scene:
        client = scene.client
        await scene.settled()
        leader = await scene.leader()
        await client.ask(leader, "load", [outstanding, OPERATION_BYTES * operations, seed])
        await asyncio.sleep(WARM_UP_S)
        before, busy, began = await scene.statuses(), MachineTime.now(), time.perf_counter()
        await client.ask(leader, "mark")
        await asyncio.sleep(seconds)
        row: dict[str, Any] = await client.ask(leader, "report")
        after, elapsed = await scene.statuses(), time.perf_counter() - began
        await client.ask(leader, "unload")
        cores = MachineTime.now().since(busy).busy_s / elapsed
        names = [leader, *scene.others(leader)]
    cpu = {name: (after[name]["cpu_s"] - before[name]["cpu_s"]) / elapsed for name in names}
    return {**row, "per_second": row["per_second"] * operations, "cpu": cpu, "machine_busy": cores}


@contextlib.asynccontextmanager
async def _inflicted(scene: Scene, fault: str, leader: str) -> AsyncIterator[None]:
    """Do it to the leader, and undo it after the block."""
    match fault:
        case "kill":
            scene.cluster.kill(leader)
            yield
            scene.cluster.start(leader)
        case "freeze":
            scene.cluster.freeze(leader)
            yield
            scene.cluster.thaw(leader)
        case "cut":
            scene.links.isolate(leader)
            yield
            scene.links.heal()
        case _:
            answer = await scene.client.ask(leader, "transfer")
            if answer != "done":
                raise RuntimeError(f"the transfer failed: {answer}")
            yield


async def _trial(scene: Scene, fault: str, rng: random.Random) -> tuple[float, list[float]]:
    """One interruption under load; returns the longest time without an acknowledgement, and the latencies."""
    await scene.settled()
    leader, history = await scene.leader(), scene.client.history
    history.acknowledged.clear()
    began = time.monotonic()
    async with scene.client.loaded(OUTSTANDING):
        await asyncio.sleep(rng.uniform(*BEFORE_S))
        at = time.monotonic()
        async with _inflicted(scene, fault, leader):
            await scene.progress(AFTER_COMMANDS)
            await asyncio.sleep(0.2)
            ended = time.monotonic()
    return history.longest_gap(at, ended)[0], history.latencies(began, ended)


async def interruptions(directory: Path, fault: str, *, trials: int, seed: int) -> dict[str, Any]:
    """Repeat the fault; returns the gaps. After each trial the cluster is whole and settled again."""
    rng = random.Random(seed)
    async with cluster(directory, fault, linked=fault == "cut") as scene:
        found = [await _trial(scene, fault, rng) for _ in range(trials)]
    gaps = sorted(1000 * gap for gap, _ in found)
    return {
        "trials": trials, "median_ms": statistics.median(gaps),
        "p90_ms": gaps[len(gaps) * 9 // 10 if trials > 9 else -1],
        "worst_ms": gaps[-1], "gaps_ms": gaps, **Latency.of([took for _, of in found for took in of])._asdict(),
    }  # fmt: skip


async def catch_up(directory: Path, *, entries: int, seconds: float, seed: int, limit_s: float) -> dict[str, Any]:
    """Kill a follower, fill the log, measure, start it, measure until it has all or ``limit_s`` have passed."""
    async with cluster(directory, "catch-up") as scene:
        client, leader = scene.client, await scene.leader()
        follower = scene.others(leader)[0]
        scene.cluster.kill(follower)
        await client.ask(leader, "fill", [entries, OPERATION_BYTES], timeout_s=1800)
        await client.ask(leader, "load", [OUTSTANDING, OPERATION_BYTES, seed])
        await asyncio.sleep(WARM_UP_S)
        await client.ask(leader, "mark")
        await asyncio.sleep(seconds)
        before = await client.ask(leader, "report")
        scene.cluster.start(follower)
        began, behind = time.perf_counter(), entries
        while behind > OUTSTANDING and time.perf_counter() - began < limit_s:
            await asyncio.sleep(0.1)
            status = await client.status(leader)
            behind = status["last_index"] - status["peers"][follower]["match_index"]
        took_s = time.perf_counter() - began
        during = await client.ask(leader, "report")
        await client.ask(leader, "mark")
        await asyncio.sleep(seconds)
        after = await client.ask(leader, "report")
        await client.ask(leader, "unload")
    return {
        "caught_up": behind <= OUTSTANDING, "took_s": took_s, "behind_at_the_end": behind,
        "kept": during["per_second"] / after["per_second"],
        "kept_of_two_nodes": during["per_second"] / before["per_second"],
        **{name: during[name] for name in ("per_second", "samples", "p50_ms", "p99_ms", "max_ms")},
    }  # fmt: skip
