"""The table of consensus: three durable replicas, three processes, loopback, no HTTP but where the line says so.

``python -m bench.consensus`` measures all of it; ``--parts throughput,kill`` some. Throughput: 1, 64 and 512
outstanding 200-byte commands, and 64 of 100 operations each; the load runs inside the leader's process, as a gateway's
would, and commands that wait at a tick share an entry. Interruptions: the leader is killed, frozen, cut off or asked to
hand over; the client is a process of its own and finds the next leader by itself. State: whole gateway nodes. Every
answer is flushed on a majority. Each row says what was wanted, and whether it was met.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from typing import Any, Final

from bench.harness import Bench, Row, Run, option
from bench.raft import replicas, state

PARTS: Final = ("throughput", "batch", *replicas.FAULTS, "snapshot", "restart", "catchup")
RATES: Final = {
    "throughput": {(1, 1): 1_600, (64, 1): 45_000, (512, 1): 90_000},
    "batch": {(64, 100): 450_000},
}  # fmt: skip
"""Operations a second that are wanted, by commands outstanding and operations of each."""
GAPS: Final = {
    "kill": {"median_ms": 300, "worst_ms": 1000}, "freeze": {"median_ms": 1500}, "cut": {"median_ms": 1500},
    "transfer": {"worst_ms": 100},
}  # fmt: skip
"""The longest gaps that are wanted."""


def measure(run: Run) -> Iterator[Row]:
    asked, directory, seed = run.options, run.directory, run.options.seed
    for part, rates in RATES.items():
        for (outstanding, operations), least in rates.items() if part in asked.parts else ():
            load = replicas.throughput(directory, outstanding, operations, seconds=asked.seconds, seed=seed)
            row, times = asyncio.run(load), f" x {operations} operations" if operations > 1 else ""
            met = row["per_second"] >= least
            yield {"what": f"{outstanding} outstanding{times}", **row, "wanted": f">= {least:,}", "met": met}
    for fault in (one for one in replicas.FAULTS if one in asked.parts):
        trials = asked.trials if fault == "kill" else max(1, asked.trials * 2 // 5)
        row = asyncio.run(replicas.interruptions(directory, fault, trials=trials, seed=seed))
        met = all(row[figure] <= most for figure, most in GAPS[fault].items())
        yield {"what": f"leader, {fault}: longest gap", **row, "wanted": GAPS[fault], "met": met}
    if parts := asked.parts & {"snapshot", "restart"}:
        seconds = min(30.0, 6 * asked.seconds) if asked.quick else max(asked.seconds, 30.0)
        yield from map(
            _judged, asyncio.run(state.run(directory, rows=asked.rows, seconds=seconds, parts=parts)).items()
        )
    if "catchup" in asked.parts:
        how: dict[str, Any] = {"seconds": asked.seconds, "seed": seed, "limit_s": asked.limit_s}
        row = asyncio.run(replicas.catch_up(directory, entries=asked.entries, **how))
        met = row["caught_up"] and row["kept"] >= 0.8
        yield {"what": f"follower {asked.entries:,} entries behind", **row, "wanted": "kept >= 0.8", "met": met}


def _judged(found: tuple[str, Row]) -> Row:
    what, row = found
    if what == "snapshot":
        met = row["longest_stall_ms"] <= 50 and row["saves"] > 0
        return {"what": "snapshot under load", **row, "wanted": "stall <= 50 ms", "met": met}
    met = row["ready_s"] <= 10 and max(row["anonymous_mib"].values()) <= 1024
    return {"what": what, **row, "wanted": "<= 10 s, <= 1 GiB", "met": met}


def _parts(text: str) -> set[str]:
    chosen = set(text.split(","))
    if unknown := chosen - {*PARTS}:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return chosen


BENCH: Final = Bench(
    "consensus", __doc__, measure, durability="three replicas, one fdatasync a batch on each",
    options=(
        option("--parts", set(PARTS), f"of {','.join(PARTS)}", type=_parts),
        option("--seconds", 5.0, "measured time of each load", quick=1.0, type=float),
        option("--trials", 50, "leader kills; two fifths of it of the other faults", quick=2, type=int),
        option("--rows", 5_000_000, "rows of 200 bytes for snapshot and restart", quick=20_000, type=int),
        option("--entries", 1_000_000, "how far the follower is behind", quick=5_000, type=int),
        option("--limit-s", 300.0, "longest wait for the follower", type=float),
    ),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
