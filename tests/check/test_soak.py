"""A soak counts every run once, also when it was stopped between two of them, and says what it found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oncegate.proof.check import soak
from oncegate.proof.check.checks import LOST
from oncegate.proof.check.folder import RunVerdict
from oncegate.proof.check.plan import RunPlan, fault_names, runs_of
from oncegate.proof.check.soak import SoakState, begun, soak_lines, verdict_lines
from oncegate.proof.lincheck import Failure, Result
from oncegate.rifl.errors import OncegateError

TEMPLATE = RunPlan(workload="", faults=("kills",), seed=5)
NAMES = ["register", "bank"]
GOOD: Any = {"verdict": "valid", "operations": {"ok": 10, "fail": 1, "unknown": 2}, "faults": {"kill_one": 3}}
BAD = RunVerdict(
    verdict="invalid",
    checks=[
        Result(name=LOST, verdict="invalid", failures=[Failure(key="k", words=["it is gone"])] * 2),
        Result(name="other", verdict="invalid"),
        Result(name="third", verdict="valid"),
    ],
)


def test_workloads_take_turns_and_seeds_count_on() -> None:
    runs = [(run.workload, run.seed) for run in runs_of(TEMPLATE, NAMES, 3)]
    assert runs == [("register", 5), ("bank", 6), ("register", 7)]


def test_stopped_soak_goes_on_with_the_run_that_was_under_way(tmp_path: Path) -> None:
    state = begun(tmp_path, TEMPLATE, NAMES, 3, resume=True)
    runs = list(state.left())
    state.add(runs[0], "f1", RunVerdict(**GOOD))
    state.save(tmp_path)
    again = begun(tmp_path, TEMPLATE, NAMES, 3, resume=True)
    assert list(again.left()) == runs[1:]
    assert again.total == state.total
    assert list(begun(tmp_path, TEMPLATE, NAMES, 3, resume=False).left()) == runs


def test_soak_of_other_parameters_or_a_damaged_file_is_not_gone_on_with(tmp_path: Path) -> None:
    state = SoakState(TEMPLATE, NAMES, 3)
    state.save(tmp_path)
    with pytest.raises(OncegateError, match="other parameters"):
        begun(tmp_path, TEMPLATE, ["register"], 3, resume=True)
    (tmp_path / "soak.json").write_text("{")
    with pytest.raises(OncegateError, match="holds no soak"):
        begun(tmp_path, TEMPLATE, NAMES, 3, resume=True)


def test_counts_are_per_workload_and_per_fault_and_lost_writes_apart() -> None:
    state = SoakState(TEMPLATE, NAMES, 3)
    one, two, three = runs_of(TEMPLATE, NAMES, 3)
    state.add(one, "f1", RunVerdict(**GOOD))
    state.add(two, "f2", BAD)
    state.crash(three, "f3", "no cluster")
    assert (state.total.runs, state.total.anomalies, state.total.lost, state.total.crashed) == (3, 3, 2, 1)
    assert (state.by_workload["register"].ok, state.by_workload["bank"].lost) == (10, 2)
    assert state.by_fault["kill_one"].faults == 3
    assert state.verdict == "invalid"
    text = "\n".join(soak_lines(state))
    assert "invalid: f2" in text
    assert "crashed: f3: no cluster" in text
    assert "3 of 3 runs, 3 anomalies, 2 acknowledged writes lost" in text


def test_a_run_that_crashes_is_told_with_what_was_raised_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(plan: RunPlan, runs: Path) -> None:
        raise ExceptionGroup("unhandled", [ExceptionGroup("inner", [KeyError("n1")]), OSError("gone")])

    monkeypatch.setattr(soak, "run", run)
    state, said = SoakState(TEMPLATE, NAMES, 1), list[str]()
    soak._runs(state, tmp_path, keep=True, say=said.append)
    assert said[-1] == "crashed: KeyError: 'n1'; OSError: gone"
    assert state.total.crashed == 1


def test_before_each_run_it_is_told_how_many_are_done_a_resumed_soak_begins_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(plan: RunPlan, runs: Path) -> None:
        raise OSError("gone")

    monkeypatch.setattr(soak, "run", run)
    state, told = SoakState(TEMPLATE, NAMES, 3), list[tuple[int, int]]()
    state.crash(next(state.left()), "f1", "why")
    soak._runs(state, tmp_path, keep=True, say=lambda _: None, done=lambda done, of: told.append((done, of)))
    assert told == [(1, 3), (2, 3)]


@pytest.mark.parametrize(("verdict", "expected"), [("valid", "valid"), ("unknown", "unknown"), (None, "crashed")])
def test_soak_is_as_good_as_its_worst_run(verdict: Any, expected: str) -> None:
    state = SoakState(TEMPLATE, NAMES, 2)
    first, second = runs_of(TEMPLATE, NAMES, 2)
    state.add(first, "f1", RunVerdict(**GOOD))
    if verdict is None:
        state.crash(second, "f2", "why")
    else:
        state.add(second, "f2", RunVerdict(verdict=verdict))
    assert state.verdict == expected


def test_verdict_in_words_names_each_check_and_what_it_found() -> None:
    lines = list(verdict_lines(BAD))
    assert lines[0].startswith("invalid")
    assert sum("it is gone" in line for line in lines) == 2


@pytest.mark.parametrize("bad", [{"seed": -1}, {"seconds": 0}, {"nodes": 8}, {"processes": 0}])
def test_plan_out_of_bounds_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(OncegateError):
        RunPlan(workload="register", **bad)


def test_faults_are_named_with_plus_or_comma() -> None:
    assert fault_names("kills+links, disk,kills") == ("kills", "links", "disk")
    assert fault_names("none") == fault_names("") == ()
