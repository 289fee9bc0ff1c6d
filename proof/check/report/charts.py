"""What every chart is made of: axes, round ticks, and lines that break where there is no value. Pure.

Charts are inline SVG: numbers in, text out. Lines differ by dash as well as by colour; both are the page's, by class.
Used by :mod:`oncegate.proof.check.report.plots` and by the demo's report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Line(NamedTuple):
    """Values at the times of a chart; NaN breaks the line. ``style``: ``a`` solid, ``b`` dashed, ``c`` dotted.

    ``area`` fills what is below it; ``bare`` leaves the line itself out.
    """

    name: str
    values: Floats
    style: str
    area: bool = False
    bare: bool = False


class Axis(NamedTuple):
    """Places ``low`` at the pixel ``begin`` and ``high`` at ``end``; what lies beyond them stays at the edge."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return where a value stands."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def ticks(top: float, most: int) -> list[float]:
    """Return round numbers from 0 to the first one not below ``top``, at most ``most`` steps."""
    step = round_step(top / most)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, top: float) -> list[float]:
    """Return powers of ten from the last one not above ``low`` to one not below ``top``, about six at most."""
    first, last = math.floor(math.log10(max(low, 1e-6))), math.ceil(math.log10(max(top, 1e-6)) - 1e-9)
    every = max(1, -(-(last - first) // 5))
    return [10.0 ** (first + every * step) for step in range(max(1, math.ceil((last - first) / every)) + 1)]


def value_axis(lines: Sequence[Line], begin: float, end: float, *, log: bool) -> tuple[Axis, list[float]]:
    """Return the axis that has room for all values, and its ticks."""
    values = np.concatenate([line.values[np.isfinite(line.values)] for line in lines])
    top = float(values.max(initial=0.0)) or 1.0
    positive = values[values > 0]
    found = log_ticks(float(positive.min()) if len(positive) else 1.0, top) if log else ticks(top, 4)
    return Axis(found[0], found[-1], begin, end, log), found


def runs(at_s: Floats, values: Floats, time: Axis, height: Axis) -> list[list[tuple[float, float]]]:
    """Return the points of a line, in pieces without a gap."""
    found: list[list[tuple[float, float]]] = []
    connected = False
    for at, value in zip(at_s.tolist(), values.tolist(), strict=True):
        if math.isnan(value):
            connected = False
            continue
        if not connected:
            found.append([])
        found[-1].append((time.place(at), height.place(value)))
        connected = True
    return found


def drawn(line: Line, at_s: Floats, time: Axis, height: Axis) -> list[str]:
    """Return the elements of a line; a value alone is a dot: a path of no length with round ends."""
    pieces = runs(at_s, line.values, time, height)
    texts = [[f"{x:.1f} {y:.1f}" for x, y in piece] for piece in pieces]
    elements = []
    if line.area:
        closed = "".join(
            f"M{piece[0][0]:.1f} {height.begin:.1f}L{'L'.join(text)}L{piece[-1][0]:.1f} {height.begin:.1f}Z"
            for piece, text in zip(pieces, texts, strict=True)
        )
        elements.append(f'<path class="area {line.style}" d="{closed}"/>')
    if not line.bare:
        path = "".join(f"M{'L'.join(text)}{'h0' if len(text) == 1 else ''}" for text in texts)
        elements.append(f'<path class="line {line.style}" d="{path}"/>')
    return elements


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    """Return words at a place."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def spelled(value: float) -> str:
    """Return a number as people write it: 1,500 or 0.1."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
