"""One run: a cluster, a workload and faults make a history; the history makes a verdict.

Owns: the order of a run, its bounds, and that nothing is left behind however it ends. Two halves, so that a verdict can
be had again without a cluster: :func:`record` writes a folder (:mod:`oncegate.proof.check.folder`), :func:`judge` reads
one. A run that ends in any other way than SIGKILL leaves no process; the next run kills what a killed run left, and a
lock keeps two runs out of one directory, since each would take the other's nodes for left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import os
import platform
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from oncegate.proof.check.cluster import CheckCluster
from oncegate.proof.check.direct_session import Nodes
from oncegate.proof.check.equipment import missing
from oncegate.proof.check.errors import NotHealed, Unavailable
from oncegate.proof.check.folder import RunFolder, RunInfo, RunVerdict
from oncegate.proof.check.nemesis import FaultPlan, Nemesis, available, names_of, plan_of
from oncegate.proof.check.plan import RunPlan
from oncegate.proof.check.recorder import HistoryRecorder
from oncegate.proof.check.report import write_report
from oncegate.proof.check.restored_reads import RestoredReads
from oncegate.proof.check.workload import NotRecovered, Worker, Workload, World
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.lincheck import Failure, Result, operations
from oncegate.proof.lincheck.verdict import worst
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.version import __version__

READY_S: Final = 90.0
LAST_OPERATIONS_S: Final = 60.0
"""What workers may take beyond their time: one operation with all of its attempts."""

HEAL_S: Final = 120.0
FINISH_S: Final = 180.0
FINISHED: Final = "finished"

PLAN: Final = "faults.json"
"""The planned faults, in the run's folder; ``faults.jsonl`` says what became of them."""

_FLAGS: Final = frozenset({b"--data-dir", b"--checkpoint", b"-Dcassandra.storagedir"})
"""Behind which a process names its directory: a node, a job (whose JVM ends with it), a Cassandra."""

MakeCluster = Callable[[RunPlan, FaultPlan, Path], CheckCluster]
"""Makes the cluster of a run, not started, with its files below the directory."""


def check_cluster(plan: RunPlan, faults: FaultPlan, directory: Path) -> CheckCluster:
    """Return a cluster on loopback that has what the faults need."""
    return CheckCluster(directory, plan.nodes, equipment=faults.equipment, seed=plan.seed)


def run(
    plan: RunPlan, runs: Path, faults: FaultPlan | None = None, make_cluster: MakeCluster = check_cluster
) -> tuple[RunFolder, RunVerdict]:
    """Make one run and judge it; returns its folder below ``runs``, and the verdict.

    ``faults`` are by default those of the plan's seed.

    Raises:
        OncegateError: BAD_REQUEST, the plan names what does not exist: nothing was started.
        Unavailable: this machine cannot run the workload: nothing was started.
        RuntimeError: the cluster did not start. The folder is left, as after KeyboardInterrupt.
    """
    if reason := lacking(plan):
        raise Unavailable(f"{plan.workload}: {reason}")
    chosen, left_out = (faults, {}) if faults is not None else faults_of(plan)
    folder = RunFolder.create(runs, info_of(plan, {"left out": left_out}))
    (folder.path / PLAN).write_bytes(chosen.to_json())
    asyncio.run(record(plan, chosen, folder, make_cluster))
    return folder, judge(folder)


def lacking(plan: RunPlan) -> str:
    """Return why this machine cannot run a plan's workload; empty: it can. Raises OncegateError (BAD_REQUEST)."""
    return workload_of(plan.workload).lacks(plan)


def faults_of(plan: RunPlan) -> tuple[FaultPlan, dict[str, str]]:
    """Return the faults that a plan's names and seed make on this machine, and which it does not allow, and why.

    Raises OncegateError (BAD_REQUEST) for a fault or workload that does not exist.
    """
    workload = workload_of(plan.workload)
    processes, lacks = workload.processes(plan), dict(missing())
    try:
        names, left_out = available(names_of(plan.faults, processes), processes=processes, lacks=lacks)
    except ValueError as unknown:
        raise OncegateError(Code.BAD_REQUEST, str(unknown)) from unknown
    return plan_of(plan.seed, names, plan.seconds, plan.nodes), left_out


def info_of(plan: RunPlan, settings: Mapping[str, Any]) -> RunInfo:
    """Return what ``run.json`` says of a plan."""
    return RunInfo(
        workload=plan.workload,
        faults=plan.fault_names,
        seed=plan.seed,
        seconds=plan.seconds,
        nodes=[f"n{number + 1}" for number in range(plan.nodes)],
        settings={"plan": msgspec.to_builtins(plan), **settings},
        commit=_commit(),
        versions={"oncegate": __version__, "python": platform.python_version()},
    )


def plan_in(folder: RunFolder) -> tuple[RunPlan, FaultPlan]:
    """Return what a recorded run was made from.

    Raises:
        FolderError: there is no run.
        OncegateError: BAD_REQUEST, it holds no plan.
    """
    try:
        plan = msgspec.convert(folder.read_run().settings.get("plan"), RunPlan)
        return plan, FaultPlan.from_json((folder.path / PLAN).read_bytes())
    except (OSError, ValueError) as damaged:  # msgspec's errors are ValueErrors
        raise OncegateError(Code.BAD_REQUEST, f"{folder.path} holds no plan: {damaged}") from damaged


async def record(
    plan: RunPlan, faults: FaultPlan, folder: RunFolder, make_cluster: MakeCluster = check_cluster
) -> None:
    """Run the workload under faults and write the history; no process is left, however it ends.

    Raises:
        RuntimeError: the cluster did not start.
        asyncio.CancelledError: at SIGTERM, as at SIGINT.
    """
    ended, crashes = "the cluster did not start", dict[str, str]()
    scratch = folder.path / "scratch"
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: _note_end(folder, ended, crashes))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        stack.callback(_collect_logs, folder)
        scratch.mkdir(exist_ok=True)
        async with _stoppable():
            cluster = make_cluster(plan, faults, folder.data)
            stack.callback(_end, cluster)
            workload = workload_of(plan.workload)
            await asyncio.to_thread(workload.equip, cluster, plan)
            await asyncio.to_thread(cluster.start)
            await asyncio.to_thread(cluster.wait_ready, timeout_s=READY_S)
            ended = "interrupted"
            history, noted = stack.enter_context(folder.history_writer()), stack.enter_context(folder.faults_writer())
            recorder = HistoryRecorder(history.event)
            nemesis = Nemesis(cluster, faults, noted.fault, clock=recorder.now_ns)
            async with Nodes(lambda: {node: cluster.endpoint(node) for node in cluster.meant}) as nodes:
                world = World(plan, nodes, recorder, scratch)
                cluster.restored_reads = RestoredReads(world, workload)
                try:
                    ended = await _work(world, workload, nemesis)
                finally:
                    crashes.update(cluster.crashes)


async def _work(world: World, workload: Workload, nemesis: Nemesis) -> str:
    """Set up, work under faults, heal, read; return how it ended."""
    plan, not_healed = world.plan, ""
    try:
        await workload.set_up(world)
        until = time.monotonic() + plan.seconds
        async with asyncio.timeout(plan.seconds + LAST_OPERATIONS_S + HEAL_S), asyncio.TaskGroup() as group:
            for process in range(plan.processes):
                group.create_task(workload.run_process(Worker(world, process, until)))
            await nemesis.run(until)
            # Healed while the last operations are still under way: they get answers instead of timeouts.
            await asyncio.sleep(max(0.0, until - time.monotonic()))
            try:
                await nemesis.heal(HEAL_S)
            except NotHealed as wrong:
                not_healed = str(wrong)
        if not_healed:
            return not_healed
        async with asyncio.timeout(FINISH_S):
            await workload.finish(world)
    except (NotRecovered, TimeoutError) as late:
        return f"not recovered: {late}"
    return FINISHED


def _end(cluster: CheckCluster) -> None:
    """Kill the nodes and keep what is on disks that go with them."""
    cluster.kill()
    with contextlib.suppress(OSError, shutil.Error):
        for node in cluster.disks:
            shutil.copytree(cluster.data(node), cluster.directory / node / "data", dirs_exist_ok=True)
    cluster.close()


@contextlib.asynccontextmanager
async def _stoppable() -> AsyncIterator[None]:
    """SIGTERM cancels what runs inside, as SIGINT does by itself."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None:
        yield
        return
    try:
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    except (ValueError, RuntimeError):  # not the main thread, which owns the signals
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def judge(folder: RunFolder) -> RunVerdict:
    """Check a recorded history, write verdict and report; data directories go unless something is wrong.

    Raises:
        FolderError: a file is missing or malformed.
        OncegateError: BAD_REQUEST, the workload does not exist.
    """
    began = time.monotonic()
    info = folder.read_run()
    history = list(folder.read_history())
    checks = [_ending(info), *workload_of(info.workload).check(history)]
    statuses = Counter(op.status for op in operations(history))
    verdict = RunVerdict(
        verdict=worst(result.verdict for result in checks),
        checks=checks,
        operations={"ok": statuses["ok"], "fail": statuses["failed"], "unknown": statuses["unknown"]},
        faults=dict(Counter(note.fault for note in folder.read_faults())),
        seconds=time.monotonic() - began,
    )
    folder.write_verdict(verdict)
    write_report(folder)
    folder.settle(verdict.verdict)
    return verdict


def _ending(info: RunInfo) -> Result:
    """A run that did not come to its final reads proves nothing about them; a node that ended by itself is a defect."""
    ended = str(info.settings.get("ended") or "interrupted")
    crashes = info.settings.get("crashes") or {}
    return Result(
        name="nodes run until the end, and serve after healing",
        verdict="invalid" if crashes else "valid" if ended == FINISHED else "unknown",
        failures=[Failure(key=node, words=[f"{node} {why}"]) for node, why in sorted(crashes.items())],
        reason="" if ended == FINISHED else ended,
    )


def _note_end(folder: RunFolder, ended: str, crashes: Mapping[str, str]) -> None:
    info = folder.read_run()
    settings = {**info.settings, "ended": ended, "crashes": dict(crashes)}
    folder.write_run(msgspec.structs.replace(info, settings=settings))


def _collect_logs(folder: RunFolder) -> None:
    """Move what the nodes printed to where a reader looks for it."""
    for log in folder.data.glob("*.log"):
        log.replace(folder.logs / log.name)


def _commit() -> str:
    """The commit of the code that runs, empty outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


@contextlib.contextmanager
def alone(runs: Path) -> Iterator[None]:
    """Keep ``runs`` for this process; the lock goes with the process, however it ends.

    Raises OncegateError (CONFLICT) if another process runs there now.
    """
    with (runs / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            detail = f"another run is under way in {runs}; give another --runs"
            raise OncegateError(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED) from None
        yield


def end_left_over(runs: Path) -> int:
    """Kill every process of this user whose command line names a directory of a run in ``runs``; returns how many."""
    mark = f"{runs.resolve()}{os.sep}".encode()
    killed = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = place.joinpath("cmdline").read_bytes().split(b"\0")
            pairs = itertools.chain(itertools.pairwise(words), (word.split(b"=", 1) for word in words if b"=" in word))
            if any(flag in _FLAGS and value.startswith(mark) for flag, value in pairs):
                os.kill(int(place.name), signal.SIGKILL)
                killed += 1
    return killed
