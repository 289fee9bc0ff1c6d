"""Everything between a committed write and a derived row, for minutes, under kills: exact at the end.

    python -m bench.soak_fanout --seconds 600

Three gateway nodes, three of Cassandra, and one Spark session that runs the timeline job and the jobs of the library.
Meanwhile, in turn and by a seed, the leader, a node of Cassandra or all of Spark is killed with -9 and started again.
At the end each result is read as users read it, and compared with a recount of the acknowledged writes in the order of
their commits. Exit status: 0 all are exact, 1 they are not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.children import Talking
from bench.options import end_in_order
from bench.pipeline import finished, stored
from bench.soak_fanout.driver import chosen
from examples.demo.console import results
from examples.demo.recount import Check
from oncegate import Client
from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.local.waiting import wait_for
from oncegate.stores.claimed import claimed_store
from oncegate.stores.devcassandra.cluster import DevCluster
from tests.spark.library.case import Case, Write

_FLOW: Final = {"retention_ms": 86_400_000, "max_items": 200, "linger_ms": 1_000}
_WRITE_S_MAX: Final = 120.0
_FINISH_S_MAX: Final = 900.0
_START_S: Final = 30.0
"""Between two kills at least: what was killed is to be hit while it works, not while it starts."""


class Writing(threading.Thread):
    """Writes what the cases want, evenly over the time, and notes each commit."""

    def __init__(self, endpoints: Sequence[str], cases: dict[str, Case], seconds: float, seed: int) -> None:
        super().__init__(name="writing")
        self.acknowledged: dict[str, list[tuple[int, Write]]] = {name: [] for name in cases}
        self.failure: Exception | None = None
        self._endpoints, self._cases, self._seconds, self._seed = endpoints, cases, seconds, seed

    def run(self) -> None:
        """Write until all is acknowledged."""
        try:
            asyncio.run(self._write_all())
        except Exception as failure:  # noqa: BLE001 - told to whoever joins
            self.failure = failure

    async def _write_all(self) -> None:
        async with Client(self._endpoints) as client:
            for name in self._cases:
                await client.declare_table(name, kind="stream", flow=_FLOW)
            async with asyncio.TaskGroup() as group:
                for name, case in self._cases.items():
                    group.create_task(self._write(client, name, list(case.writes(random.Random(self._seed)))))

    async def _write(self, client: Client, name: str, writes: list[Write]) -> None:
        began = time.monotonic()
        async with client.session() as session:
            for number, (key, value) in enumerate(writes):
                await asyncio.sleep(max(0.0, began + number * self._seconds / len(writes) - time.monotonic()))
                # One after the other: the order of the writes is the order of their commits.
                if value is None:
                    result = await session.delete(name, key, timeout_s=_WRITE_S_MAX)
                else:
                    result = await session.put(name, key, value, timeout_s=_WRITE_S_MAX)  # type: ignore[arg-type]
                if result.applied:
                    self.acknowledged[name].append((result.commit, (key, value)))


class Spark:
    """The driver's process and all that it starts."""

    def __init__(self, directory: Path, store: str, endpoints: Sequence[str], names: Sequence[str]) -> None:
        self._log, self._words = (
            directory / "spark.log",
            (store, f"{directory}/checkpoints", ",".join(endpoints), *names),
        )
        self.start()

    def start(self) -> None:
        """Start it."""
        self.child = Talking("bench.soak_fanout.driver", *self._words, log=self._log)

    def kill(self) -> None:
        """Kill driver, JVM and workers with -9."""
        self.child.close()

    def check(self) -> None:
        """Start it again if it has ended: its supervisor would."""
        if self.child.process.poll() is not None:
            self.kill()
            self.start()


def killing(
    options: argparse.Namespace, cluster: LocalCluster, cassandra: DevCluster | None, spark: Spark, console: Console
) -> Counter[str]:
    """Kill one thing after the other until the time is over; returns how often each was."""
    chance, killed = random.Random(options.seed), Counter[str]()
    ends = time.monotonic() + options.seconds
    victims = ["Spark", "leader"] + (["Cassandra"] if cassandra is not None else [])
    while time.monotonic() < ends:
        time.sleep(min(_START_S + chance.random() * options.every, max(0.0, ends - time.monotonic())))
        spark.check()
        victim = victims[killed.total() % len(victims)]
        console.print(f"{options.seconds - (ends - time.monotonic()):6.0f} s  kill -9 {victim}")
        match victim:
            case "Spark":
                spark.kill()
                spark.start()
            case "leader":
                node_id = cluster.leader()
                cluster.kill(node_id)
                time.sleep(1.5)
                cluster.start(node_id)
                cluster.wait_ready()
            case "Cassandra" if cassandra is not None:
                number = chance.randrange(len(cassandra.nodes)) + 1
                cassandra.kill(number)
                time.sleep(3.0)
                cassandra.start(number)
        killed[victim] += 1
    return killed


def soak(options: argparse.Namespace, directory: Path, console: Console) -> list[Check]:
    """Run, and return what was compared."""
    cases = chosen(options.case)
    with (
        stored(options.store, directory, "soak", nodes=3, heap="512m") as (store, cassandra),
        LocalCluster(directory / "nodes") as cluster,
    ):
        cluster.start()
        cluster.wait_ready()
        writing = Writing(cluster.endpoints, cases, options.seconds, options.seed)
        writing.start()
        wait_for(lambda: all(get_json(f"{cluster.endpoints[0]}/v1/flows/{name}") for name in cases), 60, "flows")
        spark = Spark(directory, store, cluster.endpoints, list(cases))
        try:
            killed = killing(options, cluster, cassandra, spark, console)
            writing.join()
            if writing.failure is not None:
                raise writing.failure

            def all_finished() -> bool:
                spark.check()
                return all(finished(cluster.endpoints, name, name) for name in cases)

            wait_for(all_finished, _FINISH_S_MAX, "every job has caught up", state=spark.child.log_tail, every_s=1)
        finally:
            spark.kill()
        checks = [Check(f"kills of {name}", ">= 1", str(killed[name]), killed[name] > 0) for name in sorted(killed)]
        with claimed_store(store) as opened:
            for name, case in cases.items():
                told = sorted(writing.acknowledged[name], key=lambda one: one[0])
                same = case.read(opened) == case.expected([write for _, write in told])
                checks.append(Check(f"{name}: {len(told):,} writes", "exact", "exact" if same else "differs", same))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak_fanout", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=300.0, help="how long is written and killed [300]")
    add("--every", type=float, default=20.0, help="further seconds between two kills, at most [20]")
    add("--store", choices=("cassandra", "sqlite"), default="cassandra")
    add("--case", action="append", default=[], help="only this one; again for more [all]")
    add("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    end_in_order()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="oncegate-soak-") as name:
        checks = soak(options, Path(name), console)
    results(checks, console)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
