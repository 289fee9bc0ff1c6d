"""What the page says of growth: a table for each case, one plot of all. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.experiments.plot import Curve, Panel, draw
from bench.harness import Line
from bench.pages import Columns, drawn, header_of, prose
from bench.scale.cases import CASES

WORDS: Final = (
    "Each row beside the reference in the same seconds: *ratio* is the median over the turns, and the row of the "
    "reference itself is the noise of the run. Processor time is that of all nodes for an operation. The longest stall "
    "is the longest time without any answer at 8 outstanding writes; *growing* is the slowest write while the cluster "
    "was brought to this size. Memory is anonymous memory, disk the data directory, of the node that has most."
)
PUBLISHED: Final = (
    "**Published beside ours.** RIFL: a million clients cost about 5 % of latency, on a 13.5 µs durable write of a "
    "RAMCloud cluster with kernel bypass. Here a write is a flushed HTTP request of some hundred µs, so a cost of the "
    "same microseconds is a smaller share. Of 1,000,000 sessions here one writes: "
    "the ratio in that row is the price of the others, which are idle; `python -m bench.sessions` has sessions at "
    "random. For the other cases nothing comparable is published."
)
RATIOS: Final = {"cpu_ratio": "processor time", "p50_ratio": "median latency"}
TIMES: Final = {"p50_ms": "median", "p99_ms": "p99", "stall_ms": "longest stall"}
COLUMNS: Final[Columns] = {
    "": "{size:,}", "writes/s": "{operations_per_s:,.0f}", "p50 ms": "{p50_ms:.2f}", "p99 ms": "{p99_ms:.2f}",
    "max ms": "{max_ms:.1f}", "samples": "{samples:,}", "p50 ratio": "{p50_ratio:.2f}",
    "nodes, µs": "{nodes_cpu_us:,.0f}", "ratio": "{cpu_ratio:.2f}", "client, µs": "{client_cpu_us:,.0f}",
    "memory, MiB": "{memory_mib:,.0f}", "disk, MiB": "{disk_mib:,.0f}", "longest stall, ms": "{stall_ms:,.0f}",
    "growing, ms": lambda row: f"{row['growing_stall_ms']:,.0f}" if row["growing_stall_ms"] else "-",  # nothing grew
}  # fmt: skip


def section(runs: Mapping[str, Line]) -> list[str]:
    """Return the paragraphs; ``runs`` by case."""
    parts = ["## How cost grows", prose(WORDS), prose(PUBLISHED)]
    if runs:
        parts.append("![Processor time, latency and longest stall by size, a row of panels for each case]"
                     "(experiments-scale.svg)")  # fmt: skip
    for case in CASES:
        parts += [f"### {case.title}", prose(f"{case.what} `python -m bench.scale --case {case.name}`.")]
        line = runs.get(case.name)
        parts += [prose("Not measured yet.")] if line is None else [header_of(line), drawn(COLUMNS, line["rows"])]
    return parts


def drawing(runs: Mapping[str, Line]) -> str | None:
    """Return the plot of all cases that were measured; None without any."""
    panels = []
    for case in CASES:
        rows = sorted(runs[case.name]["rows"], key=lambda row: int(row["size"])) if case.name in runs else []
        if rows:
            places = [f"{row['size']:,}" for row in rows]
            panels.append(Panel(f"{case.title}: ratio to the reference", _curves(rows, RATIOS), places))
            panels.append(Panel(f"{case.title}: milliseconds", _curves(rows, TIMES), places, log=True))
    return draw("How cost grows", panels) if panels else None


def _curves(rows: list[dict[str, Any]], named: Mapping[str, str]) -> list[Curve]:
    return [Curve(name, [(at, float(row[figure])) for at, row in enumerate(rows)]) for figure, name in named.items()]
