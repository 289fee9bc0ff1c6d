"""Whole gateway nodes with much state: restart, memory, and the longest stall while a snapshot is taken under load."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Final

from bench.harness import side
from bench.load import VALUE, Window, latency, window
from bench.usage import anonymous_mib
from oncegate import Session
from oncegate.gateway.local.blocking_http import RequestRefused, get, send_json
from oncegate.gateway.local.cluster import LocalCluster

ROWS_A_CALL: Final = 500
CALLERS: Final = 8
READY_S: Final = 1800.0
JOIN_S: Final = 600.0


async def _fill(session: Session, rows: int) -> None:
    async def put(number: int) -> None:
        keys = range((number - 1) * ROWS_A_CALL, min(number * ROWS_A_CALL, rows))
        await session.put_many("rows", [(f"k{key}", VALUE) for key in keys], timeout_s=120)

    await window(put, CALLERS, most=-(-rows // ROWS_A_CALL))


async def _rewritten(session: Session, during: asyncio.Future[None]) -> Window:
    """Rewrite rows at 64 outstanding until something is over."""
    found = await window(lambda at: session.put("rows", f"k{at % 64_000}", VALUE), 64, over=during.done)
    await during
    return found


async def _join(cluster: LocalCluster) -> None:
    """Add a fourth node, which gets the whole state as a snapshot."""
    new = cluster.expand("n4")
    cluster.start(new.node_id)
    ports: dict[str, object] = {"http_port": new.http_port, "peer_port": new.peer_port}
    body, began = {"id": new.node_id, "host": new.host, **ports}, time.perf_counter()
    while True:
        try:
            await asyncio.to_thread(send_json, "POST", f"{cluster.endpoints[0]}/v1/cluster/members", body, JOIN_S)
        except RequestRefused as refusal:
            # It goes on catching up; asking again waits for the same outcome.
            if "TIMEOUT" not in str(refusal) or time.perf_counter() - began > JOIN_S:
                raise
        else:
            return


async def _metric(name: str, *endpoints: str) -> int:
    """Return the sum of a metric over nodes."""
    total = 0
    for endpoint in endpoints:
        text = await asyncio.to_thread(get, f"{endpoint}/metrics")
        found = re.search(rf"^{name} (\S+)".encode(), text or b"", re.MULTILINE)
        total += int(float(found[1])) if found else 0
    return total


async def run(directory: Path, *, rows: int, seconds: float, parts: set[str]) -> dict[str, dict[str, Any]]:
    """Fill three nodes with rows of 200 bytes, then do what ``parts`` (``snapshot``, ``restart``) asks for."""
    found: dict[str, dict[str, Any]] = {}
    # Installed code is compiled once; a start that compiles it again would be measured instead of the node's.
    cluster = LocalCluster(directory / "state", environment={"PYTHONDONTWRITEBYTECODE": ""})
    async with side(cluster, timeout_s=120) as one:
        await one.client.declare_table("rows", kind="resident", quota_bytes=16 * 2**30)
        await _fill(one.session, rows)
        if "snapshot" in parts:
            calm = await _rewritten(one.session, asyncio.ensure_future(asyncio.sleep(seconds)))
            saves, began = await _metric("oncegate_state_saves_total", *cluster.endpoints), time.perf_counter()
            seen = await _rewritten(one.session, asyncio.ensure_future(_join(cluster)))
            found["snapshot"] = {
                "longest_stall_ms": 1000 * seen.stall_s,
                "longest_stall_before_ms": 1000 * calm.stall_s,
                "joined_s": time.perf_counter() - began,
                "state_bytes": await _metric("oncegate_state_disk_bytes", cluster.endpoints[-1]),
                "saves": await _metric("oncegate_state_saves_total", *cluster.endpoints) - saves,
                **latency([seen]),
            }
        if "restart" in parts:
            await asyncio.to_thread(cluster.kill)
            began = time.perf_counter()
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready, timeout_s=READY_S)
            took_s = time.perf_counter() - began
            memory = {name: anonymous_mib(cluster.pid(name)) for name in cluster.ids}
            found["restart"] = {"ready_s": took_s, "anonymous_mib": memory}
    return found
