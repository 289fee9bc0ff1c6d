"""Spark killed as a whole, driver, JVM and workers, in the middle of a micro-batch: afterwards the tables are exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import ClaimedStore, claimed_store
from tests.spark.fake_gateway import LOST, FakeFlow, FakeNode
from tests.spark.recount import expected, messages, stored, write_contacts

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SENDERS, PER_BATCH = 5, 50
FOLLOWERS = 10
EDGES = [(sender, 100 + follower) for sender in range(SENDERS) for follower in range(FOLLOWERS)]


def test_killed_in_each_phase_of_a_micro_batch_and_restarted_the_tables_are_exact(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    """Each kill meets the second micro-batch: nothing written, half, all but the cursor, all but Spark's note of it."""
    items, store_url = messages(SENDERS, 500), f"sqlite://{tmp_path}/store"
    flow.seal_all(items, PER_BATCH)
    contacts = write_contacts(tmp_path / "contacts.csv", EDGES)
    command = [sys.executable, "-m", "oncegate.spark_sink.jobs.timeline", "--endpoints", node.url, "--flow", flow.name]
    command += ["--consumer", "fan-out", "--store", store_url, "--contacts", contacts]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--batches-per-trigger", "2"]
    of_micro_batch = 2 * PER_BATCH * FOLLOWERS
    # Both tasks of the second micro-batch wait, or one of them: it has written nothing.
    waits = {"reads": (3, 4), "half": (4,)}
    with claimed_store(store_url) as store:
        for number, (phase, cursor, rows) in enumerate(
            [
                ("reads", 2, of_micro_batch),
                ("half", 2, of_micro_batch * 3 // 2),
                ("asked", 2, of_micro_batch * 2),
                ("moved", 4, of_micro_batch * 2),
            ],
            1,
        ):
            held, release = threading.Event(), threading.Event()

            def hold(
                at: object, moment: object, held: threading.Event = held, free: threading.Event = release
            ) -> object:
                if at == moment:
                    held.set()
                    free.wait(300)
                    return LOST
                return None

            if phase in waits:
                node.before_batch = lambda batch, at=waits[phase]: hold(batch in at, True)  # type: ignore[misc]
            else:
                node.before_batch = lambda batch: None
                node.at_cursor = partial(_at_second, flow, partial(hold, phase))
            with log(tmp_path, number) as out:
                process = started(command, out)
                assert held.wait(240), (tmp_path / f"job-{number}.log").read_text()[-2000:]
                await_true(process, lambda rows=rows: rows_so_far(store) >= rows)  # type: ignore[misc]
                killed(process)
                assert (flow.consumers["fan-out"].cursor, store.count(TIMELINE)) == (cursor, rows), phase
                release.set()
        node.at_cursor = lambda moment: None
        with log(tmp_path, 5) as out:
            assert started(command, out).wait(300) == 0
        assert flow.consumers["fan-out"].cursor == flow.last_batch
        # What was cut off was read again: at least once, exactly once in the tables. The first one to be killed may not
        # have come to ask for it.
        assert sum(path.endswith("/batches/4") for _, path in node.requests) >= 3
        assert stored(store) == expected(items, EDGES)


def _at_second(flow: FakeFlow, hold: Callable[[str], object], moment: str) -> object:
    """Hold the move from 2 to 4, not the one of the first micro-batch."""
    return hold(moment) if flow.consumers["fan-out"].cursor >= (4 if moment == "moved" else 2) else None


def test_a_job_whose_jvm_is_killed_starts_itself_anew_and_the_tables_are_exact(
    flow: FakeFlow, node: FakeNode, tmp_path: Path
) -> None:
    """Nobody else restarts it: it keeps its process id."""
    items, store_url = messages(SENDERS, 300), f"sqlite://{tmp_path}/store"
    flow.seal_all(items, PER_BATCH)
    contacts = write_contacts(tmp_path / "contacts.csv", EDGES)
    command = [sys.executable, "-m", "oncegate.spark_sink.jobs.timeline", "--endpoints", node.url, "--flow", flow.name]
    command += ["--consumer", "fan-out", "--store", store_url, "--contacts", contacts]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--batches-per-trigger", "2"]
    held, release = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 3:
            held.set()
            release.wait(300)

    node.before_batch = hold
    with log(tmp_path, 1) as out:
        process = started(command, out)
        assert held.wait(300)
        for pid in java_of(process.pid):
            os.kill(pid, signal.SIGKILL)
        release.set()
        assert process.wait(500) == 0
    assert "session is gone" in (tmp_path / "job-1.log").read_text()
    assert flow.consumers["fan-out"].cursor == flow.last_batch == 6
    with claimed_store(store_url) as store:
        assert stored(store) == expected(items, EDGES)


def log(directory: Path, number: int) -> IO[bytes]:
    return (directory / f"job-{number}.log").open("wb")


def started(command: list[str], out: IO[bytes]) -> subprocess.Popen[bytes]:
    # A session of its own: its id finds all descendants, whatever process group Spark puts them into.
    return subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def killed(process: subprocess.Popen[bytes]) -> None:
    """Kill -9 the driver, its JVM and its Python workers, and wait until all are gone."""
    while members := session_members(process.pid):
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.poll()
        time.sleep(0.01)
    assert process.wait(10) == -signal.SIGKILL


def session_members(session: int) -> list[int]:
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            members.append(int(stat.parent.name))
    return members


def java_of(session: int) -> list[int]:
    """Return its JVMs; whatever else of it ends meanwhile is none."""
    found = []
    for pid in session_members(session):
        with suppress(OSError):
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                found.append(pid)
    return found


def rows_so_far(store: ClaimedStore) -> int:
    return store.count(TIMELINE)


def await_true(process: subprocess.Popen[bytes], condition: Callable[[], bool], timeout_s: float = 120) -> None:
    def look() -> bool:
        assert process.poll() is None, f"the job ended with status {process.poll()}"
        return condition()

    wait_for(look, timeout_s, "the condition comes true while the job runs")
