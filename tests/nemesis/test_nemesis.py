"""A plan is carried out, noted and healed on real nodes; what cannot be healed is named."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json
from oncegate.proof.check.errors import NotHealed
from oncegate.proof.check.nemesis import FAULTS, Action, FaultNote, FaultPlan, Nemesis, plan_of
from oncegate.proof.check.nemesis.nemesis import make_whole
from tests.nemesis.conftest import DEADLINE_S, Scene

pytestmark = [pytest.mark.faults, pytest.mark.asyncio(loop_scope="module")]

PAGE = Path(__file__).parents[2] / "docs" / "check-faults.md"


def plan_with(*actions: Action) -> FaultPlan:
    """A plan by hand."""
    return FaultPlan(0, 60.0, ("n1", "n2", "n3"), (), actions)


async def test_faults_at_the_same_time_are_noted_and_healed_and_cost_nothing_acknowledged(scene: Scene) -> None:
    plan = plan_of(5, ["kills", "freezes", "partitions", "links", "power"], 6, 3)
    assert len(plan.actions) >= 3
    notes: list[FaultNote] = []
    nemesis = Nemesis(scene.cluster, plan, notes.append)
    await nemesis.run()
    await nemesis.heal()
    assert sorted(note.fault for note in notes) == sorted(action.fault for action in plan.actions)
    for note in notes:
        assert note.end is not None
        assert 0 < note.start <= note.end
        assert note.detail
        assert not {"leader", "follower"} & set(note.target), "the note says who was meant"
    await scene.progress()


async def test_run_that_is_cancelled_in_the_middle_of_faults_is_healed(scene: Scene) -> None:
    notes: list[FaultNote] = []
    plan = plan_with(
        Action("partition_ring", 0.0, 59.0, ("n1", "n2", "n3"), {"how": "lose"}),
        Action("freeze_one", 0.0, 59.0, ("n2",)),
        Action("kill_one", 0.0, 59.0, ("n3",)),
        Action("kill_spark", 0.0, 0.1, ("spark",)),
        Action("slow_disk", 0.0, 59.0, ("n1",), {"delay_s": 1.0}),
    )
    nemesis = Nemesis(scene.cluster, plan, notes.append)
    running = asyncio.create_task(nemesis.run())
    cluster = scene.cluster
    await scene.until(
        lambda: cluster.links.troubled and "n2" in cluster.frozen and not cluster.is_running("n3"), "three faults"
    )
    await scene.until(lambda: bool(notes), "the fault that cannot be is noted")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await nemesis.heal()
    assert "the workload has no spark" in next(note.detail for note in notes if note.fault == "kill_spark")
    assert len(notes) == len(plan.actions)
    assert not cluster.links.troubled
    assert not cluster.frozen
    assert all(control.delay_s == 0 for control in cluster.flushes.values())
    await scene.progress()


async def test_node_that_ended_by_itself_is_named_though_it_came_back(scene: Scene) -> None:
    cluster = scene.cluster
    os.kill(cluster.pid("n1"), signal.SIGABRT)
    await scene.until(lambda: not cluster.is_running("n1"), "n1 has ended")
    with pytest.raises(NotHealed, match="n1: ended by itself with status -6") as caught:
        await asyncio.to_thread(make_whole, cluster, DEADLINE_S)
    assert set(caught.value.wrong) == {"n1"}
    assert cluster.is_ready("n1")
    cluster.crashes.clear()


async def test_node_that_is_started_without_room_serves_from_what_it_has_set_aside_or_says_why_not(
    scene: Scene,
) -> None:
    cluster = scene.cluster
    async with scene.under("full_disk", "n1"):
        await asyncio.to_thread(cluster.kill, "n1")
        cluster.start("n1")
        await scene.until(
            lambda: cluster.is_ready("n1") or "full" in str(unready(cluster.endpoint("n1"))),
            "n1 serves, or says why not",
        )
        assert cluster.is_running("n1")
    await asyncio.to_thread(make_whole, cluster, DEADLINE_S)
    assert cluster.is_ready("n1")
    assert not cluster.crashes
    await scene.progress()


def unready(endpoint: str) -> str | None:
    """Why a node is not ready; None: it does not say."""
    try:
        send_json("GET", f"{endpoint}/readyz", None, 1.0)
    except RequestRefused as refused:
        return str(refused)
    except Unreachable:
        return None
    return None


async def test_first_member_that_is_restarted_while_another_joins_keeps_to_its_list(scene: Scene) -> None:
    cluster = scene.cluster
    before = cluster.command("n1")
    async with scene.under("learner_added", "n4"):
        assert cluster.command("n1") == before
        assert any(word.startswith("n4=") for word in cluster.command("n4"))


async def test_nodes_end_with_the_run_that_started_them(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from oncegate.proof.check.cluster import CheckCluster\n"
        "cluster = CheckCluster(pathlib.Path(sys.argv[1]), 1)\n"
        "cluster.start()\n"
        "cluster.wait_ready()\n"
        "print(cluster.pid('n1'), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await run.communicate()
    async with asyncio.timeout(DEADLINE_S):
        while is_alive(int(said)):
            await asyncio.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Broken:
    """A process that does not come back."""

    name = "cassandra"

    def kill(self) -> None:
        """It is dead."""

    def start(self) -> None:
        """It stays so."""

    def is_running(self) -> bool:
        """Never."""
        return False


async def test_what_is_not_healed_in_time_is_named(scene: Scene) -> None:
    scene.cluster.register(Broken())
    with pytest.raises(NotHealed, match="cassandra: does not run"):
        await asyncio.to_thread(make_whole, scene.cluster, 0.0)
    del scene.cluster.targets["cassandra"]


async def test_example_of_the_documentation_is_a_fault(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "freeze_two.py").write_text(block)
    spec = importlib.util.spec_from_file_location("freeze_two", tmp_path / "freeze_two.py")
    assert spec is not None
    assert spec.loader is not None
    before = set(FAULTS)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert set(FAULTS) - before == {"freeze_two"}
    monkeypatch.setitem(FAULTS, "freeze_two", FAULTS.pop("freeze_two"))
    (action, *_) = plan_of(1, ["freeze_two"], 10, 3).actions
    async with scene.under("freeze_two", *action.targets):
        assert scene.cluster.frozen == set(action.targets)
        (alone,) = {"n1", "n2", "n3"} - set(action.targets)
        assert not scene.cluster.is_ready(alone)
    assert not scene.cluster.frozen
