"""Curves in panels, one above the other, as SVG. Pure.

The axis of each panel is a time, or named places at equal distances (sizes that grow by ten); values begin at 0 or
stand on a logarithmic axis. Colours and axes are those of the checker's pages; curves differ by dash as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from oncegate.proof.check.report import page as checker_page
from oncegate.proof.check.report.charts import Axis, Line, drawn, spelled, text, ticks, value_axis

WIDTH: Final = 760
HEIGHT: Final = 178
LEFT: Final = 70
RIGHT: Final = WIDTH - 24
TOP: Final = 46
BOTTOM: Final = HEIGHT - 34
CURVES_MAX: Final = 3
"""As many as differ by dash."""
_STYLE: Final = Path(checker_page.__file__).parent / "assets" / "plot.css"
_TITLE: Final = " .plot .title { font-weight: 600; }"
_KEY: Final = 26
_LETTER: Final = 6.4


class Curve(NamedTuple):
    """A value by place: seconds, or the position of a named place."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """Curves of one scale.

    Attributes:
        title: with the unit of the values.
        curves: one to `CURVES_MAX`; a panel without points is left out.
        places: names along the axis; none: seconds.
        log: a logarithmic axis of values.
        faults: shaded spans of time.
    """

    title: str
    curves: Sequence[Curve]
    places: Sequence[str] = ()
    log: bool = False
    faults: Sequence[tuple[float, float]] = ()


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the plot as the content of a file.

    Raises:
        ValueError: a panel has more curves than can be told apart.
    """
    kept = [panel for panel in panels if any(curve.points for curve in panel.curves)]
    parts = [element for row, panel in enumerate(kept) for element in _panel(panel, HEIGHT * row)]
    said = "; ".join(f"{panel.title}: {', '.join(curve.name for curve in panel.curves)}" for panel in kept)
    style = _STYLE.read_text().strip() + _TITLE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" role="img" viewBox="0 0 {WIDTH} {HEIGHT * len(kept)}">'
        f"<style>{style}</style><title>{escape(title)}</title><desc>{escape(said)}</desc>{''.join(parts)}</svg>\n"
    )


def _panel(panel: Panel, top: float) -> list[str]:
    if len(panel.curves) > CURVES_MAX:
        raise ValueError(f"{panel.title}: at most {CURVES_MAX} curves")
    lines = [
        (np.array([x for x, _ in curve.points]), Line(curve.name, np.array([y for _, y in curve.points]), style))
        for curve, style in zip(panel.curves, "abc", strict=False)
        if curve.points
    ]
    height, at_height = value_axis([line for _, line in lines], top + BOTTOM, top + TOP, log=panel.log)
    end = len(panel.places) - 0.5 if panel.places else max(float(at.max()) for at, _ in lines) or 1.0
    along = Axis(-0.5 if panel.places else 0.0, end, LEFT, RIGHT)
    parts = [text("title", 8, top + 18, panel.title), *_key(panel, top)]
    for begin_s, end_s in panel.faults:
        x, width = along.place(begin_s), along.place(end_s) - along.place(begin_s)
        place = f'x="{x:.1f}" y="{top + TOP}" width="{width:.1f}" height="{BOTTOM - TOP}"'
        parts.append(f'<rect class="fault" {place}/>')
    for tick in at_height:
        parts.append(f'<path class="grid" d="M{LEFT} {height.place(tick):.1f}H{RIGHT}"/>')
        parts.append(text("tick", LEFT - 8, height.place(tick) + 4, spelled(tick), "end"))
    named: list[tuple[float, str]] = [*enumerate(panel.places)]
    named = named or [(at, f"{spelled(at)} s") for at in ticks(end, 8) if at <= end]
    parts += [text("tick", along.place(at), top + BOTTOM + 18, name, "middle") for at, name in named]
    for at, line in lines:
        parts += drawn(line, at, along, height)
    return parts


def _key(panel: Panel, top: float) -> list[str]:
    """Return the names of the curves, each behind a piece of its line."""
    parts, x = [], float(LEFT)
    for curve, style in zip(panel.curves, "abc", strict=False):
        parts.append(f'<path class="line {style}" d="M{x:.1f} {top + 32:.1f}h{_KEY - 6}"/>')
        parts.append(text("words", x + _KEY, top + 36, curve.name))
        x += _KEY + _LETTER * len(curve.name) + 22
    return parts
