"""The page of the experiments is what the stored runs draw, and every experiment is on it and in the command."""

from __future__ import annotations

import importlib
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from bench.experiments import page
from bench.experiments.__main__ import COMMANDS
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
