"""Making a failing plan smaller: fewer faults (delta debugging), then a shorter run, as long as the same checker fails.

Removing a fault changes what comes after it, so a smaller plan may fail for another cause: the checker's name must stay
the same. Bounded by runs, since a plan takes a tenth of a second and a list has dozens of faults. Read next:
:mod:`oncegate.proof.sim.engine.run`.
"""

from __future__ import annotations

from collections.abc import Callable

from oncegate.proof.lincheck.explain import fewer
from oncegate.proof.sim.engine.run import Outcome


def shrink(outcome: Outcome, run: Callable, *, runs_max: int = 120) -> tuple[Outcome, int]:
    """Return the smallest failing outcome found, and how many runs it took."""
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
