"""Many runs, one after the other: which are left, what came out of them, and how that reads.

Owns: the state of a soak and its file, which folders are kept, what happens to a run that does not come to a verdict,
and the wording of verdicts and counts. Runs are in a fixed order (:func:`~oncegate.proof.check.plan.runs_of`), so the
number of runs done says which one is next; a run that was under way when the soak was killed is made again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.errors import CheckError, FolderError, Unavailable
from oncegate.proof.check.folder import LATEST, RunFolder, RunVerdict, replace_file
from oncegate.proof.check.plan import RunPlan, runs_of
from oncegate.proof.check.runner import alone, end_left_over, faults_of, lacking, run
from oncegate.proof.check.workloads import WORKLOADS
from oncegate.rifl.errors import Code, OncegateError

FILE: Final = "soak.json"
LISTED_MAX: Final = 1_000


class SoakTally(msgspec.Struct):
    """Counts over some runs.

    Attributes:
        runs: how many.
        ok, fail, unknown: operations by outcome.
        faults: faults injected.
        anomalies: violations that checks found.
        lost: those of them that are acknowledged writes lost.
        undecided: runs with verdict unknown.
        crashed: runs that did not come to a verdict.
    """

    runs: int = 0
    ok: int = 0
    fail: int = 0
    unknown: int = 0
    faults: int = 0
    anomalies: int = 0
    lost: int = 0
    undecided: int = 0
    crashed: int = 0

    def add(self, verdict: RunVerdict, faults: int) -> None:
        """Count one run."""
        self.runs += 1
        self.ok += verdict.operations.get("ok", 0)
        self.fail += verdict.operations.get("fail", 0)
        self.unknown += verdict.operations.get("unknown", 0)
        self.faults += faults
        self.undecided += verdict.verdict == "unknown"
        for result in verdict.checks:
            found = max(1, len(result.failures)) if result.verdict == "invalid" else 0
            self.anomalies += found
            self.lost += found if result.name.startswith(LOST) else 0


class SoakState(msgspec.Struct):
    """A soak: the runs it consists of and what came of those that are done.

    Attributes:
        template: of every run but for workload and seed.
        workloads: in turn.
        seeds: how many runs.
        done: how many of them, in their order, are done.
        total: counts over all runs.
        by_workload, by_fault: the same for each; a run counts for every fault that was injected in it.
        listed: folders of the runs that are not valid, and why.
    """

    template: RunPlan
    workloads: list[str]
    seeds: int
    done: int = 0
    total: SoakTally = msgspec.field(default_factory=SoakTally)
    by_workload: dict[str, SoakTally] = msgspec.field(default_factory=dict)
    by_fault: dict[str, SoakTally] = msgspec.field(default_factory=dict)
    listed: list[str] = msgspec.field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The worst of the runs': ``crashed``, ``invalid``, ``unknown`` or ``valid``."""
        total = self.total
        if total.anomalies:
            return "invalid"
        return "crashed" if total.crashed else "unknown" if total.undecided else "valid"

    def left(self) -> Iterator[RunPlan]:
        """Yield the runs that are not done, in their order."""
        return islice(runs_of(self.template, self.workloads, self.seeds), self.done, None)

    def add(self, plan: RunPlan, folder: str, verdict: RunVerdict) -> None:
        """Count a run that came to a verdict."""
        self.done += 1
        self.total.add(verdict, sum(verdict.faults.values()))
        self.by_workload.setdefault(plan.workload, SoakTally()).add(verdict, sum(verdict.faults.values()))
        for fault, times in verdict.faults.items():
            self.by_fault.setdefault(fault, SoakTally()).add(verdict, times)
        if verdict.verdict != "valid":
            self._list(f"{verdict.verdict}: {folder}")

    def crash(self, plan: RunPlan, folder: str, reason: str) -> None:
        """Count a run that did not come to a verdict."""
        self.done += 1
        for tally in (self.total, self.by_workload.setdefault(plan.workload, SoakTally())):
            tally.runs += 1
            tally.crashed += 1
        self._list(f"crashed: {folder}: {reason}")

    def _list(self, line: str) -> None:
        if len(self.listed) < LISTED_MAX:
            self.listed.append(line)

    def save(self, runs: Path) -> None:
        """Write the state, whole or not at all."""
        replace_file(runs / FILE, msgspec.json.format(msgspec.json.encode(self), indent=2))


def begun(runs: Path, template: RunPlan, workloads: Sequence[str], seeds: int, *, resume: bool) -> SoakState:
    """Return the state to go on from: the saved one if ``resume`` and there is one, otherwise a new one.

    Raises OncegateError (BAD_REQUEST) if the saved soak has other parameters, or its file is damaged.
    """
    fresh = SoakState(template, list(workloads), seeds)
    path = runs / FILE
    if not resume or not path.exists():
        return fresh
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SoakState)
    except msgspec.MsgspecError as damaged:
        raise OncegateError(Code.BAD_REQUEST, f"{path} holds no soak: {damaged}") from damaged
    if (saved.template, saved.workloads) != (fresh.template, fresh.workloads):
        raise OncegateError(Code.BAD_REQUEST, f"{path} is of a soak with other parameters; leave out --resume")
    saved.seeds = seeds  # more of the same, or fewer
    return saved


def soak(
    template: RunPlan,
    workload: str | None,
    runs: Path,
    *,
    seeds: int | None,
    keep: bool,
    resume: bool,
    say: Callable[[str], None],
    done: Callable[[int, int], None] = lambda done, of: None,
) -> SoakState:
    """Make the runs that are left, save the state after each, and return it.

    Args:
        template: everything but the workload; its seed is the first.
        workload: which; None: all in turn.
        runs: where folders and state are.
        seeds: how many runs; by default each workload once.
        keep: keep the folders of valid runs too, not only the newest run's.
        resume: go on where a soak of the same parameters was stopped.
        say: takes lines of progress.
        done: called before each run with how many are done, and of how many.

    Raises:
        OncegateError: BAD_REQUEST, or CONFLICT if another process runs there now; nothing was started.
        Unavailable: this machine cannot run the workload that is named. Without a name such workloads are left out.
    """
    names = _possible(template, workload, say)
    for name in names:
        faults_of(msgspec.structs.replace(template, workload=name))
    runs.mkdir(parents=True, exist_ok=True)
    with alone(runs):
        end_left_over(runs)
        _sweep(runs)
        state = begun(runs, template, names, len(names) if seeds is None else seeds, resume=resume)
        _runs(state, runs, keep=keep, say=say, done=done)
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


def _each(fault: Exception) -> Iterator[Exception]:
    """Yield what was raised: the members of a group in place of the group."""
    if isinstance(fault, ExceptionGroup):
        for one in fault.exceptions:
            yield from _each(one)
    else:
        yield fault


def _runs(
    state: SoakState,
    runs: Path,
    *,
    keep: bool,
    say: Callable[[str], None],
    done: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    before: RunFolder | None = None
    for plan in state.left():
        done(state.done, state.seeds)
        say(f"{state.done + 1}/{state.seeds} {plan.workload}, seed {plan.seed}, faults {plan.fault_names}")
        try:
            folder, verdict = run(plan, runs)
        except (CheckError, RuntimeError, OSError, ExceptionGroup) as fault:
            reason = "; ".join(f"{type(one).__name__}: {one}" for one in _each(fault))
            say(f"crashed: {reason}")
            state.crash(plan, str((runs / LATEST).resolve()), reason[:500])
            state.save(runs)
            continue
        for line in verdict_lines(verdict):
            say(line)
        say(f"  {folder.path}")
        state.add(plan, str(folder.path), verdict)
        state.save(runs)
        # The folder of the newest run stays until there is a newer one: ``latest`` leads to it.
        if before is not None and not keep:
            shutil.rmtree(before.path, ignore_errors=True)
        before = folder if verdict.verdict == "valid" else None


def _sweep(runs: Path) -> None:
    """Remove the newest run's folder if it does not say how the run ended: that run was killed, and is made again."""
    with contextlib.suppress(FolderError):
        newest = RunFolder.open(runs / LATEST)
        settings = newest.read_run().settings
        if "plan" in settings and "ended" not in settings:
            shutil.rmtree(newest.path, ignore_errors=True)


def verdict_lines(verdict: RunVerdict) -> Iterator[str]:
    """Yield the verdict of a run, each check, and what is wrong in words."""
    counts = ", ".join(f"{number} {status}" for status, number in verdict.operations.items())
    faults = ", ".join(f"{name} {times}" for name, times in sorted(verdict.faults.items())) or "none"
    yield f"{verdict.verdict}: operations: {counts}; faults: {faults}"
    for result in verdict.checks:
        reason = f": {result.reason}" if result.reason else ""
        yield f"  {result.verdict:8} {result.name} ({result.operations} operations, {result.keys} keys){reason}"
        for failure in result.failures:
            for line in failure.words:
                yield f"           {line}"


def soak_lines(state: SoakState) -> Iterator[str]:
    """Yield the counts of a soak, by workload and by fault, and what is listed."""
    total, names = state.total, [*state.by_workload, *state.by_fault, "all runs"]
    width = max(len(name) for name in names)
    yield f"{'':{width}} {'runs':>6} {'ok':>9} {'failed':>8} {'unknown':>8} {'faults':>7} {'anomalies':>9} {'lost':>5}"
    for tallies in (state.by_workload, state.by_fault):
        for name, tally in sorted(tallies.items()):
            yield _line(name, tally, width)
        if tallies:
            yield ""
    yield _line("all runs", total, width)
    yield from state.listed
    yield (
        f"{state.verdict}: {state.done} of {state.seeds} runs, {total.anomalies} anomalies, "
        f"{total.lost} acknowledged writes lost, {total.undecided} undecided, {total.crashed} crashed"
    )


def _line(name: str, tally: SoakTally, width: int) -> str:
    counts = f"{tally.runs:6} {tally.ok:9} {tally.fail:8} {tally.unknown:8} {tally.faults:7}"
    return f"{name:{width}} {counts} {tally.anomalies:9} {tally.lost:5}"
