# ruff: noqa: T201 - a command prints.
"""``python -m tests.sim --seeds 10000 --jobs 2``: many seeds, their counts, and one command for the first that fails.

A run can be continued: ``--start`` is the first seed, and what was done is printed when it is stopped. ``--seconds``
bounds the wall clock. A failing seed is shrunk, and the command printed repeats the small one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import signal
import sys
import time
from collections import Counter

from tests.sim.engine_node import EngineNode
from tests.sim.faults import DEFAULT_MIX
from tests.sim.plan import make_plan
from tests.sim.planted import PLANTED
from tests.sim.run import Outcome, run_plan
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


def _plan(seed, options):
    kinds = None
    if options.faults is not None:
        kinds = {kind: DEFAULT_MIX.get(kind, 3) for kind in options.faults.split(",") if kind}
    elif options.also:
        kinds = {**DEFAULT_MIX, **dict.fromkeys(options.also.split(","), 3)}
    plan = make_plan(seed, nodes=options.nodes, kinds=kinds)
    if options.only is None and options.length is None:
        return plan
    numbers = {fault.number for fault in plan.faults}
    if options.only is not None:
        numbers = {int(number) for number in options.only.split(",") if number != "-"}
    return plan.only(numbers, options.length)


def _run(plan, options, trace=None) -> Outcome:
    if options.planted:
        with PLANTED[options.planted].plant() as node_type:
            return run_plan(plan, node_type=node_type, trace=trace)
    return run_plan(plan, node_type=EngineNode, trace=trace)


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
    full = make_plan(outcome.plan.seed, nodes=options.nodes)
    print(f"seed {outcome.plan.seed} fails after {outcome.at} s: {outcome.checker}: {outcome.text}")
    if not options.no_shrink:
        small, runs = shrink(outcome, lambda plan: _run(plan, options))
        print(
            f"shrunk in {runs} runs from {len(outcome.plan.faults)} faults to {len(small.plan.faults)}, "
            f"from {outcome.plan.seconds:.2f} s to {small.plan.seconds:.2f} s: {small.checker}: {small.text}"
        )
        for fault in small.plan.faults:
            print(f"  {fault.at:9.6f} s  {fault.kind} {fault.args}")
        outcome = small
    print(f"reproduce with: {_command(outcome, options, full)}")


def _ignore_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Job:
    def __init__(self, options):
        self.options = options

    def __call__(self, seed):
        outcome = _run(_plan(seed, self.options), self.options)
        # What travels between processes is small: a plan is made again from its seed.
        return seed, outcome.counts, outcome.failed


def _many(options) -> int:
    seeds = range(options.start, options.start + options.seeds)
    totals, done, failed = Counter(), 0, None
    started = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs, _ignore_interrupt) as pool:
        try:
            for seed, counts, bad in pool.imap(_Job(options), seeds, chunksize=4):
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
    _report(_run(_plan(failed, options), options), options)
    return 1


def _one(options) -> int:
    plan = _plan(options.seed, options)
    outcome = _run(plan, options, print if options.trace else None)
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
