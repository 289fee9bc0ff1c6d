"""Spark killed as a whole, driver, JVM and workers, in the middle of a micro-batch: afterwards the tables are exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from oncegate.gateway.local.waiting import wait_for
from oncegate.spark_sink.rows import TIMELINE
from oncegate.stores import ClaimedStore, claimed_store
from tests.spark.fake_gateway import FakeFlow, FakeNode
from tests.spark.recount import expected, messages, stored, write_contacts

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SENDERS, MESSAGES, PER_BATCH, BATCHES_PER_TRIGGER = 5, 1_200, 50, 8
EDGES = [(sender, 100 + follower) for sender in range(SENDERS) for follower in range(40)]


def test_killed_in_the_middle_of_a_batch_and_restarted_the_tables_are_exact(
    flow: FakeFlow, node: FakeNode, store_url: str, tmp_path: Path
) -> None:
    items = messages(SENDERS, MESSAGES)
    flow.seal_all(items, PER_BATCH)
    contacts = write_contacts(tmp_path / "contacts.csv", EDGES)
    command = [sys.executable, "-m", "oncegate.spark_sink.jobs.timeline", "--endpoints", node.url, "--flow", flow.name]
    command += ["--consumer", "fan-out", "--store", store_url, "--contacts", contacts]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--progress", str(tmp_path / "progress.jsonl")]
    command += ["--batches-per-trigger", str(BATCHES_PER_TRIGGER), "--rows-per-write", "500"]

    # First: one task has written its share, the other one still waits for the last batch of the second micro-batch.
    held, release = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if number == 2 * BATCHES_PER_TRIGGER:
            held.set()
            release.wait(300)

    node.before_batch = hold
    first_done = BATCHES_PER_TRIGGER * PER_BATCH * 40
    with claimed_store(store_url) as store, log(tmp_path, 1) as out:
        process = started(command, out)
        assert held.wait(180)
        await_true(process, lambda: rows_so_far(store) > first_done)
        killed(process)
        release.set()
        assert flow.consumers["fan-out"].cursor == BATCHES_PER_TRIGGER
        assert first_done < store.count(TIMELINE) < 2 * first_done
    # Second: wherever it happens to be when it has read something again.
    reread = threading.Event()
    node.before_batch = lambda number: reread.set()
    with log(tmp_path, 2) as out:
        process = started(command, out)
        assert reread.wait(180)
        killed(process)
    node.before_batch = lambda number: None
    with log(tmp_path, 3) as out:
        assert started(command, out).wait(240) == 0
    assert flow.consumers["fan-out"].cursor == flow.last_batch
    # The micro-batch that was cut off was read again: at least once, exactly once in the tables.
    reads = [path for _, path in node.requests if path.endswith(f"/batches/{2 * BATCHES_PER_TRIGGER}")]
    assert len(reads) >= 2
    with claimed_store(store_url) as store:
        assert stored(store) == expected(items, EDGES)


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
        for pid in session_members(process.pid):
            if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
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


def rows_so_far(store: ClaimedStore) -> int:
    return store.count(TIMELINE)


def await_true(process: subprocess.Popen[bytes], condition: Callable[[], bool], timeout_s: float = 120) -> None:
    def look() -> bool:
        assert process.poll() is None, f"the job ended with status {process.poll()}"
        return condition()

    wait_for(look, timeout_s, "the condition comes true while the job runs")
