"""Each workload once, on real nodes under faults: nothing is lost or done twice, and no process is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oncegate.gateway.local.waiting import wait_for
from oncegate.proof.check.folder import RunFolder
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import end_left_over, judge, run
from oncegate.proof.check.workloads import WORKLOADS
from oncegate.proof.check.workloads.recipes import EACH

pytestmark = pytest.mark.faults
FAULTS = ("kills", "freezes", "partitions")


# That with a Spark job has a test of its own: tests/check/test_stored.py. Those of single recipes are parts of one.
@pytest.mark.parametrize("workload", sorted(WORKLOADS.keys() - {"stored"} - {one.name for one in EACH}))
def test_workload_is_valid_under_faults(tmp_path: Path, workload: str, seed: int) -> None:
    plan = RunPlan(workload=workload, faults=FAULTS, seed=seed, seconds=4.0)
    folder, verdict = run(plan, tmp_path)
    assert verdict.verdict == "valid", [(result.name, result.reason, result.failures) for result in verdict.checks]
    assert sum(verdict.faults.values()) > 0, "no fault was injected"
    assert verdict.operations["ok"] > 0, "nothing was done"
    assert not folder.data.exists(), "a valid run keeps no data directories"
    again = judge(RunFolder.open(tmp_path / "latest"))
    assert [(result.name, result.verdict) for result in again.checks] == [
        (result.name, result.verdict) for result in verdict.checks
    ]


def test_stopped_run_leaves_a_folder_that_can_be_judged_and_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "oncegate", "check", "run", "--workload", "append", "--faults", "none"]
    command += ["--seconds", "60", "--nodes", "1", "--runs", str(tmp_path)]
    # What runs in the background of a shell ignores SIGINT, and so does whatever it starts.
    process = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    try:
        history = tmp_path / "latest" / "history.jsonl"

        def under_way() -> bool:
            assert process.poll() is None
            return history.exists() and history.stat().st_size > 2000

        wait_for(under_way, 60, "operations in the history")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 4
    finally:
        process.kill()
        process.wait()
    assert end_left_over(tmp_path) == 0, "a node was left behind"
    verdict = judge(RunFolder.open(tmp_path / "latest"))
    assert verdict.verdict == "unknown"
    assert verdict.operations["ok"] > 0


def test_processes_of_a_killed_run_are_ended_by_the_next_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)", "serve", "--data-dir", str(tmp_path / "r/data/n1")]
    left = subprocess.Popen(command)
    job = subprocess.Popen([*command[:3], "--checkpoint", str(tmp_path / "r/data/spark/checkpoint")])
    cassandra = subprocess.Popen([*command[:3], f"-Dcassandra.storagedir={tmp_path}/r/data/cassandra/node1/data"])
    other = subprocess.Popen([*command[:-1], str(tmp_path) + "-other/data/n1"])
    try:
        assert end_left_over(tmp_path) == 3
        assert {one.wait(10) for one in (left, job, cassandra)} == {-signal.SIGKILL}
        assert other.poll() is None, "a process of another folder was killed"
    finally:
        for process in (left, job, cassandra, other):
            process.kill()
            process.wait()
