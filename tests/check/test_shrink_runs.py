"""Smaller runs of a failed one: what fails is kept, what does not is removed, and the first folder stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncegate.proof.check.folder import RunFolder
from oncegate.proof.check.nemesis import FaultPlan, plan_of
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import PLAN, info_of, judge
from oncegate.proof.check.shrink import shrink_run
from tests.check.histories import Book

GOOD = Book().did("write", "r0", 1).read("r0", 1)
BAD = Book().did("write", "r0", 1).read("r0", None)


def saved(plan: RunPlan, runs: Path, faults: FaultPlan, book: Book) -> RunFolder:
    folder = RunFolder.create(runs, info_of(plan, {"ended": "finished"}))
    (folder.path / PLAN).write_bytes(faults.to_json())
    with folder.history_writer() as writer:
        for event in book.events:
            writer.event(event)
    judge(folder)
    return folder


def test_smallest_failing_run_is_left_beside_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RunPlan(workload="register", faults=("kills",), seed=3, seconds=12.0, processes=8)
    faults = plan_of(plan.seed, ["kills"], plan.seconds, plan.nodes)
    guilty = faults.actions[1]
    made: list[Path] = []

    def fake(smaller: RunPlan, runs: Path, less: FaultPlan) -> Any:
        folder = saved(smaller, runs, less, BAD if guilty in less.actions and smaller.processes > 1 else GOOD)
        made.append(folder.path)
        return folder, folder.read_verdict()

    monkeypatch.setattr("oncegate.proof.check.shrink.run", fake)
    first = saved(plan, tmp_path, faults, BAD)
    small, verdict = shrink_run(first, lambda line: None)
    assert verdict.verdict == "invalid"
    assert FaultPlan.from_json((small.path / PLAN).read_bytes()).actions == (guilty,)
    assert small.read_run().settings["plan"]["processes"] == 2
    assert small.read_run().seconds < plan.seconds
    assert {path for path in made if path.exists()} == {small.path}, "runs that did not fail are removed"
    assert first.read_verdict().verdict == "invalid"
