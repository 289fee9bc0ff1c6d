"""What the check of live traffic costs: the same nodes with it and without, in turn.

``python -m bench.live_check`` starts three durable nodes whose check is switched (:mod:`bench.altered`) and loads them
through the SDK: 512 puts and reads outstanding, one read to nine puts. What counts is the median of the rounds' ratios,
of operations a second and of the processor time of all nodes for an operation, which minds its neighbours less.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Final

from bench.altered import SwitchedCluster
from bench.harness import Bench, Run, option, side
from bench.load import VALUE, Window, compared, in_turn, latency, window
from oncegate.gateway.local.blocking_http import get_json

OUTSTANDING: Final = 512
READ_EVERY: Final = 10
ROWS: Final = 5_000


async def _run(run: Run) -> list[dict[str, Any]]:
    flags = ("--live-check-share", str(run.options.share), "--live-check-window-ms", "1000")
    cluster = SwitchedCluster(run.directory / "nodes", flags=flags)
    async with side(cluster) as one:
        await one.client.declare_table("t", kind="resident")
        gc.collect()
        gc.freeze()

        async def act(number: int) -> None:
            key = f"row {number * 104_729 % ROWS}"
            if number % READ_EVERY:
                await one.session.put("t", key, VALUE)
            else:
                await one.client.get("t", key)

        async def loaded(*, on: bool, seconds: float = run.options.seconds) -> Window:
            cluster.switch(on=on)
            return await window(act, OUTSTANDING, seconds, nodes_s=one.cpu_s)

        await loaded(on=True, seconds=2.0)
        found = await in_turn({"off": lambda: loaded(on=False), "on": lambda: loaded(on=True)}, run.options.rounds)
        cluster.switch(on=True)
        states = [get_json(f"{endpoint}/v1/check") or {} for endpoint in cluster.endpoints]
    checked = {what: sum(state.get(what, 0) for state in states) for what in ("operations", "dropped")}
    if any(state.get("verdict") == "anomaly" for state in states) or not checked["operations"]:
        raise RuntimeError(f"{checked}, {states}: not what was to be measured")
    rates, costs = (
        [[figure(one) for one in found[name]] for name in ("on", "off")] for figure in (Window.rate, Window.nodes_us)
    )
    return [
        {**compared("throughput, 512 outstanding", *rates, least=0.98), **latency(found["on"])},
        compared("processor time of all nodes for an operation, microseconds", *costs),
        {"what": "checked by the nodes", **checked},
    ]


BENCH: Final = Bench(
    "live_check", __doc__, lambda run: asyncio.run(_run(run)),
    options=(
        option("--rounds", 15, "of both", quick=2, type=int),
        option("--seconds", 2.0, "of each load in a round", quick=0.5, type=float),
        option("--share", 0.01, "of all rows that are sampled", type=float),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
