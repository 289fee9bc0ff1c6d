"""Queries on DataFrames, stateful ones too, killed with -9: the tables end as an independent recount says."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oncegate.spark_sink.generations import generation_of, sweep
from oncegate.stores import ClaimedStore, StoreTable, claimed_store
from tests.spark import frames_driver as frames
from tests.spark.fake_gateway import CLUSTER, FakeFlow, FakeNode, Item, serving
from tests.spark.test_kill import await_true, killed, log

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1500)]

EVENTS, PER_BATCH, USERS = 600, 80, 6
Event = tuple[int, str, str, int]
"""Commit number, user, kind, time."""


def written(flow: str, first_commit: int) -> list[Event]:
    """Events that come up to 3 s late, and a last one that moves the watermark behind them all."""
    chance = random.Random(flow)
    found = [
        (first_commit + 2 * n, f"u{chance.randrange(USERS)}", chance.choice(["view", "view", "cart", "help"]), at)
        for n in range(EVENTS)
        for at in [1_000_000 + 100 * n - chance.randrange(3_000)]
    ]
    return [*found, (first_commit + 2 * EVENTS, "end", "end", 10**9)]


CLICKS, BUYS = written("clicks", 1), written("buys", 2)


def items(events: list[Event]) -> list[Item]:
    return [
        (commit, f"e{commit}", json.dumps({"user": user, "kind": kind, "at_ms": at}))
        for commit, user, kind, at in events
    ]


@pytest.fixture
def nodes() -> Iterator[tuple[FakeNode, FakeNode]]:
    flows = []
    for name, events in (("clicks", CLICKS), ("buys", BUYS)):
        flow = FakeFlow(name, name)
        flow.seal_all(items(events), PER_BATCH)
        flows.append(flow)
    with serving(flows[0]) as clicks, serving(flows[1]) as buys:
        yield clicks, buys


def test_killed_twice_and_restarted_all_tables_are_exact_and_a_rebuild_makes_them_again(
    nodes: tuple[FakeNode, FakeNode], store_url: str, tmp_path: Path
) -> None:
    """One process runs an aggregate in mode update, a join of two flows, patterns, and a map with commit numbers."""
    clicks, buys = nodes
    command = [sys.executable, "-m", "tests.spark.frames_driver", store_url, str(tmp_path), clicks.url, buys.url]

    with claimed_store(store_url, CLUSTER) as store:
        store.create([frames.TOTALS, frames.PAIRS, frames.MATCHES, frames.NEWEST])

    # First: a micro-batch waits for its last batch, the second one of the first query to get there.
    last = 2 * frames.BATCHES_PER_TRIGGER
    held, release = holding(clicks, lambda number: number == last)
    with log(tmp_path, 1) as out:
        process = started(command, out)
        assert held.wait(300), tail(tmp_path, 1)
        killed(process)
    release.set()
    clicks.before_batch = lambda number: None
    assert clicks.flow.consumers["patterns"].cursor <= frames.BATCHES_PER_TRIGGER
    # Second: as soon as rows of the last query are durable, whether Spark has noted it or not, and where others are.
    # What follows of a kill there is the checkpoint's and the source's business, not the store's: once is enough.
    if store_url.startswith("cassandra"):  # A rebuild goes through nothing of a store's own either.
        with log(tmp_path, 3) as out:
            assert started(command, out).wait(500) == 0, tail(tmp_path, 3)
        assert_delivered(clicks, buys, store_url)
        return
    _, release = holding(clicks, lambda number: number == last and "totals" in clicks.flow.consumers)
    with claimed_store(store_url) as store, log(tmp_path, 2) as out:
        process = started(command, out)
        await_rows(process, store, frames.TOTALS)
        killed(process)
    release.set()
    clicks.before_batch = lambda number: None
    assert clicks.flow.consumers["totals"].cursor < clicks.flow.last_batch
    with log(tmp_path, 3) as out:
        process = started([*command, "again"], out, subprocess.PIPE)
        await_true(process, (tmp_path / "delivered").exists, 500)
    assert_delivered(clicks, buys, store_url)

    # The checkpoints are lost: their state is made again from the first batch, by name. Then somebody finds an old one,
    # for which there is something new.
    later = (CLICKS[-1][0] + 2, "end", "end", 10**9 + 60_000)
    clicks.flow.seal(items([later]))
    process.communicate(b"\n", 500)
    assert process.returncode != 0
    assert "[CURSOR_MISMATCH]" in tail(tmp_path, 3)
    assert {clicks.flow.consumers[f"{job}.again"].cursor for job in frames.STATEFUL} == {clicks.flow.last_batch}
    with claimed_store(store_url) as store:
        for job, table in zip(frames.STATEFUL, (frames.MATCHES, frames.PAIRS, frames.TOTALS), strict=True):
            assert min(ts for part in store.scan(table) for ts in part["write_ts"].to_pylist()) > floor_of(store, job)
            assert sweep(store, [table], job) == 0
        assert_exact(store, [*CLICKS, later])


def holding(node: FakeNode, wanted: Callable[[int], bool]) -> tuple[threading.Event, threading.Event]:
    """Let whoever asks for a batch wait; returns what is set when somebody does, and what lets them all go on."""
    held, release = threading.Event(), threading.Event()

    def hold(number: int) -> None:
        if wanted(number):
            held.set()
            release.wait(300)

    node.before_batch = hold
    return held, release


def assert_delivered(clicks: FakeNode, buys: FakeNode, store_url: str) -> None:
    jobs = (*frames.STATEFUL, "newest")
    assert {clicks.flow.consumers[job].cursor for job in jobs} == {clicks.flow.last_batch}
    assert buys.flow.consumers["pairs"].cursor == buys.flow.last_batch
    with claimed_store(store_url) as store:
        assert_exact(store, CLICKS)


def floor_of(store: ClaimedStore, job: str) -> int:
    """The write timestamp below which rows are of the generation before the rebuild."""
    return generation_of(store, (), job).floor


def assert_exact(store: ClaimedStore, clicks: list[Event]) -> None:
    assert rows(store, frames.NEWEST) == {
        (user, kind, at) for user, (_, _, kind, at) in {event[1]: event for event in CLICKS}.items()
    }
    assert rows(store, frames.TOTALS) == {
        (user, start, events)
        for (user, start), events in Counter((user, at // 10_000 * 10_000) for _, user, _, at in clicks).items()
    }
    assert rows(store, frames.PAIRS) == {
        (user, click, buy, later - at)
        for click, user, _, at in clicks
        for buy, other, _, later in BUYS
        if user == other and at <= later <= at + 2_000
    }
    assert rows(store, frames.MATCHES) == set(matches(clicks))


def matches(clicks: list[Event]) -> Iterator[tuple[Any, ...]]:
    for commit, user, kind, at in clicks:
        behind = [
            (later, other, what) for other, who, what, later in clicks if who == user and (later, other) > (at, commit)
        ]
        for rule in frames.RULES:
            if rule.first == kind:
                come = min(((later, other) for later, other, what in behind if what == rule.second), default=None)
                in_time = come is not None and come[0] <= at + rule.within_ms
                if in_time != rule.absent:
                    ends = (come[1], come[0]) if come is not None and in_time else (0, at + rule.within_ms)
                    yield (user, rule.name, commit, at, *ends)


def rows(store: ClaimedStore, table: StoreTable) -> set[tuple[Any, ...]]:
    found = [tuple(row.values())[:-1] for part in store.scan(table) for row in part.to_pylist()]
    assert len(set(found)) == len(found)
    return set(found)


def started(command: list[str], out: Any, stdin: int | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=stdin, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)


def await_rows(process: subprocess.Popen[bytes], store: ClaimedStore, table: StoreTable) -> None:
    await_true(process, lambda: store.count(table) > 0, 400)


def tail(directory: Path, number: int) -> str:
    return (directory / f"job-{number}.log").read_text()[-6000:]
