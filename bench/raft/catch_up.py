"""A follower that comes back a million entries behind: does it catch up, and what does that cost the others?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.raft.throughput import OPERATION_BYTES, WARM_UP_S, cluster

OUTSTANDING = 64


async def run(directory: Path, *, entries: int, seconds: float, seed: int, limit_s: float) -> dict[str, Any]:
    """Kill a follower, fill the log, measure, start it, measure until it has all or ``limit_s`` have passed."""
    async with cluster(directory, "catch-up") as scene:
        client = scene.client
        leader = await scene.leader()
        follower = scene.others(leader)[0]
        scene.cluster.kill(follower)
        began = time.perf_counter()
        await client.ask(leader, "fill", [entries, OPERATION_BYTES], timeout_s=1800)
        filled_s = time.perf_counter() - began
        await client.ask(leader, "load", [OUTSTANDING, OPERATION_BYTES, seed])
        await asyncio.sleep(WARM_UP_S)
        await client.ask(leader, "mark")
        await asyncio.sleep(seconds)
        before = await client.ask(leader, "report")
        scene.cluster.start(follower)
        began = time.perf_counter()
        behind = entries
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
        "entries": entries,
        "filled_s": filled_s,
        "before_per_second": before["per_second"],
        "during_per_second": during["per_second"],
        "after_per_second": after["per_second"],
        "kept": during["per_second"] / after["per_second"],
        "kept_of_two_nodes": during["per_second"] / before["per_second"],
        "during_p99_ms": during["p99_ms"],
        "during_max_ms": during["max_ms"],
        "caught_up": behind <= OUTSTANDING,
        "took_s": took_s,
        "behind_at_the_end": behind,
    }
