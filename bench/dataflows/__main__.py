"""Three data flows over one Cassandra and one workload: ``python -m bench.dataflows [EXPERIMENT …]``.

``saturating``: the same posts, as fast as they are answered, two database nodes. ``eighty``: 80 % of what all three
have sustained. ``burst``: 50 % of it, then 200 %, then 50 %. ``failure``: 40 % of what three database nodes with three
copies take; one is killed and comes back. ``scaling``: saturating with 1, 2 and 3 database nodes, one copy of each row.
Every run ends with the complete check: each acknowledged post once in the timeline of each follower. Exit status: 0
complete, 1 not, or an experiment failed.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.dataflows import page as page_of_flows
from bench.dataflows.architectures import NAMES, TITLES, Synchronous
from bench.dataflows.database import Database, of_cassandra, of_sqlite
from bench.dataflows.stage import Run, run
from bench.dataflows.workload import SAMPLE, WHOLE, Audience
from bench.experiments import page
from bench.experiments.results import Line, parser, watched
from bench.figures import save
from bench.options import above_zero
from bench.peers.packages import NotBuilt
from oncegate.stores.devcassandra.cluster import free_ports, running
from oncegate.stores.devcassandra.node import Config
from oncegate.stores.errors import StoreError

EXPERIMENTS: Final = ("saturating", "eighty", "burst", "failure", "scaling")
NODES_MAX: Final = 3
SHARE: Final = 0.8
FAILURE_SHARE: Final = 0.4
"""Published: 1,000 messages a second where the cluster takes about 2,600."""
RATE_MIN: Final = 1.0
MEASURE_CAPACITY: Final = ("saturating", "scaling")
"""Experiments whose load is no share of the capacity."""
FAILURES: Final = (OSError, RuntimeError, StoreError, subprocess.SubprocessError)
"""What ends one experiment: a part that does not start, answer or end, or a full disk."""


class Lengths(NamedTuple):
    """How long the parts of the experiments are.

    Attributes:
        prime_s: of a database's warming.
        posts, scaling_posts: as fast as they are answered, by each data flow: the same for all, so that they do the
            same work, and what one accepts ahead of its copies is bounded.
        load_s, burst_s: of the load, of each phase of a burst.
        kill_s, restart_s, failure_s: when a node dies, when it returns, of the load around it.
    """

    prime_s: float
    posts: int
    scaling_posts: int
    load_s: float
    burst_s: float
    kill_s: float
    restart_s: float
    failure_s: float


WHOLE_LENGTHS: Final = Lengths(20.0, 40_000, 12_000, 600.0, 30.0, 60.0, 90.0, 150.0)
SAMPLE_LENGTHS: Final = Lengths(3.0, 2_000, 1_000, 10.0, 4.0, 4.0, 8.0, 16.0)
SATURATING_S: Final = 900.0
"""At most."""


def plan(experiment: str, architecture: str, nodes: int, capacity: float, lengths: Lengths) -> Run:
    """Return what is run.

    Args:
        experiment: of `EXPERIMENTS`.
        architecture: its name.
        nodes: of Cassandra.
        capacity: posts a second that all data flows sustain, with two database nodes and one copy of each row.
        lengths: of the phases.

    Raises:
        ValueError: an unknown experiment.
    """
    rate = max(RATE_MIN, SHARE * capacity)
    match experiment:
        case "saturating" | "scaling":
            posts = lengths.posts if experiment == "saturating" else lengths.scaling_posts
            return Run(experiment, architecture, [(0.0, SATURATING_S)], posts)
        case "eighty":
            return Run(experiment, architecture, [(rate, lengths.load_s)])
        case "burst":
            half, double = max(RATE_MIN, capacity / 2), max(RATE_MIN, capacity * 2)
            return Run(experiment, architecture, [(share, lengths.burst_s) for share in (half, double, half)])
        case "failure":
            replicas = min(3, nodes)
            # Each copy is written so many times, by the processors that wrote it once.
            phases = [(max(RATE_MIN, FAILURE_SHARE * capacity / replicas), lengths.failure_s)]
            return Run(experiment, architecture, phases, None, lengths.kill_s, lengths.restart_s, replicas)
    raise ValueError(f"no experiment {experiment}")


def nodes_of(experiment: str, *, quick: bool) -> tuple[int, ...]:
    """Return the numbers of database nodes that an experiment runs with; a sample of most has one."""
    match experiment:
        case "scaling":
            return (1, 2) if quick else (1, 2, 3)
        case "failure":
            return (3,)
        case _:
            return (1,) if quick else (2,)


def show(row: dict[str, Any]) -> None:
    """Print a run."""
    cpu = ", ".join(f"{part} {of:,.0f}" for part, of in row["cpu_us"].items() if of is not None)
    sent = ", ".join(f"{part} {of:,.0f}" for part, of in row["sent_bytes"].items() if of is not None)
    found = row["check"]
    print(
        f"   {row['experiment']}, {TITLES[row['architecture']]}, {row['nodes']} nodes: {row['accepted_per_s']:,.0f}/s "
        f"accepted, {row['delivered_per_s']:,.0f}/s delivered, p50 {row['p50_ms']:.2f} stddev {row['stddev_ms']:.2f} "
        f"p99 {row['p99_ms']:.2f} max {row['max_ms']:.0f} ms of {row['samples']:,}; dropped {row['dropped']:,}, failed "
        f"{row['failed']:,} {row['failure']}\n     us of processor time a post: {cpu}; bytes sent a post: "
        f"{sent or 'not counted, ss is not installed'}; "
        f"{row['rows_per_post']:.1f} copies a post; of {found['expected']:,} copies "
        f"{', '.join(f'{found[name]:,} {said}' for name, said in page_of_flows.LACKS.items())}",
        flush=True,
    )


@contextlib.contextmanager
def opened(options: argparse.Namespace, nodes: int, directory: Path) -> Iterator[Database]:
    """Yield an empty store."""
    if options.store == "sqlite":
        directory.mkdir()
        yield of_sqlite(directory)
        return
    heap = "512m" if options.quick else options.heap
    with running(free_ports(Config(nodes=nodes, heap=heap)), directory) as cassandra:
        yield of_cassandra(cassandra)


def main() -> int:
    """Run what the command line says; returns the exit status."""
    options = parser(__doc__ or "")
    options.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)} [all]")
    options.add_argument("--architecture", action="append", choices=NAMES, help="again for more [all]; not drawn")
    options.add_argument("--store", choices=("cassandra", "sqlite"), default="cassandra", help="sqlite: not saved")
    options.add_argument("--capacity", type=above_zero, help="posts a second; measured by a saturating run by default")
    options.add_argument("--heap", default="1g", help="of each Cassandra node [1g; 512m with --quick]")
    found = options.parse_args()
    if unknown := {*found.experiments} - {*EXPERIMENTS}:
        options.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    try:
        return measure(found, found.experiments or EXPERIMENTS)
    except NotBuilt as missing:
        print(f"not built: {missing}", file=sys.stderr)
        return 1


def one(
    options: argparse.Namespace, experiment: str, names: Sequence[str], capacity: float | None
) -> tuple[Line, list[dict[str, Any]]]:
    """Run an experiment on databases of its own; returns its header, and a row for each run."""
    lengths = SAMPLE_LENGTHS if options.quick else WHOLE_LENGTHS
    audience: Audience = SAMPLE if options.quick else WHOLE
    rows: list[dict[str, Any]] = []
    durability = "each post flushed before its answer; Cassandra: commitlog_sync=group"
    with (
        tempfile.TemporaryDirectory(prefix="oncegate-flows-", dir=options.directory) as parent,
        watched(f"dataflows: {experiment}", Path(parent), seed=options.seed, quick=options.quick,
                durability=durability) as about,
    ):  # fmt: skip
        directory = Path(parent)
        about |= {"experiment": experiment, "audience": audience._asdict(), "capacity": capacity}
        for nodes in nodes_of(experiment, quick=options.quick):
            with opened(options, nodes, directory / f"db-{nodes}") as database:
                # A cold JVM would be the first data flow's: this load is not counted.
                prime = Run("prime", Synchronous.name, [(0.0, lengths.prime_s)])
                run(database, directory / f"prime-{nodes}", audience, options.seed, prime)
                for name in turned(names, EXPERIMENTS.index(experiment) + nodes):
                    what = plan(experiment, name, nodes, capacity or 0.0, lengths)
                    row = run(database, directory / f"{name}-{nodes}", audience, options.seed, what)
                    show(row)
                    rows.append({**row, "turn": len(rows)})
    return about, sorted(rows, key=lambda row: (row["nodes"], NAMES.index(row["architecture"])))


def turned(names: Sequence[str], turn: int) -> list[str]:
    """Return the names from another one on at each turn: none is always the first on a fresh database."""
    at = turn % len(names)
    return [*names[at:], *names[:at]]


def measure(options: argparse.Namespace, experiments: Sequence[str]) -> int:
    """Run the experiments, each saved by itself; a load that needs the capacity finds it first.

    One that fails is named, and the others go on, but for those whose load it was to find.
    """
    names = [name for name in NAMES if not options.architecture or name in options.architecture]
    capacity, complete = options.capacity, True
    wanted = [name for name in EXPERIMENTS if name in experiments]
    if capacity is None and {*wanted} - {*MEASURE_CAPACITY} and "saturating" not in wanted:
        wanted.insert(0, "saturating")
    for experiment in wanted:
        if capacity is None and experiment not in MEASURE_CAPACITY:
            print(f"not run: {experiment}: no capacity is known", file=sys.stderr, flush=True)
            complete = False
            continue
        try:
            about, rows = one(options, experiment, names, capacity)
        except NotBuilt:
            raise
        except FAILURES as failure:
            # Hours of others would be lost.
            print(f"failed: {experiment}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            complete = False
            continue
        complete = complete and all(row["check"]["complete"] for row in rows)
        if experiment == "saturating" and capacity is None:
            capacity = min(row["delivered_per_s"] for row in rows)
        if not options.no_save and not options.architecture and options.store == "cassandra":
            save("dataflows", about, rows)
            print(f"drawn: {page.write()}", flush=True)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
