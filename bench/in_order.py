"""What a session in order costs: puts a second of one session, beside a session that has the order of its rows alone.

``python -m bench.in_order``: three nodes; one put, and 64 and 512 of them, outstanding in a closed loop. The two
sessions take turns, so that what the machine does besides goes to both; the figure is the median of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from bench.harness import Bench, Run, option, side
from bench.load import VALUE, Window, compared, in_turn, latency, window
from oncegate import Session
from oncegate.gateway.local.cluster import LocalCluster


async def _run(run: Run) -> list[dict[str, Any]]:
    rows = []
    async with side(LocalCluster(run.directory)) as one, one.client.session(in_order=True) as ordered:
        await one.client.declare_table("rows")

        async def loaded(session: Session, outstanding: int) -> Window:
            put = session.put
            return await window(lambda at: put("rows", f"k{at % 20_000}", VALUE), outstanding, run.options.seconds)

        for count in (1, 64, 512):
            ways = {"usual": partial(loaded, one.session, count), "ordered": partial(loaded, ordered, count)}
            found = await in_turn(ways, run.options.rounds, warm=1)
            rates = [[each.rate() for each in found[name]] for name in ("ordered", "usual")]
            row = compared(f"puts a second in order, {count} outstanding", *rates)
            rows.append({**row, **{f"{name}_ms": latency(of) for name, of in found.items()}})
    return rows


BENCH: Final = Bench(
    "in_order", __doc__, lambda run: asyncio.run(_run(run)),
    options=(
        option("--rounds", 7, "of both sessions", quick=1, type=int),
        option("--seconds", 1.5, "of each load", quick=0.5, type=float),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
