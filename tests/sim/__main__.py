# ruff: noqa: T201 - a command prints.
"""``python -m tests.sim --seeds 10000 --jobs 2``: many seeds, their counts, and one command for the first that fails.

A run can be continued: ``--start`` is the first seed, and what was done is printed when it is stopped. ``--seconds``
bounds the wall clock. A failing seed is shrunk, and the command printed repeats the small one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import sys
import time
from collections import Counter

from tests.sim.many import Job, chosen_plan, ignore_interrupt, run_chosen, whole_plan
from tests.sim.planted import PLANTED
from tests.sim.shrink import shrink


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and say what happens")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="stop after this much wall-clock time")
    parser.add_argument("--nodes", type=int, help="nodes of the cluster, instead of 3 or 5")
    parser.add_argument("--faults", help="kinds of faults, separated by commas, instead of the usual mix")
    parser.add_argument("--also", help="kinds of faults beside the usual mix")
    parser.add_argument("--only", help="numbers of the faults to keep, of the seed's list; - for none")
    parser.add_argument("--length", type=float, help="simulated seconds before the faults end")
    parser.add_argument("--planted", choices=sorted(PLANTED), help="plant a bug")
    parser.add_argument("--trace", action="store_true", help="print every message of --seed")
    parser.add_argument("--no-shrink", action="store_true", help="print the failing seed as it is")
    return parser.parse_args(argv)


def _command(outcome, options, full) -> str:
    words = ["python", "-m", "tests.sim", "--seed", str(outcome.plan.seed)]
    for name in ("nodes", "faults", "also", "planted"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    if len(outcome.plan.faults) < len(full.faults) or options.only:
        words += ["--only", ",".join(str(fault.number) for fault in outcome.plan.faults) or "-"]
    if outcome.plan.seconds != full.seconds or options.length:
        words += ["--length", repr(outcome.plan.seconds)]
    return shlex.join(words)


def _report(outcome, options) -> None:
    full = whole_plan(outcome.plan.seed, options)
    print(f"seed {outcome.plan.seed} fails after {outcome.at} s: {outcome.checker}: {outcome.text}")
    if not options.no_shrink:
        small, runs = shrink(outcome, lambda plan: run_chosen(plan, options))
        print(
            f"shrunk in {runs} runs from {len(outcome.plan.faults)} faults to {len(small.plan.faults)}, "
            f"from {outcome.plan.seconds:.2f} s to {small.plan.seconds:.2f} s: {small.checker}: {small.text}"
        )
        for fault in small.plan.faults:
            print(f"  {fault.at:9.6f} s  {fault.kind} {fault.args}")
        outcome = small
    print(f"reproduce with: {_command(outcome, options, full)}")


def _many(options) -> int:
    seeds = range(options.start, options.start + options.seeds)
    totals, done, failed = Counter(), 0, None
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs, ignore_interrupt) as pool:
        try:
            for seed, counts, bad in pool.imap(Job(options), seeds, chunksize=4):
                totals.update(counts)
                done += 1
                if bad:
                    failed = seed
                    break
                if options.seconds is not None and time.monotonic() - started > options.seconds:
                    break
        except KeyboardInterrupt:
            print(f"stopped; continue with --start {options.start + done}")
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
    if options.only is not None or options.length is not None:
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
