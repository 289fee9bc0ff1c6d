"""What watchers cost a node: memory, and the latency of writes beside them.

``python -m bench.watching`` starts one durable node and writes rows one after the other, in turn alone and beside ten
thousand watches of single rows: of rows that nobody writes (*idle*), and of the rows that are written (*told*: each
write is an event of one watch). It prints the node's memory for a watch, and of both the ratio of the write latency and
of the node's processor time for a write to those of the same run without watches.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.calibrate import fdatasync_4k
from bench.dedup import Side
from bench.figures import header, save
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster

VALUE: Final = "v" * 198
CONNECTING: Final = 50
"""Connections that are made at the same time."""
LATENCY_MAX: Final = 1.1


class Watchers:
    """Connections that read what they are sent, and count it."""

    def __init__(self) -> None:
        self._transports: list[asyncio.Transport] = []
        self.events = 0

    async def open(self, endpoint: str, count: int, prefix: str, *, first: int = 0) -> None:
        """Watch ``count`` rows from ``first`` on, a connection each, and wait until each knows where it begins."""
        parts, turns, watching = urlsplit(endpoint), asyncio.Semaphore(CONNECTING), self
        loop = asyncio.get_running_loop()

        async def one(number: int) -> None:
            async with turns:
                begun: asyncio.Future[None] = loop.create_future()

                class Reader(asyncio.Protocol):
                    def data_received(self, data: bytes) -> None:
                        watching.events += data.count(b"event: changes")
                        if b"event: progress" in data and not begun.done():
                            begun.set_result(None)

                    def connection_lost(self, exc: Exception | None) -> None:
                        if not begun.done():
                            begun.set_exception(ConnectionError("the node has ended a watch"))

                transport, _ = await loop.create_connection(Reader, parts.hostname or "", parts.port or 0)
                path = f"/v1/tables/t/watch?key={prefix}{number}"
                transport.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
                self._transports.append(transport)
                await begun

        await asyncio.gather(*(one(number) for number in range(first, first + count)))

    async def close(self) -> None:
        """End all of them."""
        for transport in self._transports:
            transport.abort()
        self._transports.clear()
        await asyncio.sleep(1.0)  # the node's side


def watch_flags(watches: int) -> tuple[str, ...]:
    """Return the flags of a node with room for so many watches of one table."""
    room = str(watches + 1000)
    return "--connections-max", str(2 * watches + 1000), "--watchers-max", room, "--watchers-table-max", room


def resident_mib(pid: int) -> float:
    """Return the memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def _writes(side: Side, rows: int, seconds: float) -> tuple[float, float, float]:
    """Write one row after the other; returns p50, p99 in milliseconds, and the node's processor time each."""
    took: list[float] = []
    before, until, turn = side.cpu_s(), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        turn += 1
        began = time.perf_counter()
        await side.session.put("t", f"row{turn * 7919 % rows}", VALUE)
        took.append((time.perf_counter() - began) * 1000)
    cpu_us = (side.cpu_s() - before) / len(took) * 1e6
    return statistics.median(took), statistics.quantiles(took, n=100)[98], cpu_us


async def run(cluster: LocalCluster, watches: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Write alone and beside watches in turn, and return a row for each kind of watch."""
    endpoint, found = cluster.endpoints[0], list[dict[str, Any]]()
    async with Client(endpoint) as client, client.session() as session:
        await client.declare_table("t", kind="resident")
        side, watchers = Side(cluster, client, session), Watchers()
        await _writes(side, watches, 2.0)
        for kind, prefix in (("idle", "other"), ("told", "row")):
            alone, beside, memory = [], [], []
            for _ in range(rounds):
                alone.append(await _writes(side, watches, seconds))
                before = resident_mib(cluster.pid(cluster.ids[0]))
                await watchers.open(endpoint, watches, prefix)
                memory.append((resident_mib(cluster.pid(cluster.ids[0])) - before) / watches * 1024)
                beside.append(await _writes(side, watches, seconds))
                await watchers.close()
            ratios = [statistics.median(b[n] / a[n] for a, b in zip(alone, beside, strict=True)) for n in range(3)]
            found.append(
                {
                    "what": f"{watches} watches, {kind}",
                    "memory_kib_a_watch": max(memory),
                    "p50_ms": statistics.median(one[0] for one in beside),
                    "p50_ratio": ratios[0],
                    "p99_ratio": ratios[1],
                    "cpu_ratio": ratios[2],
                    "events": watchers.events,
                    "wanted": LATENCY_MAX,
                    "met": ratios[0] <= LATENCY_MAX,
                }
            )
    return found


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watches", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of writes, alone and beside them")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        about = header(
            "watching",
            seed=0,
            durability="one node, flushed with fdatasync before the answer",
            calibrations={"fdatasync_4k_ms": fdatasync_4k(Path(name)).p50_ms},
        )
        flags = watch_flags(options.watches)
        with LocalCluster(Path(name) / "nodes", 1, flags=flags) as cluster:
            cluster.start()
            cluster.wait_ready()
            rows = asyncio.run(run(cluster, options.watches, options.rounds, options.seconds))
    for row in rows:
        shown = (f"{key} {value:,.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print("   " + ", ".join(shown))
    print(f"saved in {save('watching', about, rows).name}")


if __name__ == "__main__":
    main()
