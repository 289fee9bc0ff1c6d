"""Rates as bars, a panel for each number of outstanding writes, as SVG. Pure.

Each panel has a scale of its own that begins at 0. A whisker is the spread over the rounds. Shares colours and axes
with the pages of the checker.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from bench.peers.ratios import Spread
from oncegate.proof.check.report.charts import Axis, spelled, text, ticks

WIDTH: Final = 760
LEFT: Final = 250
RIGHT: Final = WIDTH - 96
ROW: Final = 22
BAR: Final = 13
HEAD: Final = 34
FOOT: Final = 30
STYLE: Final = (
    ".bar.a { fill: var(--p-a); } .bar.b { fill: var(--p-c); } .plot .whisker { stroke: var(--p-ink); fill: none; }"
    " .plot .title { font-weight: 600; }"
)


class Bar(NamedTuple):
    """A rate by its label; ``ours`` colours it."""

    label: str
    rate: Spread
    ours: bool


class Panel(NamedTuple):
    """Bars of one scale."""

    title: str
    bars: Sequence[Bar]


def draw(title: str, panels: Sequence[Panel], style: str) -> str:
    """Return the plot as the content of a file; ``style`` is the style sheet of the checker's plots."""
    parts: list[str] = []
    top = 0.0
    for panel in panels:
        parts += _panel(panel, top)
        top += HEAD + ROW * len(panel.bars) + FOOT
    said = "; ".join(
        f"{panel.title}: " + ", ".join(f"{bar.label} {spelled(round(bar.rate.median))}" for bar in panel.bars)
        for panel in panels
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {WIDTH} {top:.0f}">'
        f"<style>{style}{STYLE}</style><title>{escape(title)}</title><desc>{escape(said)}</desc>{''.join(parts)}</svg>\n"
    )


def _panel(panel: Panel, top: float) -> list[str]:
    bars = sorted(panel.bars, key=lambda bar: -bar.rate.median)
    scale = ticks(max(bar.rate.high for bar in bars), 5)
    place = Axis(0.0, scale[-1], LEFT, RIGHT).place
    begin, end = top + HEAD, top + HEAD + ROW * len(bars)
    parts = [text("title", 8, top + 18, panel.title)]
    for tick in scale:
        parts.append(f'<path class="grid" d="M{place(tick):.1f} {begin:.1f}V{end:.1f}"/>')
        parts.append(text("tick", place(tick), end + 16, spelled(tick), "middle"))
    for row, bar in enumerate(bars):
        y = begin + ROW * row + (ROW - BAR) / 2
        middle, length = y + BAR / 2, place(bar.rate.median) - LEFT
        parts.append(text("words", LEFT - 8, middle + 4, bar.label, "end"))
        parts.append(
            f'<rect class="bar {"a" if bar.ours else "b"}" x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{BAR}"/>'
        )
        parts.append(f'<path class="whisker" d="M{place(bar.rate.low):.1f} {middle:.1f}H{place(bar.rate.high):.1f}"/>')
        parts.append(text("tick", place(bar.rate.high) + 6, middle + 4, spelled(round(bar.rate.median))))
    return parts
