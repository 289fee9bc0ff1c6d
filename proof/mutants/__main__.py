# ruff: noqa: T201 - a command prints.
"""``python -m oncegate.proof.mutants [NAME …]``: plant each bug, and print what caught it; ``--list`` prints what there
is.
"""

from __future__ import annotations

import argparse
import sys
import time

from oncegate.proof.mutants.catalogue import CATALOGUE, MUTANTS


def main(argv=None):
    """Return 0 when every bug was caught by a verdict, within its bound."""
    parser = argparse.ArgumentParser(prog="python -m oncegate.proof.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these only; without any, those of simulated gateways")
    parser.add_argument("--all", action="store_true", help="also those of the engine, and of servers of real processes")
    parser.add_argument("--list", action="store_true", help="print names, what each bug breaks and what catches it")
    options = parser.parse_args(argv)
    if unknown := set(options.names) - set(CATALOGUE):
        parser.error(f"no planted bug: {', '.join(sorted(unknown))}")
    every = options.all or options.list
    missed = 0
    for name in options.names or (CATALOGUE if every else MUTANTS):
        bug = CATALOGUE[name]
        if options.list:
            print(f"{name:55} {bug.caught_by:50} {bug.breaks}")
            continue
        started = time.process_time()
        caught = bug.run()
        missed += caught is None
        took = time.process_time() - started
        print(f"{name:55} {bug.caught_by:50} {caught or 'NOT CAUGHT'} ({took:.1f} s); {bug.breaks}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
