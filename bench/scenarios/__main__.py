"""Scenarios of operating the pipeline on real processes: three gateway nodes, a Spark session, a store.

    python -m bench.scenarios replay --seconds 20
    python -m bench.scenarios cassandra-down --seconds 60
    python -m bench.scenarios rebuilt

Each prints a table and writes `runs/scenarios/NAME.html`, a page with the lag over time. Exit status: 0 all rows are
exact, 1 they are not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from bench.figures import machine
from bench.options import end_in_order
from bench.pipeline import spark_of, stored
from bench.scenarios import page, plays
from bench.scenarios.scene import Scene
from examples.demo.console import results
from oncegate.stores.devcassandra.cluster import DevCluster


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line; ends the process on a wrong one."""
    parser = argparse.ArgumentParser(prog="python -m bench.scenarios", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("name", choices=("replay", "cassandra-down", "rebuilt"))
    add("--seconds", type=float, default=15.0, help="length of the wrong version, the outage, each cluster [15]")
    add("--rate", type=int, default=300, help="writes a second [300]")
    add("--store", choices=("sqlite", "cassandra"), default="sqlite", help="cassandra-down has its own [sqlite]")
    add("--nodes", type=int, choices=(1, 3), default=3, help="of Cassandra [3]")
    add("--seed", type=int, default=1, help="chooses what is written [1]")
    add("--results", type=Path, default=Path("runs/scenarios"), help="folder of the page [runs/scenarios]")
    options = parser.parse_args(arguments)
    if options.name == "cassandra-down":
        options.store = "cassandra"
    return options


def play(name: str, scene: Scene, cassandra: DevCluster | None, seconds: float) -> str:
    """Play a scenario in a scene that is entered; returns what it is about."""
    known: dict[str, Callable[..., None]] = {"replay": plays.replay, "rebuilt": plays.rebuilt}
    if name == "cassandra-down":
        if cassandra is None:
            raise ValueError("this scenario needs a real Cassandra")
        plays.cassandra_down(scene, cassandra, seconds)
        return (plays.cassandra_down.__doc__ or "").splitlines()[0]
    known[name](scene, seconds)
    return (known[name].__doc__ or "").splitlines()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario; returns the exit status."""
    options = parse(arguments)
    end_in_order()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    options.results.mkdir(parents=True, exist_ok=True)
    log = options.results / f"{options.name}.log"
    logging.basicConfig(level=logging.INFO, filename=log, filemode="w", format="%(asctime)s %(levelname)s %(message)s")
    with tempfile.TemporaryDirectory(prefix="oncegate-scenario-") as name, spark_of(options.name, 2) as spark:
        directory = Path(name)
        with (
            stored(options.store, directory, "scenario", nodes=options.nodes, heap="512m") as (store, cassandra),
            Scene(directory, spark, store, rate=options.rate, seed=options.seed, say=console.print) as scene,
        ):
            story = play(options.name, scene, cassandra, options.seconds)
    about = {"store": options.store, "rate": options.rate, "seconds": options.seconds, "seed": options.seed}
    path = options.results / f"{options.name}.html"
    path.write_text(page.render(options.name, story, scene, {**about, **machine()}), encoding="utf-8")
    for what, value in scene.figures.items():
        console.print(f"{what}: {value}")
    results(scene.checks, console)
    console.print(f"plot: {path}", soft_wrap=True)
    return 0 if all(check.passed for check in scene.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
