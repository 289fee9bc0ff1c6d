"""Latency and rate of a run over time as SVG: for the page, and as files of their own.

Owns: buckets, percentiles, counts by status, what is plotted, and the bands of the faults. Pure. Colours are classes
(``plot.css``), so that light and dark both work. Escapes every text. Read next:
:mod:`oncegate.proof.check.report.charts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

import numpy as np

from oncegate.proof.check.folder import FaultNote
from oncegate.proof.check.report.charts import Axis, Floats, Line, drawn, spelled, text, ticks, value_axis
from oncegate.proof.check.report.payload import end_of
from oncegate.proof.check.report.shown import shortened
from oncegate.proof.lincheck.history import Operation

WIDTH: Final = 720
HEIGHT: Final = 250
LEFT: Final = 64
RIGHT: Final = WIDTH - 12
_TOP, _BOTTOM = 66, HEIGHT - 28
_LABEL_ROWS: Final = 2
_LABEL_CHAR: Final = 6.3
_NAME_CHARS: Final = 60
BUCKETS_MAX: Final = 180
_WIDTHS_S: Final = (1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)
"""Round widths of a bucket."""
_STATUSES: Final = ("ok", "unknown", "fail")


class Series(NamedTuple):
    """Values by bucket, float64 of shape (buckets,).

    Attributes:
        at_s: middles of the buckets, seconds since the run began.
        width_s: of a bucket.
        p50_ms, p99_ms, max_ms: latency of answered operations by the time of the answer; NaN where there is none.
        rates: by status (``ok``, ``unknown``, ``fail``), ended operations per second.
        end_s: when the run ended.
    """

    at_s: Floats
    width_s: float
    p50_ms: Floats
    p99_ms: Floats
    max_ms: Floats
    rates: dict[str, Floats]
    end_s: float


def series(operations: Sequence[Operation], ended: Mapping[int, tuple[int, str | None]], end: int) -> Series:
    """Return the series of a run that ended at ``end`` (ns); at most ``BUCKETS_MAX`` buckets of a round width."""
    end_s = max(end / 1e9, 1e-6)
    width = next((width for width in _WIDTHS_S if end_s / width <= BUCKETS_MAX), end_s / BUCKETS_MAX)
    buckets = max(1, int(np.ceil(end_s / width - 1e-9)))
    finish = np.array([end_of(operation, ended) for operation in operations], dtype=np.float64) / 1e9
    begin = np.array([operation.invoked for operation in operations], dtype=np.float64) / 1e9
    status = np.array([("ok", "unknown", "failed").index(operation.status) for operation in operations], dtype=np.int64)
    bucket = np.clip((finish / width).astype(np.int64), 0, buckets - 1)
    rates = {
        name: np.bincount(bucket[status == number], minlength=buckets).astype(np.float64) / width
        for number, name in enumerate(_STATUSES)
    }
    p50, p99, worst = (np.full(buckets, np.nan, dtype=np.float64) for _ in range(3))
    answered = status != 1
    latency, of = (finish - begin)[answered] * 1e3, bucket[answered]
    order = np.argsort(of, kind="stable")
    numbers, firsts = np.unique(of[order], return_index=True)
    for number, values in zip(numbers.tolist(), np.split(latency[order], firsts[1:]), strict=False):
        p50[number], p99[number], worst[number] = np.percentile(values, (50, 99, 100))
    middles: Floats = (np.arange(buckets, dtype=np.float64) + 0.5) * width
    return Series(middles, width, p50, p99, worst, rates, end_s)


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
    height, at_height = value_axis(lines, _BOTTOM, _TOP, log=log)
    time = Axis(0.0, found.end_s, LEFT, RIGHT)
    parts = [*_shaded(faults, time)]
    for tick in at_height:
        y = height.place(tick)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(text("tick", LEFT - 7, y + 4, spelled(tick), "end"))
    for at in ticks(found.end_s, 7):
        if at > found.end_s:
            break
        x = time.place(at)
        anchor = "start" if at == 0 else "middle" if x < RIGHT - 14 else "end"
        parts.append(f'<path class="grid" d="M{x:.1f} {_BOTTOM}v4"/>')
        parts.append(text("tick", x, _BOTTOM + 18, f"{spelled(at)} s", anchor))
    for line in reversed(lines):
        parts.extend(drawn(line, found.at_s, time, height))
    right = LEFT
    for line in lines:
        parts.append(f'<path class="line {line.style}" d="M{right} 12h30"/>')
        parts.append(text("words", right + 36, 16, line.name))
        right += 56 + 8 * len(line.name)
    parts.append(text("tick", RIGHT, 16, f"{unit}, each {spelled(found.width_s)} s", "end"))
    said = "; ".join(
        f"{line.name} at most {spelled(float(values.max()))}"
        for line in lines
        if len(values := line.values[np.isfinite(line.values)])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' data-left="{LEFT}" data-right="{RIGHT}">'
        f"<title>{escape(title)}</title><desc>{escape(f'{unit}: {said}. {len(faults)} faults shaded.')}</desc>"
        f'{"".join(parts)}<rect class="view" x="{LEFT}" y="{_TOP - 4}" width="{RIGHT - LEFT}"'
        f' height="{_BOTTOM - _TOP + 8}"/></svg>'
    )


def _shaded(faults: Sequence[FaultNote], time: Axis) -> list[str]:
    """Return the bands of faults; a name stands above its band where it has room."""
    parts: list[str] = []
    free = [0.0] * _LABEL_ROWS
    for fault in faults:
        left = time.place(fault.start / 1e9)
        right = time.place(time.high if fault.end is None else fault.end / 1e9)
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
            parts.append(text("name", begin + 3, y, name))
            free[row] = begin + wide + 6
    return parts
