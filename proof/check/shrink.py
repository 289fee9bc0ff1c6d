"""Shrinks a failed run: makes smaller runs, or judges smaller histories, and leaves the least that fails in a folder.

Owns: what is tried in which order, the bound of tries, and what counts as failing: the same check says *invalid* again.
Both ways rest on :func:`oncegate.proof.lincheck.explain.fewer`.

Only what is sound is left out of a history: a prefix of a correct history is correct, so is one key of it, and so is
one without some of its reads or refused operations. Without a write, reads of its value would fail for that alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from oncegate.proof.check.folder import RunFolder, RunVerdict
from oncegate.proof.check.nemesis import FaultPlan
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import alone, end_left_over, judge, plan_in, run
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event
from oncegate.proof.lincheck.explain import fewer
from oncegate.rifl.errors import Code, OncegateError

TRIES_DEFAULT: Final = 2
RUNS_DEFAULT: Final = 40
JUDGEMENTS_MAX: Final = 400
SECONDS_MIN: Final = 2.0
READS: Final = frozenset({"read", "read-own", "get", "sum"})


class Smaller(msgspec.Struct, frozen=True):
    """A run to be tried: which planned faults are left, how many processes, how long."""

    faults: tuple[int, ...]
    processes: int
    seconds: float


class Budget:
    """How many more tries there are."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def spend(self) -> bool:
        """Take one; False if there is none."""
        self.left -= 1
        return self.left >= 0


def smaller_run(first: Smaller, fails: Callable[[Smaller], bool], budget: Budget) -> Smaller:
    """Return a smaller run that fails too: fewer faults, then fewer processes, then a shorter time.

    Args:
        first: a run that failed.
        fails: makes a run, and says whether it fails; runs of one plan may differ, so it may try more than once.
        budget: of calls of ``fails``.
    """
    found = first

    def with_faults(faults: tuple[int, ...]) -> bool:
        return fails(msgspec.structs.replace(found, faults=faults))

    found = msgspec.structs.replace(found, faults=fewer(found.faults, with_faults, budget.spend))
    while found.processes > 1 and budget.spend():
        candidate = msgspec.structs.replace(found, processes=found.processes // 2)
        if not fails(candidate):
            break
        found = candidate
    while found.seconds > SECONDS_MIN and budget.spend():
        candidate = msgspec.structs.replace(found, seconds=max(SECONDS_MIN, found.seconds / 2))
        if not fails(candidate):
            break
        found = candidate
    return found


def smaller_history(
    history: Sequence[Event], keys: Sequence[Hashable], fails: Callable[[Sequence[Event]], bool], budget: Budget
) -> list[Event]:
    """Return a part of a failing history that still fails, and names those that are at fault.

    Args:
        history: a history that failed.
        keys: those that failures name; others are left out if that leaves a failure.
        fails: judges a history.
        budget: of calls of ``fails``.
    """
    kept = list(history)
    named = [event for event in kept if event.key in keys]
    if len(named) < len(kept) and budget.spend() and fails(named):
        kept = named
    kept = kept[: _prefix(kept, fails, budget)]
    units = _removable(kept)

    def without(chosen: tuple[tuple[int, ...], ...]) -> bool:
        return fails(_less(kept, units, chosen))

    return _less(kept, units, fewer(units, without, budget.spend))


def _prefix(history: Sequence[Event], fails: Callable[[Sequence[Event]], bool], budget: Budget) -> int:
    """Return the length of a failing prefix; the shortest, if failing once is failing ever after."""
    low, high = 0, len(history)
    while low < high and budget.spend():
        middle = (low + high) // 2
        if fails(history[:middle]):
            high = middle
        else:
            low = middle + 1
    return high


def _removable(history: Sequence[Event]) -> tuple[tuple[int, ...], ...]:
    """Return, for each read and each refused operation, the places of its events."""
    found: list[tuple[int, ...]] = []
    running: dict[int, int] = {}
    for place, event in enumerate(history):
        if event.type == "invoke":
            running[event.process] = place
            continue
        began = running.pop(event.process, None)
        if began is not None and (event.f in READS or (event.type == "fail" and event.request is None)):
            found.append((began, place))
    return tuple(found)


def _less(history: Sequence[Event], units: Sequence[tuple[int, ...]], kept: Sequence[tuple[int, ...]]) -> list[Event]:
    dropped = {place for unit in set(units) - set(kept) for place in unit}
    return [event for place, event in enumerate(history) if place not in dropped]


def failing(verdict: RunVerdict) -> frozenset[str]:
    """Return the names of the checks that say invalid."""
    return frozenset(result.name for result in verdict.checks if result.verdict == "invalid")


def _failed(folder: RunFolder) -> frozenset[str]:
    names = failing(judge(folder))
    if not names:
        raise OncegateError(Code.BAD_REQUEST, f"{folder.path} is not invalid: there is nothing to shrink")
    return names


def shrink_history(folder: RunFolder, say: Callable[[str], None]) -> tuple[RunFolder, RunVerdict]:
    """Leave out of a history what does not matter, without a new run; return the folder of what is left.

    Raises:
        FolderError: there is no run.
        OncegateError: BAD_REQUEST, the run is not invalid.
    """
    names = _failed(folder)
    info, history = folder.read_run(), list(folder.read_history())
    workload = workload_of(info.workload)
    keys = {failure.key for result in folder.read_verdict().checks for failure in result.failures}

    def fails(part: Sequence[Event]) -> bool:
        results = workload.check(part)
        return any(result.name in names and result.verdict == "invalid" for result in results)

    least = smaller_history(history, list(keys), fails, Budget(JUDGEMENTS_MAX))
    say(f"{len(history)} events, {len(least)} of them still fail")
    settings = {**info.settings, "shrunk from": folder.path.name}
    small = RunFolder.create(folder.path.parent, msgspec.structs.replace(info, settings=settings, started=""))
    with small.history_writer() as writer:
        for event in least:
            writer.event(event)
    if folder.faults.exists():
        shutil.copyfile(folder.faults, small.faults)
    return small, judge(small)


def shrink_run(
    folder: RunFolder, say: Callable[[str], None], *, runs: int = RUNS_DEFAULT, tries: int = TRIES_DEFAULT
) -> tuple[RunFolder, RunVerdict]:
    """Run again with parts of the plan left out while it still fails; return the smallest run that failed.

    Args:
        folder: a failed run.
        say: takes lines of progress.
        runs: how many smaller plans are tried.
        tries: how often each, since a race that fails once need not fail again.

    Raises:
        FolderError: there is no run.
        OncegateError: BAD_REQUEST, the run is not invalid, or holds no plan; CONFLICT as
            :func:`~oncegate.proof.check.runner.alone`.
    """
    names = _failed(folder)
    plan, faults = plan_in(folder)
    root = folder.path.parent
    smallest: tuple[RunFolder, RunVerdict] = folder, folder.read_verdict()

    def fails(candidate: Smaller) -> bool:
        nonlocal smallest
        smaller, less = _applied(plan, faults, candidate)
        for _ in range(tries):
            say(f"{len(less.actions)} faults, {smaller.processes} processes, {smaller.seconds:g} s")
            tried, verdict = run(smaller, root, less)
            if failing(verdict) & names:
                if smallest[0].path != folder.path:
                    shutil.rmtree(smallest[0].path, ignore_errors=True)
                smallest = tried, verdict
                say(f"  fails: {tried.path}")
                return True
            shutil.rmtree(tried.path, ignore_errors=True)
        return False

    first = Smaller(tuple(range(len(faults.actions))), plan.processes, plan.seconds)
    with alone(root):
        end_left_over(root)
        smaller_run(first, fails, Budget(runs))
    return smallest


def _applied(plan: RunPlan, faults: FaultPlan, candidate: Smaller) -> tuple[RunPlan, FaultPlan]:
    """Return the plan of a smaller run; faults that would begin after its end are left out too."""
    kept = {index for index in candidate.faults if faults.actions[index].start < candidate.seconds}
    less = faults.without([index for index in range(len(faults.actions)) if index not in kept])
    smaller = msgspec.structs.replace(plan, processes=candidate.processes, seconds=candidate.seconds)
    return smaller, msgspec.structs.replace(less, seconds=candidate.seconds)
