"""Makes the runs of a soak, one after the other, and keeps its state: the shell around
:mod:`oncegate.proof.check.soak`.

Owns: what happens to a run that does not come to a verdict, and which folders are kept.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from oncegate.proof.check.errors import CheckError, FolderError, Unavailable
from oncegate.proof.check.folder import LATEST, RunFolder
from oncegate.proof.check.orphans import alone, end_left_over
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import faults_of, lacking, run
from oncegate.proof.check.soak import SoakState, begun
from oncegate.proof.check.summary import verdict_lines
from oncegate.proof.check.workloads import WORKLOADS


def soak(
    template: RunPlan,
    workload: str | None,
    runs: Path,
    *,
    seeds: int | None,
    keep: bool,
    resume: bool,
    say: Callable[[str], None],
) -> SoakState:
    """Make the runs that are left, save the state after each, and return it.

    Args:
        template: everything but the workload; its seed is the first.
        workload: which; None: all in turn.
        runs: where folders and state are.
        seeds: how many runs; by default each workload once.
        keep: keep the folders of valid runs too. The newest run's stays in any case.
        resume: go on where a soak of the same parameters was stopped.
        say: takes lines of progress.

    Raises:
        OncegateError: BAD_REQUEST, or CONFLICT if somebody else runs there now; nothing was started.
        Unavailable: this machine cannot run the workload that is named. Of all, those that it cannot are left out.
    """
    names = _possible(template, workload, say)
    for name in names:
        faults_of(msgspec.structs.replace(template, workload=name))
    runs.mkdir(parents=True, exist_ok=True)
    with alone(runs):
        end_left_over(runs)
        _sweep(runs)
        state = begun(runs, template, names, len(names) if seeds is None else seeds, resume=resume)
        _runs(state, runs, keep=keep, say=say)
    return state


def _possible(template: RunPlan, workload: str | None, say: Callable[[str], None]) -> list[str]:
    possible = []
    for name in WORKLOADS if workload is None else (workload,):
        reason = lacking(msgspec.structs.replace(template, workload=name))
        if reason and workload is not None:
            raise Unavailable(f"{name}: {reason}")
        if reason:
            say(f"workload {name} is left out: {reason}")
        else:
            possible.append(name)
    return possible


def _runs(state: SoakState, runs: Path, *, keep: bool, say: Callable[[str], None]) -> None:
    before: RunFolder | None = None
    for plan in state.left():
        say(f"{state.done + 1}/{state.seeds} {plan.workload}, seed {plan.seed}, faults {plan.fault_names}")
        try:
            folder, verdict = run(plan, runs)
        except (CheckError, RuntimeError, OSError, ExceptionGroup) as fault:
            say(f"crashed: {fault}")
            state.crash(plan, str((runs / LATEST).resolve()), str(fault)[:500])
            state.save(runs)
            continue
        for line in verdict_lines(verdict):
            say(line)
        say(f"  {folder.path}")
        state.add(plan, str(folder.path), verdict)
        state.save(runs)
        # The folder of the newest run stays until there is a newer one: ``latest`` leads somewhere.
        if before is not None and not keep:
            shutil.rmtree(before.path, ignore_errors=True)
        before = folder if verdict.verdict == "valid" else None


def _sweep(runs: Path) -> None:
    """Remove the newest run's folder if it was killed too hard to say how it ended: that run is made again."""
    with contextlib.suppress(FolderError):
        newest = RunFolder.open(runs / LATEST)
        settings = newest.read_run().settings
        if "plan" in settings and "ended" not in settings:
            shutil.rmtree(newest.path, ignore_errors=True)
