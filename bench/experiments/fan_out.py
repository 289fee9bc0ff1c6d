"""What the page says of fan-out: rows a second through Spark beside the plain driver of the same store. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.experiments.plot import Curve, Panel, draw
from bench.harness import Line
from bench.pages import header_of, prose, table

STORES: Final = ("fan-out into SQLite", "fan-out into Cassandra")
WORDS: Final = (
    "Real messages become a row for each contact of their sender, in micro-batches of ten batches of the flow; all "
    "rows are read back. The flow is served by a server that holds its batches in memory, so that what is measured is "
    "Spark and the store: a gateway at work beside it is in the experiments above and below. The plain driver writes "
    "the same rows with the batches and the concurrency that were the fastest in a trial; our store, which is beside "
    "it without Spark, is faster into Cassandra because it writes whole batches of a partition with its own encoding "
    "of the frames. *Steady* leaves out the first micro-batch, in which Spark starts its workers. `python -m "
    "bench.fanout`."
)


def section(runs: Mapping[str, Line]) -> list[str]:
    """Return the paragraphs; ``runs`` by store."""
    parts = ["## Rows into a store, beside its plain driver", prose(WORDS)]
    if not runs:
        return [*parts, prose("Not measured yet.")]
    parts.append("![Rows a second by store](experiments-fanout.svg)")
    for name in STORES:
        if name not in runs:
            continue
        line = runs[name]
        row = line["rows"][0]
        steady = row["steady_rows_per_s"]
        rows = [("through Spark, steady", f"{steady:,.0f}", "1.00"),
                ("through Spark, its start too", f"{row['whole_rows_per_s']:,.0f}", "")]  # fmt: skip
        rows += [(what, f"{raw:,.0f}", f"{steady / raw:.2f}") for what, raw in row["raw_rows_per_s"].items()]
        head = (f"{row['rows']:,} rows", "rows/s", "steady over it")
        parts += [f"### {name.capitalize()}", header_of(line), table(head, rows)]
    return parts


def drawing(runs: Mapping[str, Line]) -> str | None:
    """Return the plot of both stores; None without any."""
    panels = []
    for name in (name for name in STORES if name in runs):
        row = runs[name]["rows"][0]
        values = [row["steady_rows_per_s"], *row["raw_rows_per_s"].values()]
        places = ["through Spark, steady", "plain driver", "our store alone"][: len(values)]
        panels.append(Panel(f"Rows/s, {name}", [Curve("rows/s", list(enumerate(values)))], places))
    return draw("Rows into a store, beside its plain driver", panels) if panels else None
