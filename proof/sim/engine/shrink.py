"""Making a failing plan smaller: fewer faults (delta debugging), then a shorter run, as long as the same checker fails.

Removing a fault changes what comes after it, so a smaller plan may fail for another cause: the checker's name must stay
the same. Bounded by runs, since a plan takes a tenth of a second and a list has dozens of faults. Read next:
:mod:`oncegate.proof.sim.engine.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    numbers = _fewest(numbers, lambda part: fails(part, seconds))
    while best.at < seconds - 0.01 and fails(numbers, round(best.at + 0.002, 3)):
        seconds = best.plan.seconds
    return best, runs_max - left


def _fewest(items: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Delta debugging (Zeller's ddmin) over complements."""
    items = list(items)
    if items and fails([]):
        return []
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if rest and fails(rest):
                items = rest
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return items
