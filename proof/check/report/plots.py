"""Latency and rate as SVG: for the page, and as files of their own.

Owns: scales, ticks, shapes. Pure: numbers in, text out. Lines differ by dash as well as by colour; colours are classes
(``plot.css``), so that light and dark both work. Escapes every text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np

from oncegate.proof.check.fault_note import FaultNote
from oncegate.proof.check.report.series import Floats, Series
from oncegate.proof.check.report.texts import shortened

WIDTH: Final = 720
HEIGHT: Final = 250
LEFT: Final = 64
RIGHT: Final = WIDTH - 12
_TOP, _BOTTOM = 66, HEIGHT - 28
_LABEL_ROWS: Final = 2
_LABEL_CHAR: Final = 6.3
_NAME_CHARS: Final = 60

Scale = Callable[[float], float]


class Line(NamedTuple):
    """Values at the times of the series; NaN breaks the line. ``style``: ``a`` solid, ``b`` dashed, ``c`` dotted."""

    name: str
    values: Floats
    style: str


def latency_plot(found: Series, faults: Sequence[FaultNote]) -> str:
    """Return the latency plot as an ``svg`` element."""
    lines = [Line("p50", found.p50_ms, "a"), Line("p99", found.p99_ms, "b"), Line("max", found.max_ms, "c")]
    return _plot("Latency over time", "ms", found, lines, faults, log=True)


def rate_plot(found: Series, faults: Sequence[FaultNote]) -> str:
    """Return the rate plot as an ``svg`` element."""
    lines = [Line(name, found.rates[name], style) for name, style in (("ok", "a"), ("unknown", "b"), ("fail", "c"))]
    return _plot("Operations ended per second, by status", "per second", found, lines, faults, log=False)


def alone(plot: str, style: str) -> str:
    """Return a plot as the content of a file."""
    return plot.replace("<title>", f"<style>{style}</style><title>", 1) + "\n"


def _plot(
    title: str, unit: str, found: Series, lines: Sequence[Line], faults: Sequence[FaultNote], *, log: bool
) -> str:
    finite = [line.values[np.isfinite(line.values)] for line in lines]
    top = max((float(values.max()) for values in finite if len(values)), default=1.0) or 1.0
    low = min((float(values[values > 0].min()) for values in finite if (values > 0).any()), default=1.0)
    ticks, bottom, top = _log_ticks(low, top) if log else _ticks(top)

    def y(value: float) -> float:
        share = (
            (math.log10(max(value, bottom)) - math.log10(bottom)) / (math.log10(top) - math.log10(bottom))
            if log
            else value / top
        )
        return _BOTTOM - share * (_BOTTOM - _TOP)

    def x(at_s: float) -> float:
        return LEFT + min(1.0, max(0.0, at_s / found.end_s)) * (RIGHT - LEFT)

    parts = [*_shaded(faults, x, found.end_s)]
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{RIGHT}"/>')
        parts.append(_text("tick", LEFT - 7, y(tick) + 4, _number(tick), "end"))
    step = _step(found.end_s / 7)
    for number in range(int(found.end_s / step + 1e-9) + 1):
        at = number * step
        anchor = "start" if number == 0 else "middle" if x(at) < RIGHT - 14 else "end"
        parts.append(f'<path class="grid" d="M{x(at):.1f} {_BOTTOM}v4"/>')
        parts.append(_text("tick", x(at), _BOTTOM + 18, f"{_number(at)} s", anchor))
    for line in reversed(lines):
        parts.extend(_path(line, found.at_s, x, y))
    right = LEFT
    for line in lines:
        parts.append(f'<path class="line {line.style}" d="M{right} 12h30"/>')
        parts.append(_text("words", right + 36, 16, line.name))
        right += 56 + 8 * len(line.name)
    parts.append(_text("tick", RIGHT, 16, f"{unit}, each {_number(found.width_s)} s", "end"))
    said = "; ".join(
        f"{line.name} at most {_number(float(values.max()))}"
        for line, values in zip(lines, finite, strict=True)
        if len(values)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' data-left="{LEFT}" data-right="{RIGHT}">'
        f"<title>{escape(title)}</title><desc>{escape(f'{unit}: {said}. {len(faults)} faults shaded.')}</desc>"
        f'{"".join(parts)}<rect class="view" x="{LEFT}" y="{_TOP - 4}" width="{RIGHT - LEFT}"'
        f' height="{_BOTTOM - _TOP + 8}"/></svg>'
    )


def _text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _shaded(faults: Sequence[FaultNote], x: Scale, end_s: float) -> list[str]:
    """Return the bands of faults; a name stands above its band where it has room."""
    parts: list[str] = []
    free = [0.0] * _LABEL_ROWS
    for fault in faults:
        left, right = x(fault.start / 1e9), x(end_s if fault.end is None else fault.end / 1e9)
        name = shortened(" ".join([fault.fault, *fault.target]), _NAME_CHARS)
        parts.append(
            f'<rect class="fault" x="{left:.1f}" y="{_TOP - 4}" width="{max(right - left, 1.5):.1f}"'
            f' height="{_BOTTOM - _TOP + 4}"><title>{escape(name)}</title></rect>'
        )
        wide = len(name) * _LABEL_CHAR
        begin = min(left, RIGHT - wide)
        row = next((row for row in range(_LABEL_ROWS) if free[row] <= begin), None)
        if row is not None:
            y = _TOP - 9 - 14 * row
            parts.append(f'<path class="edge" d="M{left:.1f} {y + 3}V{_BOTTOM}"/>')
            parts.append(_text("name", begin + 3, y, name))
            free[row] = begin + wide + 6
    return parts


def _path(line: Line, at_s: Floats, x: Scale, y: Scale) -> list[str]:
    """Return the line, broken where there is no value; a value alone is a dot."""
    parts: list[str] = []
    run: list[str] = []
    for at, value in [*zip(at_s.tolist(), line.values.tolist(), strict=True), (0.0, math.nan)]:
        if not math.isnan(value):
            run.append(f"{x(at):.1f} {y(value):.1f}")
        elif run:
            if len(run) == 1:
                cx, cy = run[0].split()
                parts.append(f'<circle class="dot {line.style}" cx="{cx}" cy="{cy}" r="2"/>')
            else:
                parts.append(f'<path class="line {line.style}" d="M{"L".join(run)}"/>')
            run = []
    return parts


def _step(least: float) -> float:
    """Return the smallest of 1, 2, 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(max(least, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _ticks(top: float) -> tuple[list[float], float, float]:
    step = _step(top / 4)
    count = math.ceil(top / step - 1e-9)
    return [step * number for number in range(count + 1)], 0.0, step * count


def _log_ticks(low: float, top: float) -> tuple[list[float], float, float]:
    first, last = math.floor(math.log10(max(low, 1e-6))), math.ceil(math.log10(max(top, 1e-6)) - 1e-9)
    last = max(last, first + 1)
    every = -(-(last - first) // 5)
    return [10.0**power for power in range(first, last + 1, every)], 10.0**first, 10.0**last


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
