# ruff: noqa: T201 - a command prints.
"""``python -m oncegate.proof.mutants``: plant each bug, and print what caught it, where, and after how many runs."""

from __future__ import annotations

import argparse
import sys
import time

from oncegate.proof.mutants.catalogue import MUTANTS


def main(argv=None):
    """Return 0 when every bug was caught by a verdict, within its bound."""
    parser = argparse.ArgumentParser(prog="python -m oncegate.proof.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="these only")
    options = parser.parse_args(argv)
    missed = 0
    print(f"{'mutant':34} {'workload or script':36} {'runs':>9}  {'verdict':19} also; what it breaks")
    for mutant in MUTANTS.values():
        if options.names and mutant.name not in options.names:
            continue
        started = time.process_time()
        caught = mutant.hunt()
        took = f"{time.process_time() - started:.1f} s"
        if caught is None or caught.verdict == "crash":
            missed += 1
            said = "NOT CAUGHT" if caught is None else f"CRASH {caught.outcome.text}"
            print(f"{mutant.name:34} {mutant.shown_by:36} {len(mutant.seeds):>9}  {said} {took}", flush=True)
            continue
        runs = f"{caught.runs} of {len(mutant.seeds)}"
        also = f"{', '.join(caught.also)}; " if caught.also else ""
        print(
            f"{mutant.name:34} {mutant.shown_by:36} {runs:>9}  {caught.verdict:19} {also}{mutant.breaks} ({took})",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
