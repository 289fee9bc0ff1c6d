# ruff: noqa: T201 - a command prints.
"""``python -m tests.sim_gateway --seeds 10000``: many simulated clusters with clients, and a verdict on each.

Seed ``s`` runs workload ``s`` modulo their number, or the one that is named. A run that is stopped says where to go on
(``--from``). The first seed with an anomaly ends it: its plan is shrunk, and the command printed repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import sys
import time
from collections import Counter, defaultdict

from rifl.lincheck import line_of
from tests.sim.many import ignore_interrupt
from tests.sim.shrink import shrink
from tests.sim_gateway.many import Job, plan_of
from tests.sim_gateway.run import run_plan
from tests.sim_gateway.workloads import WORKLOADS


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m tests.sim_gateway", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run (default %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one, and say what happens")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), help="instead of one after the other")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default %(default)s)")
    parser.add_argument("--seconds", type=float, help="stop after this much wall-clock time")
    parser.add_argument("--only", help="numbers of the faults to keep, of the seed's list; - for none")
    parser.add_argument("--length", type=float, help="simulated seconds before the faults end")
    parser.add_argument("--history", action="store_true", help="print the history of --seed")
    parser.add_argument("--trace", action="store_true", help="print every message of --seed")
    return parser.parse_args(argv)


def _chosen(options):
    plan = plan_of(options.seed, options.workload)
    if options.only is None and options.length is None:
        return plan
    numbers = {fault.number for fault in plan.faults}
    if options.only is not None:
        numbers = {int(number) for number in options.only.split(",") if number != "-"}
    return plan.only(numbers, options.length)


def _said(event):
    return f"  {event.time / 1e9:9.6f} {line_of(event).decode().rstrip()}"


def _report(outcome, *, shrinks):
    plan = outcome.plan
    print(f"seed {plan.seed} of {plan.workload} fails after {outcome.at} s:")
    for check, text in outcome.findings:
        print(f"  {check}: {text}")
    if shrinks:
        small, runs = shrink(outcome, run_plan)
        print(
            f"shrunk in {runs} runs from {len(plan.faults)} faults to {len(small.plan.faults)}, "
            f"from {plan.seconds:.2f} s to {small.plan.seconds:.2f} s: {small.checker}: {small.text}"
        )
        for fault in small.plan.faults:
            print(f"  {fault.at:9.6f} s  {fault.kind} {fault.args}")
        outcome = small
    words = ["python", "-m", "tests.sim_gateway", "--seed", str(plan.seed), "--workload", plan.workload]
    words += ["--only", ",".join(str(fault.number) for fault in outcome.plan.faults) or "-"]
    words += ["--length", repr(outcome.plan.seconds)]
    print(f"reproduce with: {shlex.join(words)}")


def _many(options):
    seeds = range(options.start, options.start + options.seeds)
    totals, kinds, done, failed = defaultdict(Counter), Counter(), Counter(), None
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs, ignore_interrupt) as pool:
        try:
            for seed, workload, counts, faults, bad in pool.imap(Job(options.workload), seeds, chunksize=4):
                totals[workload].update(counts)
                kinds.update(faults)
                done[workload] += 1
                if bad:
                    failed = seed
                    break
                if options.seconds is not None and time.monotonic() - started > options.seconds:
                    break
        except KeyboardInterrupt:
            print(f"stopped; continue with --from {options.start + done.total()}")
    print(f"{done.total()} seeds from {options.start}")
    for workload, counts in totals.items():
        print(f"{workload}: {done[workload]} seeds, " + ", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    print("faults: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())))
    if failed is None:
        print("0 anomalies")
        return 0
    _report(run_plan(plan_of(failed, options.workload)), shrinks=True)
    return 1


def _one(options):
    outcome = run_plan(_chosen(options), trace=print if options.trace else None)
    plan = outcome.plan
    about = f"{len(plan.names)} nodes, {len(plan.faults)} faults, trace {outcome.trace_hash}"
    print(f"seed {plan.seed} of {plan.workload}: {about}")
    print(", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items())))
    if options.history:
        print("\n".join(map(_said, outcome.history)))
    if not outcome.failed:
        return 0
    _report(outcome, shrinks=options.only is None and options.length is None)
    return 1


def main(argv=None):
    """Return 0 when every seed passed, 1 when one failed."""
    options = _arguments(argv)
    return _one(options) if options.seed is not None else _many(options)


if __name__ == "__main__":
    sys.exit(main())
