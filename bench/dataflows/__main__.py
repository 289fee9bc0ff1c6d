"""Three data flows over one Cassandra and one workload: ``python -m bench.dataflows [EXPERIMENT …]``.

``saturating``: the same posts, as fast as they are answered, two database nodes; costs of a post are judged there.
``sustained``: each is offered as many posts a second, one by one; what is delivered is its capacity. ``eighty``: each
at 80 % of it. ``burst``: 50 % of it, then 200 %, then 50 %; and the integrated flow's posts to its gateway alone.
``failure``: three database nodes with three copies of each row; each flow's capacity is found there in the same two
steps, then it has 80 % of it while a node is killed and comes back. ``scaling``: saturating with 1, 2 and 3 database
nodes on the same cores, one copy of each row.
Every run ends with the complete check: each acknowledged post once in the timeline of each follower. Exit status: 0
complete, 1 not, or an experiment failed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.dataflows.architectures import NAMES, Integrated, Synchronous
from bench.dataflows.database import Database, of_cassandra, of_sqlite
from bench.dataflows.stage import Run, alone, run
from bench.dataflows.workload import SAMPLE, WHOLE, Audience
from bench.harness import Bench, Line, Row, option, part
from bench.load import turned
from bench.options import above_zero
from bench.peers.packages import NotBuilt
from oncegate.stores.devcassandra.cluster import free_ports, running
from oncegate.stores.devcassandra.node import Config
from oncegate.stores.errors import StoreError

EXPERIMENTS: Final = ("saturating", "sustained", "eighty", "burst", "failure", "scaling")
HEAP: Final = "1g"
SHARE: Final = 0.8
RATE_MIN: Final = 1.0
COPIES: Final = 3
"""Of each row, where a database node dies."""
NEEDS: Final = {"sustained": "saturating", "eighty": "sustained", "burst": "sustained"}
"""The experiment whose delivered posts a second are the capacities that another one's load is a share of."""
DELIVERED: Final = {"saturating": "delivered while saturating", "sustained": "delivered of posts one by one"}
"""What these capacities are, in words."""
FAILURES: Final = (OSError, RuntimeError, StoreError, subprocess.SubprocessError)
"""What ends one experiment: a part that does not start, answer or end, or a full disk."""


class Lengths(NamedTuple):
    """How long the parts of the experiments are.

    Attributes:
        prime_s: of the warming of each database node; they share the processors.
        posts, scaling_posts: as fast as they are answered, by each data flow: the same for all, so that they do the
            same work, and what one accepts ahead of its copies is bounded.
        warm_s: of load before the clock starts, where there is a rate.
        sustained_s: of posts one by one, as many as were delivered saturating.
        failure_posts, failure_sustained_s: the same two steps where each row has three copies.
        load_s: of the integrated data flow at 80 %. others_s: of the other two.
        burst_s: of each phase of a burst.
        kill_s, restart_s, failure_s: when a node dies, when it returns, of the load around it.
    """

    prime_s: float
    posts: int
    scaling_posts: int
    warm_s: float
    sustained_s: float
    failure_posts: int
    failure_sustained_s: float
    load_s: float
    others_s: float
    burst_s: float
    kill_s: float
    restart_s: float
    failure_s: float


WHOLE_LENGTHS: Final = Lengths(30.0, 25_000, 15_000, 45.0, 120.0, 5_000, 60.0, 600.0, 150.0, 30.0, 60.0, 90.0, 120.0)
SAMPLE_LENGTHS: Final = Lengths(3.0, 2_000, 1_000, 2.0, 8.0, 500, 5.0, 10.0, 10.0, 4.0, 4.0, 8.0, 16.0)
SATURATING_S: Final = 900.0
"""At most."""
Capacities = Mapping[str, float]
"""Posts a second that each data flow has delivered."""


def plan(experiment: str, architecture: str, nodes: int, capacities: Capacities, lengths: Lengths) -> Run:
    """Return what is run.

    Args:
        experiment: of `EXPERIMENTS`.
        architecture: its name.
        nodes: of Cassandra.
        capacities: of all data flows, as :data:`NEEDS` says; none, where the experiment's load is no share of them.
        lengths: of the phases.

    Raises:
        ValueError: an unknown experiment.
    """
    own = capacities.get(architecture, 0.0)
    match experiment:
        case "saturating" | "scaling":
            posts = lengths.posts if experiment == "saturating" else lengths.scaling_posts
            return Run(experiment, architecture, [(0.0, SATURATING_S)], posts)
        case "sustained":
            return Run(experiment, architecture, [(max(RATE_MIN, own), lengths.sustained_s)], warm_s=lengths.warm_s)
        case "eighty":
            seconds = lengths.load_s if architecture == Integrated.name else lengths.others_s
            phases = [(max(RATE_MIN, SHARE * own), seconds)]
            return Run(experiment, architecture, phases, warm_s=lengths.warm_s)
        case "burst":
            half, double = max(RATE_MIN, own / 2), max(RATE_MIN, own * 2)
            phases = [(share, lengths.burst_s) for share in (half, double, half)]
            return Run(experiment, architecture, phases, warm_s=lengths.warm_s)
        case "failure":
            phases = [(max(RATE_MIN, SHARE * own), lengths.failure_s)]
            replicas = min(COPIES, nodes)
            return Run(
                experiment, architecture, phases, None, lengths.kill_s, lengths.restart_s, replicas, lengths.warm_s
            )
    raise ValueError(f"no experiment {experiment}")


def capacity_of(architecture: str, nodes: int, lengths: Lengths, measure: Callable[[Run], Row]) -> tuple[float, bool]:
    """Return what a data flow sustains where each row has three copies, and whether nothing was lost meanwhile.

    What it delivers saturating is offered one by one; ``measure`` runs one run and returns its row.
    """
    replicas, rate, posts, seconds = min(COPIES, nodes), 0.0, lengths.failure_posts, SATURATING_S
    complete = True
    for step in ("saturating", "sustained"):
        wanted = Run(f"failure_{step}", architecture, [(rate, seconds)], posts or None, replicas=replicas)
        row = measure(wanted)
        rate, posts, seconds = max(RATE_MIN, row["delivered_per_s"]), 0, lengths.failure_sustained_s
        complete = complete and row["check"]["complete"]
    return rate, complete


def nodes_of(experiment: str, *, quick: bool) -> tuple[int, ...]:
    """Return the numbers of database nodes that an experiment runs with; a sample of most has one."""
    match experiment:
        case "scaling":
            return (1, 2) if quick else (1, 2, 3)
        case "failure":
            return (3,)
        case _:
            return (1,) if quick else (2,)


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


BENCH: Final = Bench(
    "dataflows", __doc__, drawn=True,
    durability="each post flushed before its answer; Cassandra: commitlog_sync=group, 10 ms",
    options=(
        option("--architecture", None, "again for more [all]; not saved", action="append", choices=NAMES),
        option("--store", "cassandra", "sqlite: not saved", choices=("cassandra", "sqlite")),
        option("--capacity", None, "posts a second [what saturating measures]; makes a sample", type=above_zero),
        option("--heap", HEAP, "of each Cassandra node; another makes a sample"),
    ),
)  # fmt: skip


def main() -> int:
    """Run what the command line says; returns the exit status."""
    parser = BENCH.parser()
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(EXPERIMENTS)} [all]")
    found = BENCH.parse(parser)
    if unknown := {*found.experiments} - {*EXPERIMENTS}:
        parser.error(f"no such experiment: {', '.join(sorted(unknown))}; there are {', '.join(EXPERIMENTS)}")
    # A load, or a database, of one's own choice is not what the page judges.
    found.sample = found.sample or found.capacity is not None or found.heap != HEAP
    found.no_save = found.no_save or bool(found.architecture) or found.store != "cassandra"
    try:
        return measure(found, found.experiments or EXPERIMENTS)
    except NotBuilt as missing:
        print(f"not built: {missing}", file=sys.stderr)
        return 1


def one(
    options: argparse.Namespace, experiment: str, names: Sequence[str], capacities: Capacities
) -> tuple[Line, list[Row]]:
    """Run an experiment on databases of its own; returns its header, and a row for each run."""
    lengths = SAMPLE_LENGTHS if options.quick else WHOLE_LENGTHS
    audience: Audience = SAMPLE if options.quick else WHOLE
    of = {"capacities_of": DELIVERED[NEEDS[experiment]]} if experiment in NEEDS else {}
    known = {"experiment": experiment, "audience": audience._asdict(), "heap": options.heap, **of}
    with part(BENCH, f"dataflows: {experiment}", options, **known, capacities=dict(capacities)) as held:
        about, directory = held.about, held.directory

        def measured(database: Database, wanted: Run) -> Row:
            into = directory / "-".join((wanted.experiment, wanted.architecture, str(database.nodes), str(wanted.turn)))
            row = run(database, into, audience, options.seed, wanted)
            about["disturbed"] = about["disturbed"] or row["disturbed"]
            return row

        for nodes in nodes_of(experiment, quick=options.quick):
            with opened(options, nodes, directory / f"db-{nodes}") as database:
                # A cold JVM would be the first data flow's: this load is not counted.
                prime = Run("prime", Synchronous.name, [(0.0, lengths.prime_s * nodes)])
                run(database, directory / f"prime-{nodes}", audience, options.seed, prime)
                if experiment == "failure" and options.capacity is None:
                    sustained = {
                        name: capacity_of(name, nodes, lengths, functools.partial(measured, database)) for name in names
                    }
                    capacities = {name: rate for name, (rate, _) in sustained.items()}
                    about |= {"capacities": capacities, "capacities_of": f"{DELIVERED['sustained']} to these nodes"}
                    about["complete"] = all(complete for _, complete in sustained.values())
                for turn, name in enumerate(turned(names, EXPERIMENTS.index(experiment) + nodes)):
                    what = plan(experiment, name, nodes, capacities, lengths)._replace(turn=turn)
                    held.add(measured(database, what))
        if experiment == "burst" and Integrated.name in names:
            wanted = plan(experiment, Integrated.name, 0, capacities, lengths)
            about["alone"] = alone(directory / "alone", audience, options.seed, wanted)
        held.rows.sort(key=lambda row: (row["nodes"], NAMES.index(row["architecture"])))
    return about, held.rows


def needed(experiments: Sequence[str]) -> list[str]:
    """Return the experiments in their order, with those that find the capacities of others before them."""
    wanted = {*experiments}
    for _ in NEEDS:
        wanted |= {NEEDS[experiment] for experiment in wanted if experiment in NEEDS}
    return [experiment for experiment in EXPERIMENTS if experiment in wanted]


def measure(options: argparse.Namespace, experiments: Sequence[str]) -> int:
    """Run the experiments, each saved by itself; a load that needs the capacity finds it first.

    One that fails is named, and the others go on, but for those whose load it was to find.
    """
    names = [name for name in NAMES if not options.architecture or name in options.architecture]
    given: Capacities = {} if options.capacity is None else dict.fromkeys(NAMES, options.capacity)
    found: dict[str, Capacities] = {}
    complete = True
    for experiment in EXPERIMENTS if given else needed(experiments):
        if experiment not in experiments and given:
            continue
        capacities = given or found.get(NEEDS.get(experiment, ""), {})
        if experiment in NEEDS and not capacities:
            print(f"not run: {experiment}: no capacity is known", file=sys.stderr, flush=True)
            complete = False
            continue
        try:
            about, rows = one(options, experiment, names, capacities)
        except NotBuilt:
            raise
        except FAILURES as failure:
            # Hours of others would be lost.
            print(f"failed: {experiment}: {type(failure).__name__}: {failure}", file=sys.stderr, flush=True)
            complete = False
            continue
        complete = complete and about.get("complete", True) and all(row["check"]["complete"] for row in rows)
        found[experiment] = {row["architecture"]: row["delivered_per_s"] for row in rows}
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
