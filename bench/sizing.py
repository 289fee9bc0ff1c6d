"""What a cluster needs: memory and disk by what it holds, processor time by operation; the tables of docs/sizing.md.

``python -m bench.sizing [--quick] [--seconds 6] [--page]``. Each figure of memory and disk is a slope: a fresh node
(:mod:`bench.sizing_node`) with few and one with many, each saved, then started again; what both have in common, the
program, its caches and its logs, is the row *nothing*. Other work on the machine does not change them. Processor time
is that of three nodes on loopback under puts of one client, and does depend on what else runs. ``--page`` measures
nothing and writes the tables of the newest run into the page.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench import sizing_page
from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import Latency, header, save
from bench.ingest import WARM_UP_S, Load, declare, single_puts
from bench.usage import MachineTime, Usage
from oncegate import Client
from oncegate.gateway.local.cluster import LocalCluster

COUNTS: Final = {
    "rows": (250_000, 1_000_000),
    "sessions": (25_000, 100_000),
    "records": (200_000, 800_000),
    "keys": (200_000, 800_000),
    "items": (250_000, 1_000_000),
}
"""Few and many. The few fill what is bounded, the log and the changes in memory, as far as a small run can."""
ONE_BY_ONE: Final = 10_000
OUTSTANDING: Final = (1, 64, 512)
_QUICK: Final = 50


def node(what: str, count: int, directory: Path) -> dict[str, Any]:
    """Run a child that fills a node, then one that starts it again; returns both figures."""
    rows = []
    for arguments in ((what, str(count)), ("open", "0")):
        command = [sys.executable, "-m", "bench.sizing_node", *arguments, str(directory)]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(out))
    print(f"   {what}, {count:,}: {rows[0]['seconds']:.0f} s", flush=True)
    return {"what": what, "count": count, "filled": rows[0], "opened": rows[1]}


async def _loaded(cluster: LocalCluster, outstanding: int, seconds: float, seed: int) -> dict[str, Any]:
    async with Client(cluster.endpoints) as client:
        await declare(client)
        async with client.session(window=4096) as session:
            gc.collect()
            load = Load(session, seconds, seed)
            leader = cluster.leader()
            pids = {name: cluster.pid(name) for name in cluster.ids}
            working = [asyncio.ensure_future(single_puts(load, number)) for number in range(outstanding)]
            await asyncio.sleep(WARM_UP_S)
            before = {name: Usage.of([pid]) for name, pid in pids.items()}
            own, machine, counted = Usage.of([os.getpid()]), MachineTime.now(), load.operations
            await asyncio.gather(*working)
            used = {name: Usage.of([pid]).since(before[name]) for name, pid in pids.items()}
            spent, client_s = MachineTime.now().since(machine), Usage.of([os.getpid()]).since(own).cpu_s
    operations = load.operations - counted
    nodes_s = {name: one.cpu_s for name, one in used.items()}
    return {
        "what": "processor",
        "outstanding": outstanding,
        "rate": operations / seconds,
        **Latency.of(load.latencies_s)._asdict(),
        "leader_us": nodes_s[leader] / operations * 1e6,
        "follower_us": sum(each for name, each in nodes_s.items() if name != leader) / 2 / operations * 1e6,
        "client_us": client_s / operations * 1e6,
        "written_bytes": sum(one.written_bytes for one in used.values()) / len(used) / operations,
        "others_share": max(0.0, spent.busy_s - sum(nodes_s.values()) - client_s) / spent.all_s,
    }


def processor(outstanding: int, seconds: float, seed: int) -> dict[str, Any]:
    """Load three nodes on loopback, and return what an operation takes of each process."""
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as directory, LocalCluster(Path(directory)) as cluster:
        cluster.start()
        cluster.wait_ready()
        row = asyncio.run(_loaded(cluster, outstanding, seconds, seed))
    print(
        f"   processor, {outstanding} outstanding: {row['rate']:,.0f}/s, leader {row['leader_us']:.0f} us", flush=True
    )
    return row


def main() -> None:
    """Measure, keep the raw figures, and write the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a fiftieth of everything; nothing is kept")
    parser.add_argument("--page", action="store_true", help="only write the newest run's tables into the page")
    options = parser.parse_args()
    if options.page:
        print(f"wrote {sizing_page.write()}")
        return
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as name:
        directory = Path(name)
        about = header(
            "sizing",
            seed=options.seed,
            durability="each entry one fdatasync; saves flushed",
            calibrations={"fdatasync_4k_p50_ms": fdatasync_4k(directory).p50_ms, "bare_posts_per_s": bare_posts(64)},
        )
        scale = _QUICK if options.quick else 1
        rows = [node("nothing", 0, directory / "nothing")]
        for what, counts in COUNTS.items():
            rows += [node(what, count // scale, directory / f"{what}-{count}") for count in counts]
        rows.append(node("rows one by one", ONE_BY_ONE // scale, directory / "one-by-one"))
    rows += [
        processor(outstanding, options.seconds / (4 if options.quick else 1), options.seed)
        for outstanding in OUTSTANDING
    ]
    run = {**about, "rows": rows}
    print("\n".join(sizing_page.lines(run)))
    if not options.quick:
        save("sizing", about, rows)
        print(f"wrote {sizing_page.write()}")


if __name__ == "__main__":
    main()
