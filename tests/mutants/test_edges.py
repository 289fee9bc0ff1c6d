"""Each bug at the edges is noticed by the test that is named for it; the suite runs that test without the bug."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.edges import BUGS, EdgeBug
from tests.mutate.targets import ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_noticed_by_the_test_that_is_named_for_it_alone(bug: EdgeBug) -> None:
    # In a process of its own: trials fork, and a worker of this suite holds the same modules of tests already.
    words = [sys.executable, "-m", "tests.mutants.edges", bug.name]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert ran.stdout.splitlines()[-1] == "killed", ran.stdout + ran.stderr


def test_bugs_are_planted_in_every_part_that_no_simulator_reaches() -> None:
    assert {bug.name.partition("/")[0] for bug in BUGS} == {
        *("admission", "fence", "middleware", "recipes", "store-claims")
    }
    assert len({bug.name for bug in BUGS}) == len(BUGS)
