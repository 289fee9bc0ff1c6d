# ruff: noqa: T201 - a command prints.
"""``make mutate``: change the replicated core in each small way, and see that a test notices.

Exit code 1 if fewer than the demanded share of the changes is noticed, if a change that goes unnoticed is not listed
with its reason, or if a listed one is noticed after all. ``MUTATE_OUTPUT=1`` shows what pytest prints.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterator

from tests.mutate import survivors, trial
from tests.mutate.changes import Change, changes
from tests.mutate.targets import KILLED_PERCENT_MIN, ROOT, SURVIVORS, TARGETS

_TIMEOUT_FACTOR = 5.0
_TIMEOUT_MIN_S = 20.0


def main(argv: list[str] | None = None) -> int:
    """Try every change of the chosen modules."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(TARGETS)}; all if none is given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--line", type=int, action="append", help="changes of this line only; again for more")
    options = parser.parse_args(argv)
    if unknown := set(options.files) - set(TARGETS):
        parser.error(f"no target: {', '.join(sorted(unknown))}")
    os.nice(5)
    # An end from outside, too, must not leave the processes of the trials behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    trial.prepare()
    listed = survivors.read(SURVIVORS)
    missed = sum(_file(path, options, listed) for path in options.files or TARGETS)
    return 1 if missed else 0


def _file(path: str, options: argparse.Namespace, listed: dict[survivors.Name, str]) -> int:
    """Try the changes of one module; return how many mistakes were found."""
    tests, code = TARGETS[path], (ROOT / path).read_text(encoding="utf-8")
    began = time.monotonic()
    base = trial.unchanged(path, code, tests)
    if base.verdict != "survived":
        print(f"{path}: its tests fail without any change", flush=True)
        return 1
    tried: list[trial.Trial] = []
    found: list[Change] = []
    limit = max(_TIMEOUT_MIN_S, _TIMEOUT_FACTOR * base.seconds)
    for one in trial.run(_chosen(path, code, options.line), tests, jobs=options.jobs, seconds_max=limit):
        tried.append(one)
        if one.verdict == "survived":
            found.append(one.change)
            if one.change.name not in listed:
                print(f"\nline {one.change.line}\n{survivors.written(one.change)}  WHY", flush=True)
    names = {change.name for change in found}
    gone = [name for name in listed if name[0] == path and name not in names] if options.line is None else []
    for name in gone:
        print(f"\nlisted, but noticed or not there any more: {name}")
    killed = 100 * (len(tried) - len(found)) / max(1, len(tried))
    new = len(names - set(listed))
    took = time.monotonic() - began
    print(
        f"{path}: {killed:.1f} % of {len(tried)} changes noticed; {new} unnoticed and not listed; {took:.0f} s",
        flush=True,
    )
    return new + len(gone) + (killed < KILLED_PERCENT_MIN)


def _chosen(path: str, code: str, lines: list[int] | None) -> Iterator[Change]:
    return (change for change in changes(path, code) if lines is None or change.line in lines)


if __name__ == "__main__":
    sys.exit(main())
