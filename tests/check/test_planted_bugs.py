"""Servers that break a promise are caught by the workload that is about it, in one short run each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oncegate.proof.check.folder import Verdict
from oncegate.proof.check.nemesis import plan_of
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import run
from oncegate.proof.check.soak import LOST
from tests.check import liars

pytestmark = pytest.mark.faults

CASES = [
    (liars.repeats_a_write_without_its_id, "append", "each acknowledged item once"),
    (liars.repeats_a_write_without_its_id, "counter", "linearizable counter"),
    (liars.forgets_request_ids, "dedup", "all attempts of a request"),
    (liars.acknowledges_what_it_drops, "append", LOST),
    (liars.answers_stale_reads, "register", "linearizable register"),
    (liars.answers_stale_reads, "stream", "a writer reads its own writes"),
    (liars.ignores_conditions, "compare-and-set", "linearizable cas-register"),
    (liars.ignores_conditions, "bank", "money is neither made nor lost"),
    (liars.says_sealed_without_asking, "resolve", "a request is applied with one result or sealed"),
    (liars.fences_nobody, "hand-over", "an owner that was taken over from"),
    (liars.executes_for_sessions_that_have_ended, "lease", "a session that was told of its end"),
    (liars.loses_an_item_of_a_batch, "flow", LOST),
    (liars.sends_other_bytes_of_a_batch_each_time, "flow", "a batch is the same bytes"),
]


def _verdict(runs: Path, workload: str, bug: Callable[[], liars.Bug], *, nodes: int = 1) -> Verdict:
    plan = RunPlan(workload=workload, seed=7, seconds=1.5, nodes=nodes)
    faults = plan_of(plan.seed, [], plan.seconds, plan.nodes)
    _, verdict = run(
        plan, runs, faults, lambda plan, faults, directory: liars.LyingCluster(plan, faults, directory, bug())
    )
    return verdict


@pytest.mark.parametrize(("bug", "workload", "check"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_server_that_breaks_a_promise_is_caught(
    tmp_path: Path, bug: Callable[[], liars.Bug], workload: str, check: str
) -> None:
    verdict = _verdict(tmp_path, workload, bug, nodes=2 if workload == "flow" else 1)
    assert verdict.verdict == "invalid"
    found = [result for result in verdict.checks if result.verdict == "invalid" and result.name.startswith(check)]
    assert found, [(result.name, result.verdict) for result in verdict.checks]
    assert found[0].failures[0].words, "a failure is told in words"


def test_honest_server_behind_the_same_proxy_is_valid(tmp_path: Path) -> None:
    assert _verdict(tmp_path, "append", liars.honest).verdict == "valid"
