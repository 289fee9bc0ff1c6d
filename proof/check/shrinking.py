"""Shrinks a failed run: makes smaller runs, or judges smaller histories, and leaves what still fails in a folder.

Owns: the shell around :mod:`oncegate.proof.check.shrink`. What counts as failing: the same check says *invalid* again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from oncegate.proof.check.folder import RunFolder, RunVerdict
from oncegate.proof.check.nemesis import FaultPlan
from oncegate.proof.check.orphans import alone, end_left_over
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import judge, plan_in, run
from oncegate.proof.check.shrink import Budget, Smaller, smaller_history, smaller_run
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Event
from oncegate.rifl.errors import Code, OncegateError

TRIES_DEFAULT: Final = 2
RUNS_DEFAULT: Final = 40
JUDGEMENTS_MAX: Final = 400


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
            :func:`~oncegate.proof.check.orphans.alone`.
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
