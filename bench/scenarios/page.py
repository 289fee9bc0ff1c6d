"""The page of a run: one HTML file with the lag over time, the phases and the checks.

Owns: what the page says. Pure but for the style sheet, which is the demo's. Read next: `examples.demo.charts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.scenarios.scene import CONSUMER, Sample, Scene
from examples.demo import charts
from examples.demo.charts import Mark
from oncegate.proof.check.report.charts import Floats, Line

_STYLE: Final = Path(charts.__file__).parent / "page.css"


def render(name: str, story: str, scene: Scene, about: dict[str, Any]) -> str:
    """Return the page; it needs no network and no script."""
    passed = all(check.passed for check in scene.checks)
    verdict = f'<span class="{"pass" if passed else "fail"}">{"exact" if passed else "NOT exact"}</span>'
    phases = [(f"{one.begin_s:.1f} s", f"{one.end_s - one.begin_s:.1f} s", one.name) for one in scene.phases]
    checks = [
        (check.name, check.expected, check.found, "PASS" if check.passed else "FAIL: " + "; ".join(check.named))
        for check in scene.checks
    ]
    body = [
        f"<h1>{escape(name)}: {verdict}</h1><p>{escape(story)}</p>",
        f"<h2>Lag over time</h2><figure>{_lag(scene)}</figure>",
        f"<h2>Figures</h2>{_table(('what', 'value'), list(scene.figures.items()))}",
        f"<h2>Checks</h2>{_table(('check', 'expected', 'found', 'verdict'), checks)}",
        f"<h2>Phases</h2>{_table(('at', 'for', 'what'), phases)}",
        f"<h2>Environment</h2>{_table(('what', 'value'), [(key, str(value)) for key, value in about.items()])}",
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(name)}</title>'
        f"<style>{_STYLE.read_text(encoding='utf-8')}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _lag(scene: Scene) -> str:
    consumers = sorted({name for one in scene.samples for name in one.behind}, key=lambda name: name != CONSUMER)
    at = np.array([one.at_s for one in scene.samples], dtype=np.float64)
    lines = [Line(name, _of(scene.samples, name), "abc"[place % 3]) for place, name in enumerate(consumers)]
    marks = [Mark(one.begin_s, one.end_s, one.name) for one in scene.phases if one.fault]
    end_s = max((one.end_s for one in scene.phases), default=1.0)
    words = "Items that each consumer still has to read."
    chart = charts.line_chart("lag", words, at, lines, marks, end_s=end_s, unit="items behind")
    legend = "".join(f"<li>{charts.sample(line)}{escape(line.name)}</li>" for line in lines)
    return f'<figcaption>{words}</figcaption><ul class="legend">{legend}</ul>{chart}'


def _of(samples: Sequence[Sample], consumer: str) -> Floats:
    return np.array([one.behind.get(consumer, np.nan) for one in samples], dtype=np.float64)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
