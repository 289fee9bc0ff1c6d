"""Many runs, counted: what has been run, what came out, and where to go on after a stop. Pure but for its file.

Owns: the state of a soak. Must not know how a run is made. Runs are in a fixed order
(:func:`~oncegate.proof.check.plan.runs_of`), so the number of runs done says which one is next; a run that was under
way when the soak was killed is made again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from oncegate.proof.check.checks import LOST
from oncegate.proof.check.folder import RunVerdict, replace_file
from oncegate.proof.check.plan import RunPlan, runs_of
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
            self.lost += found if result.name == LOST else 0


class SoakState(msgspec.Struct):
    """A soak: the runs it consists of and what came of those that are done.

    Attributes:
        template: of every run but for workload and seed.
        workloads: in turn.
        seeds: how many runs.
        done: how many of them, in their order, are done.
        total: over all runs.
        by_workload, by_fault: the same for each; a run counts for every fault that was injected in it.
        listed: folders of the runs that are not valid, and what they said.
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

    Raises:
        OncegateError: BAD_REQUEST, the saved soak has other parameters, or its file is damaged.
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
