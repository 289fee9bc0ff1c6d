"""The page of the experiments is what the stored runs draw, and every experiment is on it and in the command."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from bench import disturbance, harness
from bench.children import talking
from bench.experiments import __main__ as all_of_them
from bench.experiments import calls, fan_out, page
from bench.experiments.__main__ import COMMANDS
from bench.pages import COLUMNS, Judgement, Limit, header_of, judge, targets
from bench.usage import MachineTime, descendants


def test_page_and_plots_are_what_the_stored_runs_draw() -> None:
    runs = page.kept()
    assert (page.DOCS / "experiments.md").read_text() == page.render(runs), "python -m bench.experiments page"
    drawn = page.plots(runs)
    assert {path.name for path in page.DOCS.glob("experiments-*.svg")} == drawn.keys()
    for name, plot in drawn.items():
        assert (page.DOCS / name).read_text() == plot
        ET.fromstring(plot)
        assert f"({name})" in page.render(runs)


def test_a_page_without_any_run_says_so_and_names_every_command() -> None:
    text = page.render({part.name: {} for part in page.PARTS})
    assert text.count("Not measured yet.") >= len(page.PARTS)
    assert page.plots({part.name: {} for part in page.PARTS}) == {}
    flat = text.replace("\n", " ")
    assert all(f"`python -m {command}" in flat for command in COMMANDS)
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= COLUMNS


def test_every_experiment_is_a_module_that_can_be_run_and_another_name_is_misuse() -> None:
    assert COMMANDS == ("bench.dedup", "bench.scale", "bench.stream", "bench.fanout", "bench.dataflows")
    for command in COMMANDS:
        found = importlib.import_module(command)
        whole = importlib.import_module(f"{command}.__main__") if hasattr(found, "__path__") else found
        assert callable(whole.main)
    asked = [sys.executable, "-m", "bench.experiments", "bench.nothing"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "no such experiment: bench.nothing" in done.stderr
    assert done.stderr.startswith("usage: python -m bench.experiments ")


def test_all_experiments_hand_their_options_on_and_a_short_name_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[Sequence[str]] = []
    monkeypatch.setattr(all_of_them, "run", lambda command: ran.append(command) or 0)
    words = ["x", "scale", "bench.stream", "--quick", "--no-save", "--directory", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert all_of_them.main() == 0
    assert [command[2:] for command in ran] == [
        ["bench.scale", "--quick", "--no-save", "--directory", str(tmp_path)],
        ["bench.stream", "--quick", "--no-save", "--directory", str(tmp_path)],
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_experiment_has_a_sample_a_seed_and_can_leave_nothing_behind(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", command, "-h"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0
    assert all(flag in done.stdout for flag in ("--quick", "--seed", "--no-save", "--directory"))


LINE: Final = {
    "commit": "abc", "run": "r", "cpu": "a processor", "cores": 2, "kernel": "6.1", "python": "3.11", "seed": 1,
    "durability": "flushed", "fdatasync_4k_ms": 0.1, "bare_posts_per_s": 8_000.0, "load_average": 0.5,
}  # fmt: skip


def test_missed_target_is_told_with_what_holds_it_back_and_where_its_profile_is() -> None:
    disk, nothing = Limit("a disk", "0001-some-profile"), Limit("nothing", "0002-other")
    limits = {"fast": disk, "cheap": disk, "small": nothing, "wide": nothing}
    whole, sample = {**LINE, "quick": False}, {**LINE, "quick": True}
    text = "\n".join(
        targets([
            judge("fast", "≥ 2", "1", whole, met=False, limits=limits),
            judge("cheap", "≤ 2", "3", whole, met=False, limits=limits),
            judge("small", "≤ 2", "1", whole, met=True, limits=limits),
            judge("wide", "≤ 2", "3", sample, met=False, limits=limits),
            Judgement("deep", "≤ 2", "", None),
        ])
    )  # fmt: skip
    assert "| fast | ≥ 2 | 1 | **NO** |" in text
    assert "| small | ≤ 2 | 1 | yes |" in text
    assert "| wide | ≤ 2 | 3 | a sample |" in text
    assert "| deep | ≤ 2 | - | not measured |" in text
    assert "| fast; cheap | a disk ([profile](decisions/0001-some-profile.md)) |" in text
    assert "nothing" not in text


def test_every_missed_target_of_the_page_names_its_limit_and_a_decision_that_is_there() -> None:
    runs = page.kept()
    missed = [one for part in page.PARTS for one in part.judgements(runs[part.name]) if one.met is False]
    assert all(one.limit is not None for one in missed), missed
    assert all((page.DOCS / f"decisions/{one.limit.decision}.md").exists() for one in missed if one.limit)


@pytest.mark.parametrize(("own_s", "disturbed"), [(3.6, False), (1.9, True)])
def test_processor_time_of_others_during_a_run_disturbs_it(
    own_s: float, disturbed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []
    monkeypatch.setattr(disturbance, "wait_for_quiet", lambda most: patience.append(most))
    readings = [MachineTime(5.0, 0.0, 100.0), MachineTime(9.0, 0.0, 108.0)]  # 4 of 8 s were busy
    own = [10.0, 10.0 + own_s]
    monkeypatch.setattr(MachineTime, "now", lambda: readings.pop(0))
    monkeypatch.setattr(harness, "own_s", lambda: own.pop(0))
    with harness.watched("a test", tmp_path, seed=1, quick=False) as line:
        assert line["disturbed"] is None
    assert bool(line["disturbed"]) is disturbed
    assert harness.judged(line) is not disturbed
    assert ("**Disturbed, during a load: " in header_of({**LINE, **line})) is disturbed
    assert patience == [harness.PATIENCE_S]


def test_what_disturbs_before_the_start_is_told_and_a_sample_does_not_wait_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience: list[float] = []

    def busy(most: float) -> str:
        patience.append(most)
        return "before the start: 1.00 cores busy"

    monkeypatch.setattr(disturbance, "wait_for_quiet", busy)
    with harness.watched("a test", tmp_path, seed=1, quick=True) as line:
        pass
    assert line["disturbed"] == "before the start: 1.00 cores busy"
    assert patience == [0.0]


def test_disturbed_run_replaces_no_quiet_one_and_a_sample_no_whole_one() -> None:
    def line(name: str, *, quick: bool = False, disturbed: str | None = None) -> dict[str, Any]:
        return {"case": "rows", "name": name, "quick": quick, "disturbed": disturbed}

    quiet, later = line("quiet"), line("later")
    rough, sample = line("rough", disturbed="by others"), line("sample", quick=True)
    for lines, expected in (
        ((quiet, rough, sample), "quiet"), ((rough, quiet), "quiet"), ((quiet, later), "later"),
        ((sample, rough), "rough"), ((rough, sample), "rough"),
        ((line("both", quick=True, disturbed="by others"), sample), "sample"),
    ):  # fmt: skip
        assert harness.best(lines, "case")["rows"]["name"] == expected


def test_processor_time_of_what_a_child_started_and_nobody_waits_for_is_counted(tmp_path: Path) -> None:
    (tmp_path / "starts.py").write_text(
        "import subprocess, sys\n"
        "code = 'import time\\nwhile time.process_time() < 0.5: pass\\nprint(1, flush=True)\\ntime.sleep(600)'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        'print(\'{"event": "started"}\', flush=True)\n'
        "sys.stdin.read()\n"
    )
    before = harness.own_s()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with talking("starts", log=tmp_path / "log") as child:
            child.wait("started", 120.0)
            child.finish(120.0)
    took = harness.own_s() - before
    assert took > 0.5
    assert took < 10.0, "once"


def test_processor_time_of_what_an_experiment_started_is_its_own() -> None:
    before = harness.own_s()
    with spinning(seconds=0.5) as child:
        child.wait(60)
    assert harness.own_s() - before > 0.4


@contextlib.contextmanager
def spinning(seconds: float = 60.0) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that takes so much processor time; it is killed at the end."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        try:
            yield child
        finally:
            child.kill()


def dedup_line(ratio: float, *, met: bool, **changed: Any) -> dict[str, Any]:
    """Return a run of `bench.dedup`; both of its targets are met or missed."""
    times = {"samples": 9, "p50_ms": 1.0, "p99_ms": 2.0, "max_ms": 3.0}
    spread = {"ratio": ratio, "quartile_low": 0.9, "quartile_high": 1.1, "met": met}
    rows = [
        {"what": "latency, 1 outstanding", "with": times, "without": times, **spread},
        {"what": "throughput, 512 outstanding", "with": 95.0, "without": 100_000.0, **spread},
        {"what": "sum of increments", "with": 2_000, "without": 2_200},
    ]
    return {**LINE, "bench": "dedup", "quick": False, "rows": rows, **changed}


def test_cost_of_detection_is_told_with_its_quartiles_and_judged() -> None:
    runs = {"dedup": dedup_line(1.046, met=True)}
    text = "\n\n".join(calls.section(runs))
    assert "| latency, 1 outstanding | p50 1.000, p99 2.00, max 3.0 ms of 9 |" in text
    assert "| throughput, 512 outstanding | 95.00 | 100,000 | 1.046 (0.900 to 1.100) |" in text
    assert "| sum of increments | 2,000 | 2,200 | - |" in text
    assert [one.met for one in calls.judgements(runs)] == [True, True]
    missed = calls.judgements({"dedup": dedup_line(0.9, met=False)})
    assert [(one.met, one.limit is not None) for one in missed] == [(False, True)] * 2
    assert [one.met for one in calls.judgements({"dedup": dedup_line(0.9, met=False, quick=True)})] == [None, None]
    assert [one.met for one in calls.judgements({})] == [None, None]
    assert calls.drawing(runs)
    assert calls.drawing({}) is None


def test_rows_through_spark_stand_beside_the_raw_limit_of_their_store() -> None:
    row = {"rows": 900, "steady_rows_per_s": 50.0, "whole_rows_per_s": 40.0,
           "raw_rows_per_s": {"raw driver": 100.0, "our store": 80.0}}  # fmt: skip
    runs = {"fan-out into SQLite": {**LINE, "quick": False, "rows": [row]}}
    text = "\n\n".join(fan_out.section(runs))
    assert "| raw driver | 100 | 0.50 |" in text
    assert "| through Spark, steady | 50 | 1.00 |" in text
    assert fan_out.drawing(runs)
    assert fan_out.drawing({}) is None


def test_runs_of_a_bench_that_once_said_less_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    (tmp_path / "old.jsonl").write_text('{"bench": "old", "commit": "abc", "rows": []}\n')
    (line,) = harness.stored("old")
    assert not line["quick"]
    text = header_of({**LINE, **line})
    assert "Commit abc, a processor" in text
    assert "load of the machine" not in text


def test_processes_below_one_are_found_however_deep(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])\n"
        "child.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"1\n"
            below = descendants(child.pid)
            assert len(below) == 1
            assert {child.pid, *below} <= {*descendants(os.getpid())}
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert descendants(child.pid) == []
