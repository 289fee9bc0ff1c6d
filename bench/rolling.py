"""How long callers of the SDK wait while nodes are restarted in turn, leadership moves, and members come and go.

``python -m bench.rolling`` starts three durable nodes and keeps 16 puts of one session under way. Each round measures
two windows of equal length under the same load: one with the event, then one without. A window's figure is its longest
time without an acknowledgement, and its slowest operation. What counts is by how much the window with the event exceeds
the one after it: absolute times are those of a machine that others share.

Events: ``restart`` (each node in turn, the leader too: SIGTERM, start, ready), ``move`` (the lead goes to another
node), ``replace`` (a fourth node is added, votes, and is removed). The goal is 200 ms beyond for restart and replace,
100 ms for move, and no error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.calibrate import bare_posts, fdatasync_4k
from bench.figures import header, save
from oncegate import Client, OncegateError
from oncegate.gateway.client import Session
from oncegate.gateway.local.blocking_http import send_json
from oncegate.gateway.local.cluster import LocalCluster

OUTSTANDING: Final = 16
CALM_S: Final = 0.5
"""Load before and after an event that belongs to its window."""
VALUE: Final = "v" * 198


class Acknowledged(NamedTuple):
    """When an operation began and ended, on ``time.perf_counter``."""

    began_s: float
    ended_s: float


class Load:
    """Puts under way until it is closed; counts errors that a caller would see."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._running = True
        self.done: list[Acknowledged] = []
        self.errors: list[str] = []

    async def worker(self, number: int) -> None:
        """One caller: the next put follows the answer of the last one."""
        while self._running:
            began = time.perf_counter()
            try:
                await self._session.put("t", f"w{number}", VALUE)
            except OncegateError as error:
                self.errors.append(repr(error))
            else:
                self.done.append(Acknowledged(began, time.perf_counter()))

    def end(self) -> None:
        """Let each worker end with its present put."""
        self._running = False


@contextlib.asynccontextmanager
async def loaded(session: Session) -> AsyncIterator[Load]:
    """Keep the session busy."""
    load = Load(session)
    async with asyncio.TaskGroup() as group:
        for number in range(OUTSTANDING):
            group.create_task(load.worker(number))
        try:
            yield load
        finally:
            load.end()


class Window(NamedTuple):
    """What a stretch of time looked like to the callers."""

    gap_ms: float
    """Longest time without an acknowledgement."""
    slowest_ms: float
    gap_at_s: float
    """Where the gap began, in seconds from the window's beginning."""
    acknowledged: int


def window(load: Load, began_s: float, ended_s: float) -> Window:
    """Return the window between two moments."""
    inside = [one for one in load.done if began_s <= one.ended_s <= ended_s]
    ends = [began_s, *sorted(one.ended_s for one in inside), ended_s]
    gap_s, at_s = max((after - before, before) for before, after in pairwise(ends))
    slowest_s = max((one.ended_s - one.began_s for one in inside), default=ended_s - began_s)
    return Window(1000 * gap_s, 1000 * slowest_s, at_s - began_s, len(inside))


async def restart(cluster: LocalCluster) -> list[tuple[str, float]]:
    """Restart each node in turn, as docs/operations.md says; returns what happened when."""
    marks = []
    for node_id in list(cluster.ids):
        leads = cluster.leader_now() == node_id
        marks.append((f"{node_id}{' (leader)' if leads else ''} stops", time.perf_counter()))
        if not await asyncio.to_thread(cluster.stop, node_id):
            raise RuntimeError(f"{node_id} was killed")
        marks.append((f"{node_id} starts", time.perf_counter()))
        cluster.start(node_id)
        await asyncio.to_thread(cluster.wait_ready, node_id)
        marks.append((f"{node_id} ready", time.perf_counter()))
    return marks


async def move(cluster: LocalCluster) -> list[tuple[str, float]]:
    """Move the lead."""
    leader = await asyncio.to_thread(cluster.leader)
    at = time.perf_counter()
    await asyncio.to_thread(send_json, "POST", f"{cluster.endpoint(leader)}/v1/cluster/leader", {}, 10)
    return [("asked", at), ("answered", time.perf_counter())]


async def replace(cluster: LocalCluster) -> list[tuple[str, float]]:
    """Add a fourth node, wait until it votes, remove it."""
    marks = [("n4 starts", time.perf_counter())]
    new = cluster.expand("n4")
    cluster.start("n4")
    base = f"{cluster.endpoints[0]}/v1/cluster/members"
    body: dict[str, object] = {
        "id": "n4",
        "host": new.host,
        "http_port": new.http_port,
        "peer_port": new.peer_port,
    }
    await asyncio.to_thread(send_json, "POST", base, body, 70)
    marks.append(("n4 votes", time.perf_counter()))
    await asyncio.to_thread(send_json, "DELETE", f"{base}/n4", None, 30)
    marks.append(("n4 removed", time.perf_counter()))
    await asyncio.to_thread(cluster.stop, "n4")
    cluster.members = cluster.members[:3]
    shutil.rmtree(cluster.directory / "n4")
    return marks


EVENTS: Final[dict[str, Callable[[LocalCluster], Awaitable[list[tuple[str, float]]]]]] = {
    "restart": restart,
    "move": move,
    "replace": replace,
}


async def pair(cluster: LocalCluster, load: Load, event: str) -> tuple[Window, Window, list[tuple[str, float]]]:
    """Measure a window with the event and one of its length without."""
    began = time.perf_counter()
    await asyncio.sleep(CALM_S)
    marks = await EVENTS[event](cluster)
    await asyncio.sleep(CALM_S)
    ended = time.perf_counter()
    await asyncio.sleep(CALM_S)
    calm = time.perf_counter()
    await asyncio.sleep(ended - began)
    with_event = window(load, began, ended)
    return with_event, window(load, calm, calm + ended - began), [(what, at - began) for what, at in marks]


async def run(event: str, rounds: int, *, verbose: bool) -> dict[str, Any]:
    """Repeat an event on a cluster of its own; returns the figures."""
    beyond, gaps, calms, slowest = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="oncegate-rolling-") as directory, LocalCluster(Path(directory)) as cluster:
        cluster.start()
        cluster.wait_ready()
        async with Client(cluster.endpoints, timeout_s=30) as client:
            await client.declare_table("t")
            async with client.session() as session, loaded(session) as load:
                await asyncio.sleep(2 * CALM_S)
                for number in range(rounds):
                    found, calm, marks = await pair(cluster, load, event)
                    beyond.append(found.gap_ms - calm.gap_ms)
                    gaps.append(found.gap_ms)
                    calms.append(calm.gap_ms)
                    slowest.append(found.slowest_ms)
                    if verbose:
                        print(number, found, calm, file=sys.stderr)
                        print("  ", [(what, round(at, 3)) for what, at in marks], file=sys.stderr)
        cluster.stop()
    return {
        "event": event,
        "rounds": rounds,
        "errors": len(load.errors),
        "first_error": load.errors[0] if load.errors else None,
        "beyond_median_ms": statistics.median(beyond),
        "beyond_worst_ms": max(beyond),
        "gap_median_ms": statistics.median(gaps),
        "gap_worst_ms": max(gaps),
        "calm_median_ms": statistics.median(calms),
        "calm_worst_ms": max(calms),
        "slowest_worst_ms": max(slowest),
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default=",".join(EVENTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--verbose", action="store_true", help="each round, and when its steps happened")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-") as directory:
        calibrations = {"fdatasync_4k_ms": fdatasync_4k(Path(directory)).p50_ms, "bare_posts_per_s": bare_posts()}
    about = header("rolling", seed=0, durability="fdatasync on a majority", calibrations=calibrations)
    rows = []
    for event in asked.events.split(","):
        rows.append(asyncio.run(run(event, asked.rounds, verbose=asked.verbose)))
        print({key: round(value, 1) if isinstance(value, float) else value for key, value in rows[-1].items()})
    print(f"saved in {save('rolling', about, rows).name}")


if __name__ == "__main__":
    main()
