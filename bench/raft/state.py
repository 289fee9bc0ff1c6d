"""Whole gateway nodes with much state: restart, memory, and the longest stall while a snapshot is taken under load."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

from bench.figures import Latency
from oncegate import Client, Session
from oncegate.gateway.local.blocking_http import RequestRefused, get, send_json
from oncegate.gateway.local.cluster import LocalCluster

VALUE_BYTES: Final = 200
ROWS_A_CALL: Final = 500
CALLERS: Final = 8
READY_S: Final = 1800.0
JOIN_S: Final = 600.0


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


async def _fill(session: Session, rows: int) -> None:
    value = "v" * (VALUE_BYTES - 2)
    parts = iter(range(0, rows, ROWS_A_CALL))

    async def one() -> None:
        for first in parts:
            count = min(ROWS_A_CALL, rows - first)
            await session.put_many("rows", [(f"k{first + i}", value) for i in range(count)], timeout_s=120)

    await asyncio.gather(*(one() for _ in range(CALLERS)))


async def _stalls(session: Session, during: Awaitable[None]) -> tuple[float, list[float]]:
    """Rewrite rows at 64 outstanding; returns the longest time without an acknowledgement, and the latencies."""
    over = asyncio.ensure_future(during)
    latencies: list[float] = []
    last = time.perf_counter()
    longest = 0.0
    value = "w" * (VALUE_BYTES - 2)

    async def one(worker: int) -> None:
        nonlocal last, longest
        number = 0
        while not over.done():
            sent = time.perf_counter()
            number += 1
            await session.put("rows", f"k{worker * 1000 + number % 1000}", value)
            now = time.perf_counter()
            latencies.append(now - sent)
            longest, last = max(longest, now - last), now

    await asyncio.gather(*(one(worker) for worker in range(64)))
    await over
    return longest, latencies


async def _join(cluster: LocalCluster) -> None:
    """Add a fourth node, which gets the whole state as a snapshot."""
    new = cluster.expand("n4")
    cluster.start(new.node_id)
    body: dict[str, object] = {
        "id": new.node_id,
        "host": new.host,
        "http_port": new.http_port,
        "peer_port": new.peer_port,
    }
    began = time.perf_counter()
    while True:
        try:
            await asyncio.to_thread(send_json, "POST", f"{cluster.endpoints[0]}/v1/cluster/members", body, JOIN_S)
        except RequestRefused as refusal:
            # It goes on catching up; asking again waits for the same outcome.
            if "TIMEOUT" not in str(refusal) or time.perf_counter() - began > JOIN_S:
                raise
        else:
            return


async def _state_bytes(cluster: LocalCluster) -> int:
    """Size of the state on the disk of the newest node."""
    text = await asyncio.to_thread(get, f"{cluster.endpoints[-1]}/metrics")
    found = re.search(rb"^oncegate_state_disk_bytes (\S+)", text or b"", re.MULTILINE)
    return int(float(found[1])) if found else 0


async def _saves(cluster: LocalCluster) -> int:
    """Saves of the state on all nodes since they started."""
    total = 0
    for endpoint in cluster.endpoints:
        text = await asyncio.to_thread(get, f"{endpoint}/metrics")
        found = re.search(rb"^oncegate_state_saves_total (\S+)", text or b"", re.MULTILINE)
        total += int(float(found[1])) if found else 0
    return total


async def run(directory: Path, *, rows: int, seconds: float, parts: set[str]) -> dict[str, Any]:
    """Fill three nodes with rows of 200 bytes, then do what ``parts`` (``snapshot``, ``restart``) asks for."""
    found: dict[str, Any] = {"rows": rows, "snapshot": None, "restart": None}
    # Installed code is compiled once; a start that compiles it again would be measured instead of the node's.
    with LocalCluster(directory / "state", environment={"PYTHONDONTWRITEBYTECODE": ""}) as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        began = time.perf_counter()
        async with Client(cluster.endpoints, timeout_s=120) as client:
            await client.declare_table("rows", kind="resident", quota_bytes=16 * 2**30)
            async with client.session(window=4096) as session:
                await _fill(session, rows)
                found["filled_s"] = time.perf_counter() - began
                if "snapshot" in parts:
                    calm, _ = await _stalls(session, asyncio.sleep(seconds))
                    saves = await _saves(cluster)
                    began = time.perf_counter()
                    longest, latencies = await _stalls(session, _join(cluster))
                    found["snapshot"] = {
                        "longest_stall_ms": 1000 * longest,
                        "longest_stall_before_ms": 1000 * calm,
                        "joined_s": time.perf_counter() - began,
                        "state_bytes": await _state_bytes(cluster),
                        "saves": await _saves(cluster) - saves,
                        **Latency.of(latencies)._asdict(),
                    }
        if "restart" in parts:
            await asyncio.to_thread(cluster.kill)
            began = time.perf_counter()
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready, timeout_s=READY_S)
            took_s = time.perf_counter() - began
            memory = {name: anonymous_bytes(cluster.pid(name)) for name in cluster.ids}
            found["restart"] = {"ready_s": took_s, "anonymous_bytes": memory}
    return found
