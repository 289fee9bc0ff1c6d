"""Whole gateway nodes with much state: restart, memory, and the longest stall while a snapshot is taken under load."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any, Final

from bench.figures import Latency
from gateway.cli.local_cluster import LocalCluster
from gateway.client import Client, Session
from gateway.node import Node

VALUE_BYTES: Final = 200
ROWS_A_CALL: Final = 500
CALLERS: Final = 8
READY_S: Final = 1800.0


def anonymous_bytes(pid: int) -> int:
    """RssAnon of a process."""
    found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def saves_state() -> bool:
    """Whether this build's nodes keep their state on disk (:class:`consensus.ports.DurableState`)."""
    return hasattr(Node, "begin_save")


async def _fill(session: Session, rows: int) -> None:
    value = "v" * (VALUE_BYTES - 2)
    parts = iter(range(0, rows, ROWS_A_CALL))

    async def one() -> None:
        for first in parts:
            count = min(ROWS_A_CALL, rows - first)
            await session.put_many("rows", [(f"k{first + i}", value) for i in range(count)], timeout_s=120)

    await asyncio.gather(*(one() for _ in range(CALLERS)))


async def _stalls(session: Session, seconds: float) -> tuple[float, list[float]]:
    """Rewrite rows at 64 outstanding; returns the longest time without an acknowledgement, and the latencies."""
    latencies: list[float] = []
    last = began = time.perf_counter()
    longest = 0.0
    value = "w" * (VALUE_BYTES - 2)

    async def one(worker: int) -> None:
        nonlocal last, longest
        number = 0
        while (sent := time.perf_counter()) < began + seconds:
            number += 1
            await session.put("rows", f"k{worker * 1000 + number % 1000}", value)
            now = time.perf_counter()
            latencies.append(now - sent)
            longest, last = max(longest, now - last), now

    await asyncio.gather(*(one(worker) for worker in range(64)))
    return longest, latencies


async def run(directory: Path, *, rows: int, seconds: float, parts: set[str]) -> dict[str, Any]:
    """Fill three nodes with rows of 200 bytes, then do what ``parts`` (``snapshot``, ``restart``) asks for."""
    found: dict[str, Any] = {"rows": rows, "snapshot": None, "restart": None}
    with LocalCluster(directory / "state") as cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        began = time.perf_counter()
        async with Client(cluster.endpoints, timeout_s=120) as client:
            await client.declare_table("rows", kind="resident")
            async with client.session(window=4096) as session:
                await _fill(session, rows)
                found["filled_s"] = time.perf_counter() - began
                if "snapshot" in parts and saves_state():
                    longest, latencies = await _stalls(session, seconds)
                    found["snapshot"] = {"longest_stall_ms": 1000 * longest, **Latency.of(latencies)._asdict()}
        if "restart" in parts:
            await asyncio.to_thread(cluster.kill)
            began = time.perf_counter()
            cluster.start()
            await asyncio.to_thread(cluster.wait_ready, timeout_s=READY_S)
            took_s = time.perf_counter() - began
            memory = {name: anonymous_bytes(cluster.pid(name)) for name in cluster.ids}
            found["restart"] = {"ready_s": took_s, "anonymous_bytes": memory}
    return found
