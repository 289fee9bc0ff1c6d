# ruff: noqa: T201 - a command prints.
"""What the commands that run seeds share: a part of a plan, a plan that is shrunk, many seeds in several processes.

Read next: :mod:`oncegate.proof.sim.engine.__main__`, :mod:`oncegate.proof.sim.gateway.__main__`.
"""

from __future__ import annotations

import multiprocessing
import signal
import time

from oncegate.proof.lincheck.explain import fewer


def add_part(parser):
    """Add the options that :func:`part_of` reads."""
    parser.add_argument("--only", help="numbers of the faults to keep, of the seed's list; - for none")
    parser.add_argument("--length", type=float, help="simulated seconds before the faults end")


def is_part(options):
    """Whether a part of the plan was asked for."""
    return options.only is not None or options.length is not None


def part_of(plan, options):
    """The part of a seed's plan that ``--only`` and ``--length`` name, or all of it."""
    if not is_part(options):
        return plan
    numbers = {fault.number for fault in plan.faults}
    if options.only is not None:
        numbers = {int(number) for number in options.only.split(",") if number != "-"}
    return plan.only(numbers, options.length)


def only_words(plan):
    """What names a plan's faults on the command line."""
    return ["--only", ",".join(str(fault.number) for fault in plan.faults) or "-"]


def length_words(plan):
    """What names a plan's length on the command line."""
    return ["--length", repr(plan.seconds)]


def shrunk(outcome, run):
    """Shrink a failing outcome, and print what is left of its plan."""
    small, runs = shrink(outcome, run)
    print(
        f"shrunk in {runs} runs from {len(outcome.plan.faults)} faults to {len(small.plan.faults)}, "
        f"from {outcome.plan.seconds:.2f} s to {small.plan.seconds:.2f} s: {small.checker}: {small.text}"
    )
    for fault in small.plan.faults:
        print(f"  {fault.at:9.6f} s  {fault.kind} {fault.args}")
    return small


def shrink(outcome, run, *, runs_max=120):
    """Return the smallest failing outcome found, and how many runs it took.

    Fewer faults (delta debugging), then a shorter run. Removing a fault changes what comes after it, so a smaller plan
    may fail for another cause: the checker's name must stay the same.
    """
    left = runs_max

    def fails(numbers, seconds):
        nonlocal left, best
        if left <= 0:
            return False
        left -= 1
        tried = run(plan.only(set(numbers), seconds))
        if tried.checker == outcome.checker:
            best = tried
            return True
        return False

    plan, best = outcome.plan, outcome
    seconds = plan.seconds
    if outcome.at < seconds and fails([fault.number for fault in plan.faults], round(outcome.at + 0.002, 3)):
        seconds = round(outcome.at + 0.002, 3)
    numbers = [fault.number for fault in plan.faults if fault.at < seconds]
    numbers = fewer(numbers, lambda part: fails(part, seconds), lambda: left > 0)
    while best.at < seconds - 0.01 and fails(numbers, round(best.at + 0.002, 3)):
        seconds = best.plan.seconds
    return best, runs_max - left


def run_seeds(job, options, *, first, take):
    """Run ``options.seeds`` seeds from ``options.start`` on in ``options.jobs`` processes.

    Ends at the first that fails, after ``options.seconds``, or when somebody stops it: then it is said how to go on.

    Args:
        job: called in another process with a seed; returns a tuple, the seed first and whether it failed last.
        first: the option that says where to go on.
        take: gets what is between the two, in order of the seeds.

    Returns:
        How many were run, and the one that failed, or None.
    """
    seeds = range(options.start, options.start + options.seeds)
    done, started = 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(options.jobs, _ignore_interrupt) as pool:
        try:
            for seed, *result, failed in pool.imap(job, seeds, chunksize=4):
                take(*result)
                done += 1
                if failed:
                    return done, seed
                if options.seconds is not None and time.monotonic() - started > options.seconds:
                    break
        except KeyboardInterrupt:
            print(f"stopped; continue with {first} {options.start + done}")
    return done, None


def _ignore_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
