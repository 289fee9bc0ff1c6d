"""Charts as inline SVG: lines over the run's time, with the kills marked, and labelled bars.

Owns: scales, ticks and shapes. Pure: numbers in, text out; no colours (those are the page's, by class), and nothing
that can only be told by colour: lines differ by dash, bars carry their words. Read next: :mod:`examples.demo.report`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

WIDTH: Final = 960
HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 74, 16, 34, 30
_BAR: Final = 34


class Line(NamedTuple):
    """One line over the shared times; NaN breaks it. ``style`` is ``a``, ``b`` or ``c``: dash and colour.

    ``area`` fills what is below it; ``bare`` leaves the line itself out.
    """

    name: str
    values: Floats
    style: str
    area: bool = False
    bare: bool = False


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
    finite = [line.values[np.isfinite(line.values)] for line in lines]
    top = max((float(values.max()) for values in finite if len(values)), default=1.0) or 1.0
    if log:
        low = min((float(values.min()) for values in finite if len(values)), default=1.0)
        bottom_power, top_power = math.floor(math.log10(max(low, 1e-3))), math.ceil(math.log10(top))
        ticks = [10.0**power for power in range(bottom_power, max(top_power, bottom_power + 1) + 1)]
    else:
        ticks = _ticks(top)
    height = _Axis(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP, log=log)
    time = _Axis(0.0, max(end_s, 1.0), _LEFT, WIDTH - _RIGHT)
    parts = [
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-label="{escape(description)}" data-left="{_LEFT}" data-right="{WIDTH - _RIGHT}" '
        f'data-end="{max(end_s, 1.0):.3f}">'
    ]
    parts += [_mark(mark, time) for mark in marks]
    parts.append(f'<text class="tick" x="0" y="{_TOP - 14}">{escape(unit)}</text>')
    for tick in ticks:
        y = height.place(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    for tick in _ticks(max(end_s, 1.0), most=10):
        if tick > max(end_s, 1.0):
            break
        x = time.place(tick)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{number(tick)} s</text>')
    for line in lines:
        path = _path(at_s, line.values, time, height)
        if line.area:
            parts.append(f'<path class="area {line.style}" d="{_closed(path, height.place(ticks[0]))}"/>')
        if not line.bare:
            parts.append(f'<path class="line {line.style}" d="{path}"/>')
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" hidden="hidden"/></svg>')
    return "".join(parts)


def bar_chart(description: str, bars: Sequence[Bar]) -> str:
    """Return an SVG element: a bar a row, its parts named inside or behind it."""
    longest = max((sum(length for _, length in bar.parts) for bar in bars), default=1) or 1
    left, right = 245, 290
    axis = _Axis(0.0, float(longest), left, WIDTH - right)
    height = len(bars) * (_BAR + 12) + 8
    parts = [f'<svg class="bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description)}">']
    for row, bar in enumerate(bars):
        y = 8 + row * (_BAR + 12)
        parts.append(f'<text class="label" x="{left - 12}" y="{y + 22}" text-anchor="end">{escape(bar.label)}</text>')
        begin = 0
        for index, (_, length) in enumerate(bar.parts):
            x, end = axis.place(begin), axis.place(begin + length)
            style = "abc"[index % 3]
            parts.append(f'<rect class="bar {style}" x="{x:.1f}" y="{y}" width="{end - x:.1f}" height="{_BAR}"/>')
            begin += length
        words = ", ".join(f"{length:,} {name}" for name, length in bar.parts if length) or "none"
        parts.append(f'<text class="label" x="{axis.place(begin) + 10:.1f}" y="{y + 22}">{escape(words)}</text>')
    return "".join([*parts, "</svg>"])


def sample(line: Line) -> str:
    """Return a short piece of a line, for the legend."""
    area = f'<path class="area {line.style}" d="M1,0H35V10H1Z"/>' if line.area else ""
    path = "" if line.bare else f'<path class="line {line.style}" d="M1,5H35"/>'
    return f'<svg class="sample" viewBox="0 0 36 10" aria-hidden="true">{area}{path}</svg>'


def number(value: float) -> str:
    """Return a number as people write it: 1,500 or 0.1."""
    return f"{value:,.0f}" if value >= 1 or value == 0 else f"{value:g}"


class _Axis(NamedTuple):
    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return self.begin + (at - low) / (high - low) * (self.end - self.begin)


def _ticks(top: float, most: int = 5) -> list[float]:
    """Return round numbers from 0 to the first one not below ``top``."""
    step = 10.0 ** math.floor(math.log10(top / most))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor * most >= top)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def _path(at_s: Floats, values: Floats, time: _Axis, height: _Axis) -> str:
    parts: list[str] = []
    connected = False
    for at, value in zip(at_s.tolist(), values.tolist(), strict=True):
        if math.isnan(value):
            connected = False
            continue
        # A lone point is a dot: a line of no length with round ends.
        parts.append(f"{'L' if connected else 'M'}{time.place(at):.1f},{height.place(value):.1f}")
        parts.append("" if connected else "h0")
        connected = True
    return "".join(parts)


def _closed(path: str, ground: float) -> str:
    """Return the area between a line and the ground; the line's own pieces are closed one by one."""
    pieces = [piece for piece in path.split("M") if piece]
    closed = []
    for piece in pieces:
        points = piece.replace("h0", "").split("L")
        first, last = points[0].split(",")[0], points[-1].split(",")[0]
        closed.append(f"M{first},{ground:.1f}L{'L'.join(points)}L{last},{ground:.1f}Z")
    return "".join(closed)


def _mark(mark: Mark, time: _Axis) -> str:
    x, end = time.place(mark.begin_s), time.place(mark.end_s)
    return (
        f'<rect class="down" x="{x:.1f}" y="{_TOP}" width="{max(end - x, 1):.1f}" height="{HEIGHT - _BOTTOM - _TOP}"/>'
        f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text class="kill" x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle">{escape(mark.label)}</text>'
    )
