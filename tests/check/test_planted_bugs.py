"""Servers that break a promise are caught by the workload that is about it, in one short run each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from oncegate.proof.check.nemesis import Action
from oncegate.proof.check.tampering import Tamperer
from oncegate.proof.mutants import liars
from oncegate.proof.mutants.catalogue import CLIENTS

pytestmark = pytest.mark.faults


def _name(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("bug", "workload", "check"), liars.CASES, ids=_name)
def test_server_that_breaks_a_promise_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, check: str
) -> None:
    verdict = liars.shown(check, partial(liars.verdict_on, workload, bug, tmp_path))
    assert verdict.verdict == "invalid"
    found = [result for result in verdict.checks if result.verdict == "invalid" and result.name.startswith(check)]
    assert found, [(result.name, result.verdict) for result in verdict.checks]
    assert found[0].failures[0].words, "a failure is told in words"


@pytest.mark.parametrize("name", CLIENTS)
def test_client_that_breaks_a_promise_is_caught(tmp_path: Path, name: str) -> None:
    bug = CLIENTS[name]
    verdict = liars.shown(bug.check, partial(liars.verdict_with, bug, tmp_path))
    found = [result.name for result in verdict.checks if result.verdict == "invalid"]
    assert [one.startswith(bug.check) for one in found] == [True], "no other check sees it"


@pytest.mark.parametrize(("bug", "workload", "action", "check"), liars.FAULT_CASES, ids=_name)
def test_server_that_breaks_a_promise_under_a_fault_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, action: Action, check: str
) -> None:
    verdict = liars.shown(check, partial(liars.verdict_under, workload, bug, action, tmp_path))
    found = [result.name for result in verdict.checks if result.verdict == "invalid"]
    assert [name.startswith(check) for name in found].count(True) == 1, found


def test_nodes_that_do_not_check_the_macs_of_frames_are_caught_where_somebody_changes_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only what a client wrote: a frame that is no frame any more would be refused for that.
    monkeypatch.setattr(Tamperer, "passed", lambda self, data, share: data.replace(b"ann", b"bob"))
    verdict = liars.shown("every balance", partial(liars.verdict_without_macs, tmp_path))
    found = [result.name for result in verdict.checks if result.verdict == "invalid"]
    assert any(name.startswith("every balance") for name in found), found


def test_honest_server_behind_the_same_proxy_is_valid(tmp_path: Path) -> None:
    assert liars.verdict_on("append", liars.honest, tmp_path).verdict == "valid"
