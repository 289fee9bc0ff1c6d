"""The page of the experiments is what the stored runs draw, and every experiment is on it and in the command."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest

from bench.experiments import page, results, targets
from bench.experiments.__main__ import COMMANDS
from bench.experiments.about import header_of
from bench.limits import Limit
from bench.markdown import COLUMNS


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
    assert COMMANDS == ("bench.scale", "bench.stream", "bench.dataflows")
    for command in COMMANDS:
        assert callable(importlib.import_module(f"{command}.__main__").main)
    asked = [sys.executable, "-m", "bench.experiments", "bench.nothing"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "no such experiment: bench.nothing" in done.stderr


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
    limit = Limit("a disk", "0001-some-profile")
    whole, sample = {**LINE, "quick": False}, {**LINE, "quick": True}
    text = "\n".join(
        targets.section([
            targets.verdict("fast", "≥ 2", "1", whole, met=False, limit=limit),
            targets.verdict("cheap", "≤ 2", "3", whole, met=False, limit=limit),
            targets.verdict("small", "≤ 2", "1", whole, met=True, limit=Limit("nothing", "0002-other")),
            targets.verdict("wide", "≤ 2", "3", sample, met=False, limit=Limit("nothing", "0002-other")),
            targets.Verdict("deep", "≤ 2", "", None),
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
    missed = [one for part in page.PARTS for one in part.verdicts(runs[part.name]) if one.met is False]
    assert all(one.limit is not None for one in missed), missed
    assert all((page.DOCS / f"decisions/{one.limit.decision}.md").exists() for one in missed if one.limit)


@pytest.mark.parametrize("busy", [False, True])
def test_run_beside_a_busy_process_is_told_as_disturbed_and_not_judged(busy: bool, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        if busy:  # started outside: what is started inside is the experiment's own
            loops = [stack.enter_context(spinning()) for _ in range(os.cpu_count() or 1)]
            assert all(one.poll() is None for one in loops)
        with results.watched("a test", tmp_path, seed=1, quick=True) as line:
            time.sleep(1.0)  # what a load would take
    if busy:
        assert line["disturbed"]
        assert not results.judged({**line, "quick": False})
        assert "**Disturbed, " in header_of({**LINE, **line})
    assert not results.judged(line), "a sample"


def test_processor_time_of_what_an_experiment_started_is_its_own() -> None:
    before = results.own_s()
    with spinning(seconds=0.5) as child:
        child.wait(60)
    assert results.own_s() - before > 0.4


@contextlib.contextmanager
def spinning(seconds: float = 60.0) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that takes so much processor time; it is killed at the end."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        try:
            yield child
        finally:
            child.kill()
