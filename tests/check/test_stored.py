"""Stream rows are read across the hand-over to the store: a real Spark job is killed, and planted bugs are caught."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from oncegate.proof.check import delivery_processes
from oncegate.proof.check import soak as soaks
from oncegate.proof.check.checks import LOST
from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.delivery_processes import StreamRowsJob
from oncegate.proof.check.errors import CheckError, Unavailable
from oncegate.proof.check.folder import RunVerdict
from oncegate.proof.check.nemesis import Action, FaultPlan
from oncegate.proof.check.nemesis.fault import LEADER
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.runner import faults_of, run
from oncegate.proof.check.workloads.stream import HANDED_OVER, JOB, StoredReads
from oncegate.proof.lincheck import operations
from oncegate.rifl.errors import OncegateError
from oncegate.spark_sink.flow_client import FlowClient, close_connections
from oncegate.stores import claimed_store
from oncegate.stores.errors import StoreError
from oncegate.stores.retry import Retry
from oncegate.stores.stream_rows import ROWS_CONSUMER, STREAM_ROWS, rows_of

NODES = ("n1", "n2", "n3")
LOOK_S = 0.02


def run_with(runs: Path, plan: RunPlan, *actions: Action) -> tuple[RunVerdict, dict[str, Any]]:
    """Make a run with these faults; returns its verdict and what was noted of the job and of each node in the end."""
    names = tuple(sorted({action.fault for action in actions}))
    faults = FaultPlan(plan.seed, plan.seconds, NODES[: plan.nodes], names, actions)
    folder, verdict = run(plan, runs, faults)
    noted = {op.key: op.result for op in operations(folder.read_history()) if op.f in ("job", "handed-over")}
    return verdict, noted


@pytest.mark.faults
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_rows_are_read_as_written_while_job_and_leader_are_killed(tmp_path: Path, seed: int) -> None:
    verdict, noted = run_with(
        tmp_path,
        RunPlan(workload="stored", seed=seed, seconds=5.0),
        Action("kill_spark", 0.5, 0.5, ("spark",)),
        Action("kill_leader", 2.0, 1.0, (LEADER,)),
    )
    assert verdict.verdict == "valid", [(result.name, result.reason, result.failures) for result in verdict.checks]
    assert noted["spark"] == {"kills": 1, "ended": []}
    for node in NODES:
        assert noted[node]["first_batch"] > 1
        assert noted[node]["reads"] > 0


class ByHand(StreamRowsJob):
    """The job as a thread, without Spark."""

    moves_first = False
    """The planted bug: of each other batch the cursor moves, and then the rows are not written any more."""

    def __init__(self, cluster: CheckCluster, table: str, store: str) -> None:
        super().__init__(cluster.directory / "spark", lambda: list(cluster.endpoints), table, store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        if not self.is_running():
            self._stop.clear()
            self._thread = threading.Thread(target=self._follow)
            self._thread.start()

    def kill(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def _follow(self) -> None:
        flow = FlowClient(self._endpoints(), self._table, retry=Retry(5))
        with claimed_store(self._store, flow.state().cluster_identity) as store:
            store.create([STREAM_ROWS])
            store.begin(self._table, ROWS_CONSUMER)
            attached = flow.attach(ROWS_CONSUMER, "by hand")
            number = attached.cursor + 1
            while not self._stop.wait(LOOK_S):
                try:
                    while not self._stop.is_set() and number <= flow.state().last_batch:
                        if not (self.moves_first and number % 2 == 0):
                            for rows in rows_of(flow.batch(number), self._table, 1_000):
                                store.write(STREAM_ROWS, rows)
                        flow.move_cursor(ROWS_CONSUMER, number, attached.fence)
                        number += 1
                except StoreError:
                    continue  # the cluster ends before the job does
        close_connections()


class Hasty(ByHand):
    moves_first = True


def with_job(monkeypatch: pytest.MonkeyPatch, kind: type[ByHand]) -> None:
    monkeypatch.setattr(StoredReads, "lacks", lambda self, plan: "")
    monkeypatch.setattr(StoredReads, "job", lambda self, cluster, store: kind(cluster, self.table, store))


@pytest.mark.faults
def test_job_that_moves_its_cursor_before_the_rows_are_written_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_job(monkeypatch, Hasty)
    verdict, _ = run_with(tmp_path, RunPlan(workload="stored", seed=3, seconds=3.0, nodes=1))
    assert verdict.verdict == "invalid"
    invalid = {result.name for result in verdict.checks if result.verdict == "invalid"}
    assert LOST in invalid
    # Who reads in the gap, a reader or the writer itself, is the machine's affair.
    assert invalid & {"linearizable row", "a writer reads its own writes at every node, and never goes back"}


@pytest.mark.faults
def test_the_same_job_without_the_bug_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_job(monkeypatch, ByHand)
    verdict, noted = run_with(tmp_path, RunPlan(workload="stored", seed=3, seconds=1.5, nodes=1))
    assert verdict.verdict == "valid", [(result.name, result.reason, result.failures) for result in verdict.checks]
    assert noted["n1"]["reads"] > 0


@pytest.mark.faults
def test_a_job_that_ends_by_itself_is_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(ByHand):
        def kill(self) -> None:
            super().kill()
            self.ended.append(4)

    with_job(monkeypatch, Ends)
    plan = RunPlan(workload="stored", seed=3, seconds=1.0, nodes=1)
    verdict, _ = run_with(tmp_path, plan, Action("kill_spark", 0.2, 0.2, ("spark",)))
    assert [result.name for result in verdict.checks if result.verdict == "invalid"] == [JOB]


@pytest.mark.faults
def test_run_without_a_hand_over_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_job(monkeypatch, ByHand)

    async def nothing(self: StoredReads, world: Any) -> None:
        return None

    monkeypatch.setattr(StoredReads, "_hand_over_all", nothing)
    monkeypatch.setattr("oncegate.proof.check.workloads.stream.FLOW", {"consumers": [ROWS_CONSUMER], "linger_ms": 100})
    verdict, _ = run_with(tmp_path, RunPlan(workload="stored", seed=3, seconds=0.5, nodes=1))
    assert verdict.verdict == "unknown"
    assert [result.name for result in verdict.checks if result.verdict == "unknown"] == [HANDED_OVER]


def test_all_faults_include_those_on_the_processes_of_the_workload() -> None:
    def names(**more: Any) -> set[str]:
        faults, left_out = faults_of(RunPlan(**{"workload": "stored", "faults": ("all",), "seconds": 1.0, **more}))
        return {*faults.names, *left_out}

    assert names() & {"kill_spark", "kill_cassandra"} == {"kill_spark"}
    assert names(store="cassandra") >= {"kill_spark", "kill_cassandra"}
    assert not names(workload="register") & {"kill_spark", "kill_cassandra"}
    with pytest.raises(OncegateError, match="sqlite, cassandra"):
        RunPlan(workload="stored", store="paper")


def test_workload_that_this_machine_cannot_run_is_left_out_of_all_and_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise CheckError("not made here")

    def soak(workload: str | None) -> soaks.SoakState:
        template = RunPlan(workload="")
        return soaks.soak(template, workload, tmp_path, seeds=1, keep=False, resume=False, say=said.append)

    said: list[str] = []
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(soaks, "run", crash)
    assert "no Java" in delivery_processes.lacking(cassandra=False)
    assert "stored" not in soak(None).workloads
    assert said[0].startswith("workload stored is left out: no Java")
    with pytest.raises(Unavailable, match="stored: no Java"):
        soak("stored")
    with pytest.raises(Unavailable, match="stored: no Java"):
        run(RunPlan(workload="stored"), tmp_path)
