"""One run of an experiment: its header with both calibrations, and which stored run of each part a page shows.

Owns: what every line of a results file of these experiments has, and whether something else had the machine. A
*sample* (``--quick``, or a length of one's own that is shorter than a whole run's) is stored like a whole run, marked;
a page shows it only where no whole run is stored.
Read next: :mod:`bench.experiments.page`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from bench import children
from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import header
from bench.options import at_least, command_of, end_in_order, folder
from bench.peers import disturbance
from bench.usage import MachineTime, Usage, descendants

RESULTS: Final = Path(__file__).parent.parent / "results"
DURABLE: Final = "three nodes, each flushed with fdatasync before the answer"
PATIENCE_S: Final = 120.0
"""That a whole run waits for a quiet machine."""
Line = dict[str, Any]
"""A line of a results file: the header, and ``rows``."""


def parser(doc: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every experiment."""
    built = argparse.ArgumentParser(command_of(), description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    built.add_argument("--quick", action="store_true", help="a sample: small sizes, short windows")
    built.add_argument("--seed", type=at_least(0), default=1)
    built.add_argument("--directory", type=folder, help="parent of the data; the system's temporary one by default")
    built.add_argument("--no-save", action="store_true", help="print only")
    end_in_order()
    return built


class Watch:
    """Whether anything else takes the machine, from now on; ``ours_s`` tells the processor time of what is measured."""

    def __init__(self, ours_s: Callable[[], float]) -> None:
        self._ours_s = ours_s
        self._machine, self._before_s = MachineTime.now(), ours_s()

    def disturbed(self) -> str | None:
        """Return what disturbed until now; None: nothing."""
        return disturbance.during(MachineTime.now().since(self._machine), self._ours_s() - self._before_s)


@contextlib.contextmanager
def watched(title: str, directory: Path, *, seed: int, quick: bool, durability: str = DURABLE) -> Iterator[Line]:
    """Wait for a quiet machine, calibrate, print the header, and yield it; its ``disturbed`` is known at the end.

    It is what disturbed before, else what the body has set there, else what took the machine on the average. A sample
    does not wait.
    """
    before = disturbance.wait_for_quiet(0.0 if quick else PATIENCE_S)
    load = os.getloadavg()[0]
    calibrations = {"fdatasync_4k_ms": fdatasync_4k(directory).p50_ms, "bare_posts_per_s": bare_posts(64)}
    about = header(title, seed=seed, durability=durability, calibrations=calibrations)
    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line: Line = {**about, "load_average": load, "run": run, "quick": quick, "disturbed": before}
    machine, own = MachineTime.now(), own_s()
    yield line
    seen = MachineTime.now().since(machine)
    line["disturbed"] = line["disturbed"] or disturbance.during(seen, own_s() - own)
    if line["disturbed"]:
        print(f"   disturbed: {line['disturbed']}", flush=True)


def own_s() -> float:
    """Return the processor time of this process and of all below it, ended or not."""
    ended = sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return ended + children.unwaited_s + Usage.of(descendants(os.getpid())).cpu_s


def judged(line: Line) -> bool:
    """Return whether a run may be held against a target: it is whole, and nothing else had the machine."""
    return not line["quick"] and not line.get("disturbed")  # which older runs have not noted


def stored(name: str) -> list[Line]:
    """Return the lines of a results file, the oldest first; none without a file."""
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    # The first ones of some benches said less.
    return [
        {"quick": False, "run": "", "load_average": None, **json.loads(line)} for line in path.read_text().splitlines()
    ]


def shown(lines: Iterable[Line], part: str) -> dict[str, Line]:
    """Return for each value of ``part`` the newest whole run; a disturbed one, or a sample, where none is better."""
    found: dict[str, Line] = {}
    for line in lines:
        before = found.get(line[part])
        if before is None or _worth(line) >= _worth(before):
            found[line[part]] = line
    return found


def _worth(line: Line) -> tuple[bool, bool]:
    return not line["quick"], judged(line)
