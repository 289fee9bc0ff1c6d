# ruff: noqa: T201 - a command prints.
"""``python -m oncegate.proof.sim.gateway --seeds 10000``: many simulated clusters with clients, and a verdict on each.

Seed ``s`` runs workload ``s`` modulo their number, or the one that is named. A run that is stopped says where to go on
(``--from``). The first seed with an anomaly ends it: its plan is shrunk, and the command printed repeats it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter, defaultdict
from functools import partial

from oncegate.proof.lincheck import line_of
from oncegate.proof.sim.engine.command import add_part, is_part, length_words, only_words, part_of, run_seeds, shrunk
from oncegate.proof.sim.gateway.run import plan_of, run_plan, run_seed
from oncegate.proof.sim.gateway.world import WORKLOADS


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m oncegate.proof.sim.gateway", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and say what happens")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="instead of one after the other")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default %(default)s)")
    parser.add_argument("--seconds", type=float, help="stop after this much wall-clock time")
    add_part(parser)
    parser.add_argument("--history", action="store_true", help="print the history of --seed")
    parser.add_argument("--trace", action="store_true", help="print every message of --seed")
    return parser.parse_args(argv)


def _said(event):
    return f"  {event.time / 1e9:9.6f} {line_of(event).decode().rstrip()}"


def _report(outcome, *, shrinks):
    plan = outcome.plan
    print(f"seed {plan.seed} of {plan.workload} fails after {outcome.at} s:")
    for check, text in outcome.findings:
        print(f"  {check}: {text}")
    if shrinks:
        outcome = shrunk(outcome, run_plan)
    words = ["python", "-m", "oncegate.proof.sim.gateway", "--seed", str(plan.seed), "--workload", plan.workload]
    words += only_words(outcome.plan) + length_words(outcome.plan)
    print(f"reproduce with: {shlex.join(words)}")


def _many(options):
    totals, kinds, done = defaultdict(Counter), Counter(), Counter()

    def take(workload, counts, faults):
        totals[workload].update(counts)
        kinds.update(faults)
        done[workload] += 1

    total, failed = run_seeds(partial(run_seed, options.workload), options, first="--from", take=take)
    print(f"{total} seeds from {options.start}")
    for workload, counts in totals.items():
        print(f"{workload}: {done[workload]} seeds, " + ", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    if failed is None:
        print("0 anomalies")
        return 0
    _report(run_plan(plan_of(failed, options.workload)), shrinks=True)
    return 1


def _one(options):
    outcome = run_plan(
        part_of(plan_of(options.seed, options.workload), options), trace=print if options.trace else None
    )
    plan = outcome.plan
    about = f"{len(plan.names)} nodes, {len(plan.faults)} faults, trace {outcome.trace_hash}"
    print(f"seed {plan.seed} of {plan.workload}: {about}")
    print(", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items())))
    if options.history:
        print("\n".join(map(_said, outcome.history)))
    if not outcome.failed:
        return 0
    _report(outcome, shrinks=not is_part(options))
    return 1


def main(argv=None):
    """Return 0 when every seed passed, 1 when one failed."""
    options = _arguments(argv)
    return _one(options) if options.seed is not None else _many(options)


if __name__ == "__main__":
    sys.exit(main())
