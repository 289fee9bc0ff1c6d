# ruff: noqa: T201 - a command prints.
"""``python -m oncegate.proof.sim.engine --seeds 10000 --jobs 2``: many seeds, their counts, and one command for the
first that fails.

A run can be continued: ``--start`` is the first seed, and what was done is printed when it is stopped. ``--seconds``
bounds the wall clock. A failing seed is shrunk, and the command printed repeats the small one.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter

from oncegate.proof.mutants.bugs import BUGS, ENGINE
from oncegate.proof.sim.engine.command import add_part, is_part, length_words, only_words, run_seeds, shrunk
from oncegate.proof.sim.engine.run import Job, chosen_plan, run_chosen, whole_plan

PLANTED = sorted(name.removeprefix(ENGINE) for name in BUGS if name.startswith(ENGINE))


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m oncegate.proof.sim.engine", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and say what happens")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="stop after this much wall-clock time")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, instead of 3 or 5")
    parser.add_argument("--faults", help="kinds of faults, separated by commas, instead of the usual mix")
    parser.add_argument("--also", help="kinds of faults beside the usual mix")
    add_part(parser)
    parser.add_argument("--planted", choices=PLANTED, help="plant a bug")
    parser.add_argument("--trace", action="store_true", help="print every message of --seed")
    parser.add_argument("--no-shrink", action="store_true", help="print the failing seed as it is")
    return parser.parse_args(argv)


def _command(outcome, options, full) -> str:
    words = ["python", "-m", "oncegate.proof.sim.engine", "--seed", str(outcome.plan.seed)]
    for name in ("nodes", "faults", "also", "planted"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    if len(outcome.plan.faults) < len(full.faults) or options.only:
        words += only_words(outcome.plan)
    if outcome.plan.seconds != full.seconds or options.length:
        words += length_words(outcome.plan)
    return shlex.join(words)


def _report(outcome, options) -> None:
    full = whole_plan(outcome.plan.seed, options)
    print(f"seed {outcome.plan.seed} fails after {outcome.at} s: {outcome.checker}: {outcome.text}")
    if not options.no_shrink:
        outcome = shrunk(outcome, lambda plan: run_chosen(plan, options))
    print(f"reproduce with: {_command(outcome, options, full)}")


def _many(options) -> int:
    totals = Counter()
    done, failed = run_seeds(Job(options), options, first="--start", take=totals.update)
    print(f"{done} seeds from {options.start}: " + ", ".join(f"{totals[name]} {name}" for name in sorted(totals)))
    if failed is None:
        return 0
    _report(run_chosen(chosen_plan(failed, options), options), options)
    return 1


def _one(options) -> int:
    plan = chosen_plan(options.seed, options)
    outcome = run_chosen(plan, options, print if options.trace else None)
    print(f"seed {plan.seed}: {len(plan.names)} nodes, {len(plan.faults)} faults, trace {outcome.trace_hash}")
    print(", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items())))
    if not outcome.failed:
        return 0
    if is_part(options):
        options.no_shrink = True
    _report(outcome, options)
    return 1


def main(argv=None) -> int:
    """Return 0 when every seed passed, 1 when one failed."""
    options = _arguments(argv)
    if options.seed is not None:
        return _one(options)
    return _many(options)


if __name__ == "__main__":
    sys.exit(main())
