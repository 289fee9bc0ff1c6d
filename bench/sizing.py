"""What a cluster needs: memory and disk by what it holds, processor time by operation; the tables of docs/sizing.md.

``python -m bench.sizing [--quick] [--seconds 6] [--page]``. Each figure of memory and disk is a slope: a fresh node
(:mod:`bench.sizing_node`) with few and one with many, each saved, then started again; what both have in common, the
program, its caches and its logs, is the row *nothing*. Other work on the machine does not change them. Processor time
is that of three nodes on loopback under puts of one client, and does depend on what else runs. ``--page`` measures
nothing and writes the tables of the newest run into the page.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench import sizing_page
from bench.children import answer_of
from bench.harness import Bench, Run, Side, option, part, side
from bench.ingest import CASES, WARM_UP_S, declare
from bench.load import latency, window
from bench.usage import MachineTime, Usage
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
QUICK: Final = 50


def node(what: str, count: int, directory: Path) -> dict[str, Any]:
    """Run a child that fills a node, then one that starts it again; returns both figures."""
    asked = ((what, str(count)), ("open", "0"))
    filled, opened = (answer_of("bench.sizing_node", *words, str(directory)) for words in asked)
    return {"what": what, "count": count, "filled": filled, "opened": opened}


async def _loaded(directory: Path, outstanding: int, seconds: float, seed: int) -> dict[str, Any]:
    """Load three nodes on loopback, and return what an operation takes of each process."""
    async with side(LocalCluster(directory)) as one:
        await declare(one.client)
        gc.collect()
        act = CASES[0].operation(one.session, seed=seed)
        warm = await window(act, outstanding, WARM_UP_S)
        leader, before, machine = one.cluster.leader(), _used(one), MachineTime.now()
        found = await window(act, outstanding, seconds, first=warm.operations + outstanding)
        used = {name: of.since(before[name]) for name, of in _used(one).items()}
        spent = MachineTime.now().since(machine)
    client_s, operations = used.pop("client").cpu_s, found.operations
    nodes_s = {name: of.cpu_s for name, of in used.items()}
    return {
        "what": "processor",
        "outstanding": outstanding,
        "rate": found.rate(),
        **latency([found]),
        "leader_us": nodes_s[leader] / operations * 1e6,
        "follower_us": sum(each for name, each in nodes_s.items() if name != leader) / 2 / operations * 1e6,
        "client_us": client_s / operations * 1e6,
        "written_bytes": sum(of.written_bytes for of in used.values()) / len(used) / operations,
        "others_share": max(0.0, spent.busy_s - sum(nodes_s.values()) - client_s) / spent.all_s,
    }


def _used(one: Side) -> dict[str, Usage]:
    pids = {"client": os.getpid(), **{name: one.cluster.pid(name) for name in one.cluster.ids}}
    return {name: Usage.of([pid]) for name, pid in pids.items()}


def measure(run: Run) -> Iterator[dict[str, Any]]:
    shrunk = QUICK if run.options.quick else 1
    yield node("nothing", 0, run.directory / "nothing")
    for what, counts in COUNTS.items():
        for count in counts:
            yield node(what, count // shrunk, run.directory / f"{what}-{count}")
    yield node("rows one by one", ONE_BY_ONE // shrunk, run.directory / "one-by-one")
    for count in OUTSTANDING:
        yield asyncio.run(_loaded(run.directory / f"nodes-{count}", count, run.options.seconds, run.options.seed))


BENCH: Final = Bench(
    "sizing", __doc__, measure, durability="each entry one fdatasync; saves flushed",
    options=(
        option("--seconds", 6.0, "of each load", quick=1.5, type=float),
        option("--page", False, "only write the newest run's tables", action="store_const", const=True),
    ),
)  # fmt: skip


def main() -> int:
    """Measure, keep the raw figures of a whole run, and write the page's tables."""
    options = BENCH.parse()
    if not options.page:
        options.no_save = options.no_save or options.sample
        with part(BENCH, "sizing", options) as run:
            for row in measure(run):
                run.add(row)
        print("\n".join(sizing_page.lines({**run.about, "rows": run.rows})))
    if options.page or not options.no_save:
        print(f"wrote {sizing_page.write()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
