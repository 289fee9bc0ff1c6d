"""Charts as inline SVG: lines over the run's time, with the kills marked, and labelled bars.

Owns: what is around the lines of :mod:`oncegate.proof.check.report.charts`. Pure: numbers in, text out; no colours
(those are the page's, by class), and nothing that can only be told by colour: lines differ by dash, bars carry their
words. Read next: :mod:`examples.demo.report`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from oncegate.proof.check.report.charts import Axis, Floats, Line, drawn, spelled, text, ticks, value_axis

WIDTH: Final = 960
HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 34, 30
_BAR: Final = 34


class Mark(NamedTuple):
    """A span of time in which a node was down, with the words that stand above it."""

    begin_s: float
    end_s: float
    label: str


class Bar(NamedTuple):
    """A labelled bar cut into parts (name, length)."""

    label: str
    parts: Sequence[tuple[str, int]]


def line_chart(
    name: str,
    description: str,
    at_s: Floats,
    lines: Sequence[Line],
    marks: Sequence[Mark],
    *,
    end_s: float,
    unit: str,
    log: bool = False,
) -> str:
    """Return an SVG element.

    Args:
        name: prefix of the ids inside.
        description: what a reader who cannot see it should know.
        at_s: times of the values, seconds since the run began.
        lines: values at those times.
        marks: shaded spans.
        end_s: right end of the time axis; the left one is 0.
        unit: of the values, written above their axis.
        log: a logarithmic axis of values, for values above 0.
    """
    height, at_height = value_axis(lines, HEIGHT - _BOTTOM, _TOP, log=log)
    time = Axis(0.0, max(end_s, 1.0), _LEFT, WIDTH - _RIGHT)
    parts = [
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-label="{escape(description)}" data-left="{_LEFT}" data-right="{WIDTH - _RIGHT}" '
        f'data-end="{time.high:.3f}">'
    ]
    parts += [_mark(mark, time) for mark in marks]
    parts.append(text("tick", 0, _TOP - 14, unit))
    for tick in at_height:
        y = height.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(text("tick", _LEFT - 8, y + 4, spelled(tick), "end"))
    for tick in ticks(time.high, most=10):
        if tick > time.high:
            break
        x = time.place(tick)
        parts.append(text("tick", x, HEIGHT - 10, f"{spelled(tick)} s", "middle"))
    for line in lines:
        parts += drawn(line, at_s, time, height)
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" hidden="hidden"/></svg>')
    return "".join(parts)


def bar_chart(description: str, bars: Sequence[Bar]) -> str:
    """Return an SVG element: a bar a row, its parts named inside or behind it."""
    longest = max((sum(length for _, length in bar.parts) for bar in bars), default=1) or 1
    left, right = 245, 290
    axis = Axis(0.0, float(longest), left, WIDTH - right)
    height = len(bars) * (_BAR + 12) + 8
    parts = [f'<svg class="bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description)}">']
    for row, bar in enumerate(bars):
        y = 8 + row * (_BAR + 12)
        parts.append(text("label", left - 12, y + 22, bar.label, "end"))
        begin = 0
        for index, (_, length) in enumerate(bar.parts):
            x, end = axis.place(begin), axis.place(begin + length)
            style = "abc"[index % 3]
            parts.append(f'<rect class="bar {style}" x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{_BAR}"/>')
            begin += length
        words = ", ".join(f"{length:,} {name}" for name, length in bar.parts if length) or "none"
        parts.append(text("label", axis.place(begin) + 10, y + 22, words))
    return "".join([*parts, "</svg>"])


def sample(line: Line) -> str:
    """Return a short piece of a line, for the legend."""
    area = f'<path class="area {line.style}" d="M1,0H35V10H1Z"/>' if line.area else ""
    path = "" if line.bare else f'<path class="line {line.style}" d="M1,5H35"/>'
    return f'<svg class="sample" viewBox="0 0 36 10" aria-hidden="true">{area}{path}</svg>'


def _mark(mark: Mark, time: Axis) -> str:
    x, end = time.place(mark.begin_s), time.place(mark.end_s)
    return (
        f'<rect class="down" x="{x:.1f}" y="{_TOP}" width="{max(end - x, 1):.1f}" height="{HEIGHT - _BOTTOM - _TOP}"/>'
        f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{HEIGHT - _BOTTOM}"/>'
        f"{text('kill', x, _TOP - 14, mark.label, 'middle')}"
    )
