"""Servers that break a promise are caught by the workload that is about it, in one short run each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncegate.proof.mutants import liars

pytestmark = pytest.mark.faults


@pytest.mark.parametrize(("bug", "workload", "check"), liars.CASES, ids=lambda value: getattr(value, "__name__", None))
def test_server_that_breaks_a_promise_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, check: str
) -> None:
    verdict = liars.verdict_on(tmp_path, workload, bug)
    assert verdict.verdict == "invalid"
    found = [result for result in verdict.checks if result.verdict == "invalid" and result.name.startswith(check)]
    assert found, [(result.name, result.verdict) for result in verdict.checks]
    assert found[0].failures[0].words, "a failure is told in words"


def test_honest_server_behind_the_same_proxy_is_valid(tmp_path: Path) -> None:
    assert liars.verdict_on(tmp_path, "append", liars.honest).verdict == "valid"
