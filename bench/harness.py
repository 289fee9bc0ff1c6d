"""One way to run a bench: its options, a quiet machine, both calibrations, the header, its rows printed and stored.

Owns: what every bench has on its command line and in its results file, and whether something else had the machine. A
bench declares its options and yields rows (:class:`Bench`); one of several parts, each stored by itself, opens a
:func:`part` for each. A *sample* (``--quick``, or less of something than a whole run has) is stored like a whole run,
marked; a page shows it only where no whole run is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench import children, disturbance
from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import machine
from bench.options import at_least, command_of, end_in_order, folder
from bench.usage import MachineTime, Usage, descendants
from oncegate import Client, Session
from oncegate.gateway.local.cluster import LocalCluster

RESULTS: Final = Path(__file__).parent / "results"
DURABLE: Final = "three nodes, each flushed with fdatasync before the answer"
PATIENCE_S: Final = 120.0
"""That a whole run waits for a quiet machine."""
SHOWN_MAX: Final = 6
"""Longer lists of a row are stored and not printed."""
Line = dict[str, Any]
"""A line of a results file: the header, and ``rows``."""
Row = dict[str, Any]


class Option(NamedTuple):
    """An option of a bench.

    Attributes:
        flag: with its dashes.
        whole: of a whole run. quick: of a sample; less than ``whole`` makes one, unless this is None.
        more: further words of `argparse`.
    """

    flag: str
    whole: Any
    quick: Any = None
    more: Mapping[str, Any] = {}

    def value(self, given: Any, *, quick: bool) -> Any:
        """Return what counts."""
        return given if given is not None else self.quick if quick and self.quick is not None else self.whole


def option(flag: str, whole: Any, words: str, *, quick: Any = None, **more: Any) -> Option:
    """Declare an option; its help tells the defaults."""
    told = f"{words} [{whole}{f'; {quick} with --quick' if quick is not None else ''}]"
    return Option(flag, whole, quick, {"help": told, **more})


@dataclass
class Run:
    """A run, or a part of one, while it lasts."""

    options: argparse.Namespace
    directory: Path
    about: Line
    rows: list[Row] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Print a row, and keep it."""
        print(f"   {shown(row)}", flush=True)
        self.rows.append(row)


@dataclass(frozen=True)
class Bench:
    """What a bench is.

    Attributes:
        name: of its results file.
        doc: its module's, which the command line tells.
        measure: yields its rows; a bench of several parts has none.
        options: beside those of every bench.
        durability: of what it measures.
        drawn: its part of ``docs/experiments.md`` is drawn again behind it.
    """

    name: str
    doc: str | None
    measure: Callable[[Run], Iterable[Row]] | None = None
    options: tuple[Option, ...] = ()
    durability: str = DURABLE
    drawn: bool = False

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of its command line."""
        raw = argparse.RawDescriptionHelpFormatter
        built = argparse.ArgumentParser(command_of(), description=self.doc, formatter_class=raw)
        built.add_argument("--quick", action="store_true", help="a sample: small sizes, short windows")
        built.add_argument("--seed", type=at_least(0), default=1)
        built.add_argument("--directory", type=folder, help="parent of the data; the system's temporary one by default")
        built.add_argument("--no-save", action="store_true", help="print only")
        for one in self.options:
            built.add_argument(one.flag, default=None, **one.more)
        return built

    def parse(self, parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
        """Return the options; ``sample`` says whether they make less than a whole run. The end is in order from now."""
        found = (parser or self.parser()).parse_args()
        found.sample = found.quick
        for one in self.options:
            name = one.flag.lstrip("-").replace("-", "_")
            value = one.value(getattr(found, name), quick=found.quick)
            setattr(found, name, value)
            found.sample = found.sample or (one.quick is not None and value < one.whole)
        end_in_order()
        return found

    def main(self) -> int:
        """Run what the command line says."""
        assert self.measure is not None
        with part(self, self.name, self.parse()) as run:
            for row in self.measure(run):
                run.add(row)
        return 0


@contextlib.contextmanager
def part(bench: Bench, title: str, options: argparse.Namespace, **about: Any) -> Iterator[Run]:
    """Run a part: its block adds rows, which are stored when it has ended well."""
    with (
        tempfile.TemporaryDirectory(prefix="oncegate-bench-", dir=options.directory) as name,
        watched(title, Path(name), seed=options.seed, quick=options.sample, durability=bench.durability) as line,
    ):
        line |= about
        run = Run(options, Path(name), line)
        yield run
    if not options.no_save:
        print(f"saved in {save(bench.name, run.about, run.rows).name}", flush=True)
        if bench.drawn:
            from bench.experiments import page  # which knows all benches that it draws

            print(f"drawn: {page.write()}", flush=True)


@contextlib.contextmanager
def watched(title: str, directory: Path, *, seed: int, quick: bool, durability: str = DURABLE) -> Iterator[Line]:
    """Wait for a quiet machine, calibrate, print the header, and yield it; its ``disturbed`` is known at the end.

    It is what disturbed before, else what the body has set there, else what took the machine on the average. A sample
    does not wait.
    """
    before = disturbance.wait_for_quiet(0.0 if quick else PATIENCE_S)
    line: Line = {
        "bench": title, "seed": seed, "durability": durability, **machine(),
        "fdatasync_4k_ms": fdatasync_4k(directory).p50_ms, "bare_posts_per_s": bare_posts(64),
        "load_average": os.getloadavg()[0], "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "quick": quick,
    }  # fmt: skip
    print(f"== {title}")
    for name, value in line.items():
        print(f"   {name}: {value:.3f}" if isinstance(value, float) else f"   {name}: {value}", flush=True)
    line["disturbed"] = before
    began, own = MachineTime.now(), own_s()
    yield line
    seen = MachineTime.now().since(began)
    line["disturbed"] = line["disturbed"] or disturbance.during(seen, own_s() - own)
    if line["disturbed"]:
        print(f"   disturbed: {line['disturbed']}", flush=True)


class Watch:
    """Whether anything else takes the machine, from now on; ``ours_s`` tells the processor time of what is measured."""

    def __init__(self, ours_s: Callable[[], float]) -> None:
        self._ours_s = ours_s
        self._machine, self._before_s = MachineTime.now(), ours_s()

    def disturbed(self) -> str | None:
        """Return what disturbed until now; None: nothing."""
        return disturbance.during(MachineTime.now().since(self._machine), self._ours_s() - self._before_s)


def own_s() -> float:
    """Return the processor time of this process and of all below it, ended or not."""
    ended = sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return ended + children.unwaited_s + Usage.of(descendants(os.getpid())).cpu_s


def shown(row: Mapping[str, Any]) -> str:
    """Return a row as a line for people: what has a name of its own stands without one."""
    words = []
    for name, value in row.items():
        if isinstance(value, list | tuple) and len(value) > SHOWN_MAX:
            continue
        told = f"({shown(value)})" if isinstance(value, Mapping) else _figure(value)
        words.append(told if name in ("what", "case", "mode", "event", "fault") else f"{name} {told}")
    return ", ".join(words)


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def save(name: str, about: Mapping[str, Any], rows: list[Row]) -> Path:
    """Append a run to ``bench/results/NAME.jsonl``."""
    path = RESULTS / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({**about, "rows": rows}) + "\n")
    return path


def stored(name: str) -> list[Line]:
    """Return the lines of a results file, the oldest first; none without a file."""
    path = RESULTS / f"{name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    # The first ones of some benches said less.
    return [{"quick": False, "run": "", "load_average": None, **json.loads(line)} for line in lines]


def judged(line: Line) -> bool:
    """Return whether a run may be held against a target: it is whole, and nothing else had the machine."""
    return not line["quick"] and not line.get("disturbed")  # which older runs have not noted


def best(lines: Iterable[Line], by: str) -> dict[str, Line]:
    """Return for each value of ``by`` the newest whole run; a disturbed one, or a sample, where none is better."""

    def worth(line: Line) -> tuple[bool, bool]:
        return not line["quick"], judged(line)

    found: dict[str, Line] = {}
    for line in lines:
        if (before := found.get(line[by])) is None or worth(line) >= worth(before):
            found[line[by]] = line
    return found


class Side(NamedTuple):
    """A cluster under load, with a session on it."""

    cluster: LocalCluster
    client: Client
    session: Session

    def cpu_s(self) -> float:
        """Return the processor time that the nodes have taken so far: unlike a rate it does not mind neighbours."""
        return Usage.of(self.cluster.pid(name) for name in self.cluster.ids).cpu_s


@contextlib.asynccontextmanager
async def side(cluster: LocalCluster, **how: Any) -> AsyncIterator[Side]:
    """Start a cluster and open a session on it; ``how`` is the client's. Both end with the block."""
    with cluster:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        async with Client(cluster.endpoints, **how) as client, client.session(window=4_096) as session:
            yield Side(cluster, client, session)
