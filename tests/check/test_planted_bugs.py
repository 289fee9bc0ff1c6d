"""Servers that break a promise are caught by the workload that is about it, in one short run each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from oncegate.proof.check.nemesis import Action
from oncegate.proof.check.tampering import Tamperer
from oncegate.proof.mutants import clients, liars

pytestmark = pytest.mark.faults


def _name(value: object) -> str | None:
    return getattr(value, "__name__", None)


@pytest.mark.parametrize(("bug", "workload", "check"), liars.CASES, ids=_name)
def test_server_that_breaks_a_promise_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, check: str
) -> None:
    verdict = liars.shown(check, partial(liars.verdict_on, tmp_path, workload, bug))
    assert verdict.verdict == "invalid"
    found = [result for result in verdict.checks if result.verdict == "invalid" and result.name.startswith(check)]
    assert found, [(result.name, result.verdict) for result in verdict.checks]
    assert found[0].failures[0].words, "a failure is told in words"


@pytest.mark.parametrize(("plant", "workload", "check"), clients.CASES, ids=_name)
def test_client_that_breaks_a_promise_is_caught(
    tmp_path: Path, plant: clients.Plant, workload: str, check: str
) -> None:
    verdict = liars.shown(check, partial(clients.verdict_with, tmp_path, workload, plant))
    found = [result.name for result in verdict.checks if result.verdict == "invalid"]
    assert [name.startswith(check) for name in found] == [True], "no other check sees it"


@pytest.mark.parametrize(("bug", "workload", "action", "check"), liars.FAULT_CASES, ids=_name)
def test_server_that_breaks_a_promise_under_a_fault_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, action: Action, check: str
) -> None:
    verdict = liars.shown(check, partial(liars.verdict_under, tmp_path, workload, bug, action))
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
    assert liars.verdict_on(tmp_path, "append", liars.honest).verdict == "valid"
