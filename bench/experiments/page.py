"""``docs/experiments.md`` and its plots, drawn from what runs have stored; nothing in them is written by hand.

Owns: the order of the page. Each experiment says its own part (``section`` and ``drawing`` of its ``page`` module).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.dataflows import page as dataflows
from bench.dataflows import targets as flow_targets
from bench.experiments import calls, fan_out
from bench.harness import Line, best, stored
from bench.pages import Judgement, prose, targets
from bench.scale import page as scale
from bench.stream import page as stream

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
Runs = Mapping[str, Line]


class Part(NamedTuple):
    """An experiment's part of the page; ``by`` tells its stored lines apart, of each the newest is shown."""

    name: str
    by: str
    section: Callable[[Runs], list[str]]
    drawing: Callable[[Runs], str | None]
    judgements: Callable[[Runs], list[Judgement]] = lambda _: []


PARTS: Final = (
    Part("dedup", "bench", calls.section, calls.drawing, calls.judgements),
    Part("scale", "case", scale.section, scale.drawing),
    Part("stream", "mode", stream.section, stream.drawing, stream.judgements),
    Part("fanout", "bench", fan_out.section, fan_out.drawing),
    Part("dataflows", "experiment", dataflows.section, dataflows.drawing, flow_targets.judgements),
)
WORDS: Final = (
    "Drawn by `make bench-all` from raw data in [bench/results](../bench/results): change nothing here by hand. All "
    "nodes, the load and everything else of an experiment share one machine, each write is flushed before its answer, "
    "values have 200 bytes where nothing else is said. Absolute times do not carry to other machines: compare ratios, "
    "and figures by their ratio to the two calibrations of their run. Every experiment is also a command of its own; "
    "`--quick` runs a sample, and the page shows a sample only where no whole run is stored. A `+` behind a commit: "
    "files had changed since, such as the results themselves. Python's build is told because one without optimisations "
    "takes an eighth more processor time."
)


def render(runs: Mapping[str, Runs]) -> str:
    """Return the page in Markdown; ``runs`` by the name of the part."""
    parts = ["# Experiments", prose(WORDS)]
    parts += targets([one for part in PARTS for one in part.judgements(runs[part.name])])
    for part in PARTS:
        parts += part.section(runs[part.name])
    return "\n\n".join(parts) + "\n"


def kept() -> dict[str, dict[str, Line]]:
    """Return what is stored and shown."""
    return {part.name: best(stored(part.name), part.by) for part in PARTS}


def plots(runs: Mapping[str, Runs]) -> dict[str, str]:
    """Return the plots by file name."""
    drawn = {f"experiments-{part.name}.svg": part.drawing(runs[part.name]) for part in PARTS}
    return {name: plot for name, plot in drawn.items() if plot is not None}


def write() -> Path:
    """Write the page and its plots; returns the page's path."""
    runs, target = kept(), DOCS / "experiments.md"
    target.write_text(render(runs))
    for name, plot in plots(runs).items():
        (DOCS / name).write_text(plot)
    return target
