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

import asyncio
import shutil
import statistics
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.harness import Bench, Run, option, side
from bench.load import VALUE, Window, latency, window
from oncegate import OncegateError
from oncegate.gateway.local.blocking_http import send_json
from oncegate.gateway.local.cluster import LocalCluster

OUTSTANDING: Final = 16
CALM_S: Final = 0.5
"""Load before and after an event that belongs to its window."""


async def restart(cluster: LocalCluster) -> None:
    """Restart each node in turn, as docs/operations.md says."""
    for node_id in list(cluster.ids):
        if not await asyncio.to_thread(cluster.stop, node_id):
            raise RuntimeError(f"{node_id} was killed")
        cluster.start(node_id)
        await asyncio.to_thread(cluster.wait_ready, node_id)


async def move(cluster: LocalCluster) -> None:
    """Move the lead."""
    leader = await asyncio.to_thread(cluster.leader)
    await asyncio.to_thread(send_json, "POST", f"{cluster.endpoint(leader)}/v1/cluster/leader", {}, 10)


async def replace(cluster: LocalCluster) -> None:
    """Add a fourth node, wait until it votes, remove it."""
    new, base = cluster.expand("n4"), f"{cluster.endpoints[0]}/v1/cluster/members"
    cluster.start("n4")
    ports: dict[str, object] = {"http_port": new.http_port, "peer_port": new.peer_port}
    await asyncio.to_thread(send_json, "POST", base, {"id": "n4", "host": new.host, **ports}, 70)
    await asyncio.to_thread(send_json, "DELETE", f"{base}/n4", None, 30)
    await asyncio.to_thread(cluster.stop, "n4")
    cluster.members = cluster.members[:3]
    shutil.rmtree(cluster.directory / "n4")


EVENTS: Final[dict[str, Callable[[LocalCluster], Awaitable[None]]]] = {
    "restart": restart, "move": move, "replace": replace,
}  # fmt: skip


async def _event(directory: Path, event: str, rounds: int) -> dict[str, Any]:
    """Repeat an event on a cluster of its own; returns the figures."""
    errors: list[str] = []
    windows: dict[str, list[Window]] = {"gap": [], "calm": []}
    async with side(LocalCluster(directory), timeout_s=30) as one:
        await one.client.declare_table("t")

        async def put(number: int) -> None:
            try:
                await one.session.put("t", f"w{number % OUTSTANDING}", VALUE)
            except OncegateError as error:
                errors.append(repr(error))

        async def happening() -> None:
            await asyncio.sleep(CALM_S)
            await EVENTS[event](one.cluster)
            await asyncio.sleep(CALM_S)

        await window(put, OUTSTANDING, 2 * CALM_S)
        for _ in range(rounds):
            during = asyncio.ensure_future(happening())
            windows["gap"].append(with_it := await window(put, OUTSTANDING, over=during.done))
            await during
            await window(put, OUTSTANDING, CALM_S)
            windows["calm"].append(await window(put, OUTSTANDING, with_it.seconds))
    found = {name: [1000 * each.stall_s for each in of] for name, of in windows.items()}
    found["beyond"] = [gap - calm for gap, calm in zip(found["gap"], found["calm"], strict=True)]
    return {
        "event": event, "rounds": rounds, "errors": len(errors), "first_error": errors[0] if errors else None,
        **{f"{name}_median_ms": statistics.median(of) for name, of in found.items()},
        **{f"{name}_worst_ms": max(of) for name, of in found.items()},
        "slowest_worst_ms": 1000 * max(max(each.latencies_s) for each in windows["gap"]),
        **latency([*windows["gap"], *windows["calm"]]),
    }  # fmt: skip


def measure(run: Run) -> Iterator[dict[str, Any]]:
    for event in run.options.events.split(","):
        yield asyncio.run(_event(run.directory / event, event, run.options.rounds))


BENCH: Final = Bench(
    "rolling", __doc__, measure,
    options=(
        option("--events", ",".join(EVENTS), "separated by commas"),
        option("--rounds", 10, "of each event", quick=1, type=int),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
