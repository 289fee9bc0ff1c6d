"""Each bug at the edges is noticed by the test that is named for it; the suite runs that test without the bug."""

from __future__ import annotations

import pytest

from tests.mutants.edges import BUGS, EdgeBug
from tests.mutate import trial
from tests.mutate.changes import Change
from tests.mutate.targets import ROOT


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_noticed_by_the_test_that_is_named_for_it_alone(bug: EdgeBug) -> None:
    code = (ROOT / bug.path).read_text(encoding="utf-8")
    assert code.count(bug.was) == 1, "the place has changed"
    planted = Change(bug.path, bug.was, bug.now, 1, 1, code.replace(bug.was, bug.now))
    (found,) = trial.run([planted], [bug.check], jobs=1, seconds_max=200)
    assert found.verdict == "killed"


def test_bugs_are_planted_in_every_part_that_no_simulator_reaches() -> None:
    assert {bug.name.partition("/")[0] for bug in BUGS} == {
        *("admission", "fence", "middleware", "recipes", "store-claims")
    }
    assert len({bug.name for bug in BUGS}) == len(BUGS)
