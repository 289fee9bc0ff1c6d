"""What the check of live traffic costs: the same nodes with it and without, side by side in one run.

``python -m bench.live_check`` starts three durable nodes of :mod:`bench.switched` and loads them through the SDK, with
the check and without in turn, the order changing from round to round: 512 puts and reads outstanding, one read to nine
puts. What is printed is the median of the rounds' ratios, of operations a second and of the processor time of all nodes
for an operation, which minds its neighbours less.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.calibrate import bare_posts, fdatasync_4k
from bench.dedup import Side
from bench.figures import header, save
from oncegate import Client
from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.cluster import LocalCluster

VALUE: Final = "v" * 198
OUTSTANDING: Final = 512
READ_EVERY: Final = 10
ROWS: Final = 5_000
RATIO_MIN: Final = 0.98


async def _rate(side: Side, seconds: float) -> tuple[int, float]:
    """Keep 512 operations outstanding; returns how many were done, and operations a second."""
    done, began = 0, time.perf_counter()
    until = began + seconds

    async def worker(number: int) -> None:
        nonlocal done
        turn = number
        while time.perf_counter() < until:
            turn += 1
            key = f"row {(number * 7919 + turn * 104_729) % ROWS}"
            if turn % READ_EVERY:
                await side.session.put("t", key, VALUE)
            else:
                await side.client.get("t", key)
            done += 1

    await asyncio.gather(*(worker(number) for number in range(OUTSTANDING)))
    return done, done / (time.perf_counter() - began)


class SwitchedCluster(LocalCluster):
    """Nodes whose check is switched by signals."""

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node."""
        return [sys.executable, "-m", "bench.switched", *super().command(node_id)[3:]]

    def switch(self, name: str) -> None:
        """Turn the check ``on`` or ``off`` on all nodes."""
        for node_id in self.ids:
            os.kill(self.pid(node_id), signal.SIGUSR2 if name == "on" else signal.SIGUSR1)


def _checked(cluster: LocalCluster) -> dict[str, Any]:
    """Return what the nodes say they have checked, and that they found nothing."""
    found = [get_json(f"{endpoint}/v1/check") for endpoint in cluster.endpoints]
    verdicts = [None if one is None else one["verdict"] for one in found]
    checked = sum(one["operations"] for one in found if one is not None)
    if "anomaly" in verdicts or not checked:
        raise RuntimeError(f"{checked} operations were checked, verdicts {verdicts}: not what was to be measured")
    dropped = sum(one["dropped"] for one in found if one is not None)
    return {"what": "checked by the nodes", "operations": checked, "dropped": dropped}


async def run(cluster: SwitchedCluster, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Load the cluster with the check and without in turn, and return a row for each comparison."""
    async with Client(cluster.endpoints) as client, client.session(window=4096) as session:
        await client.declare_table("t", kind="resident")
        side = Side(cluster, client, session)
        gc.collect()
        gc.freeze()
        await _rate(side, 2.0)
        rates: dict[str, list[float]] = {"on": [], "off": []}
        cpu_us: dict[str, list[float]] = {"on": [], "off": []}
        for turn in range(rounds):
            for name in ("on", "off") if turn % 2 else ("off", "on"):
                cluster.switch(name)
                before = side.cpu_s()
                done, rate = await _rate(side, seconds)
                rates[name].append(rate)
                cpu_us[name].append((side.cpu_s() - before) / done * 1e6)
        cluster.switch("on")
    throughput = _ratio("throughput, 512 outstanding", rates)
    cost = _ratio("processor time of all nodes for an operation, microseconds", cpu_us)
    return [{**throughput, "wanted": RATIO_MIN, "met": throughput["ratio"] >= RATIO_MIN}, cost, _checked(cluster)]


def _ratio(what: str, found: dict[str, list[float]]) -> dict[str, Any]:
    ratios = sorted(on / off for on, off in zip(found["on"], found["off"], strict=True))
    quarter = len(ratios) // 4
    return {
        "what": what,
        "with": statistics.median(found["on"]),
        "without": statistics.median(found["off"]),
        "ratio": statistics.median(ratios),
        "quartile_low": ratios[quarter],
        "quartile_high": ratios[-1 - quarter],
    }


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each load in a round")
    parser.add_argument("--share", type=float, default=0.01, help="of all rows that are sampled")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        directory = Path(name)
        about = header(
            "live_check",
            seed=0,
            durability="three nodes, each flushed with fdatasync before the answer",
            calibrations={"fdatasync_4k_ms": fdatasync_4k(directory).p50_ms, "bare_posts_per_s": bare_posts(64)},
        )
        flags = ("--live-check-share", str(options.share), "--live-check-window-ms", "1000")
        with SwitchedCluster(directory / "nodes", flags=flags) as cluster:
            cluster.start()
            cluster.wait_ready()
            rows = asyncio.run(run(cluster, options.rounds, options.seconds))
    for row in rows:
        shown = (f"{key} {value:,.3f}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        print("   " + ", ".join(shown))
    print(f"saved in {save('live_check', about, rows).name}")


if __name__ == "__main__":
    main()
