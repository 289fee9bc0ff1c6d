"""What the page says of exactly-once calls: the same build with duplicate detection on and off. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.experiments.plot import Curve, Panel, draw
from bench.harness import Line
from bench.pages import Judgement, Limit, header_of, judge, prose, table
from bench.peers.targets import DETECTION

WORDS: Final = (
    "Two clusters of three durable nodes, one of which records nothing and detects nothing, loaded through the SDK in "
    "turn; a ratio is the median over the rounds, with its quartiles. Sessions by number are below, under *How cost "
    "grows*. `python -m bench.dedup`."
)
PUBLISHED: Final = (
    "**Published beside ours.** RIFL: 0.53 µs on a durable write of 13.5 µs (about 4 to 5 %) and no visible loss of "
    "throughput, on a RAMCloud cluster with kernel bypass; ours are flushed HTTP requests of some hundred µs, so a "
    "ratio hides more of a cost. What an operation costs to apply is told by itself."
)
READ: Final = (
    "With and without detection; where requests are sent twice, with and without that, on the cluster that detects. "
    "Figures without a unit in their row are operations a second. What is wanted of requests sent twice is this "
    "project's own."
)
_TARGETS: Final = {"latency, 1 outstanding": "≤ 1.05", "throughput, 512 outstanding": "≥ 0.95"}
_JUDGED: Final = "duplicate detection on over off: {}"
LIMITS: Final[Mapping[str, Limit]] = {_JUDGED.format(what): DETECTION for what in _TARGETS}
"""By what is judged."""


def section(runs: Mapping[str, Line]) -> list[str]:
    """Return the paragraphs; ``runs`` has one, named ``dedup``."""
    parts = ["## Exactly-once calls", prose(WORDS), prose(PUBLISHED)]
    line = runs.get("dedup")
    if line is None:
        return [*parts, prose("Not measured yet.")]
    rows = [
        (f"{at}", row["what"], _figure(row["with"]), _figure(row["without"]), _spread(row), _wanted(row))
        for at, row in enumerate(line["rows"], 1)
    ]
    plot = "![Detection on over off](experiments-dedup.svg)"
    return [*parts, plot, header_of(line), table(("", "", "with", "without", "ratio", "wanted"), rows), prose(READ)]


def judgements(runs: Mapping[str, Line]) -> list[Judgement]:
    """Return what is judged."""
    found, line = [], runs.get("dedup")
    for what, wanted in _TARGETS.items():
        title = _JUDGED.format(what)
        row = next((row for row in (line or {"rows": ()})["rows"] if row["what"] == what), None)
        if line is None or row is None:
            found.append(Judgement(title, wanted, "", None))
        else:
            found.append(judge(title, wanted, _spread(row), line, met=row["met"], limits=LIMITS))
    return found


def drawing(runs: Mapping[str, Line]) -> str | None:
    """Return the plot of the ratios; None without any."""
    numbered = enumerate(runs.get("dedup", {"rows": ()})["rows"], 1)
    rows = [(number, row) for number, row in numbered if "quartile_low" in row]
    if not rows:
        return None
    places = [f"row {number}" for number, _ in rows]
    curves = [
        Curve(name, [(at, row[figure]) for at, (_, row) in enumerate(rows)])
        for name, figure in (("median", "ratio"), ("lower quartile", "quartile_low"), ("upper", "quartile_high"))
    ]
    return draw("Detection on over off", [Panel("Ratio, by row of the table", curves, places)])


def _figure(value: Any) -> str:
    if isinstance(value, Mapping):
        times = f"p50 {value['p50_ms']:.3f}, p99 {value['p99_ms']:.2f}, max {value['max_ms']:.1f} ms"
        return f"{times} of {value['samples']:,}"
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _wanted(row: Mapping[str, Any]) -> str:
    if row.get("wanted") is None:
        return "-"
    return (
        f"{'≤' if row['what'].startswith('latency') else '≥'} {row['wanted']:.2f}{'' if row['met'] else ', **missed**'}"
    )


def _spread(row: Mapping[str, Any]) -> str:
    if "ratio" not in row:
        return "-"
    quartiles = f" ({row['quartile_low']:.3f} to {row['quartile_high']:.3f})" if "quartile_low" in row else ""
    return f"{row['ratio']:.3f}{quartiles}"
