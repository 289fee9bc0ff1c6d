"""The report of a run: one HTML file that needs nothing else, no network and no script to be read.

Owns: what the page says and in which order. Must not know how the figures came about
(:mod:`examples.demo.recording`) or how a chart is drawn (:mod:`examples.demo.charts`). Looks: ``page.css``;
reading values by pointer or keyboard: ``page.js``; both become part of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from examples.demo import charts
from examples.demo.charts import Bar, Mark
from examples.demo.dataset import Int64s
from examples.demo.plan import When
from examples.demo.recording import BUCKET_S, Recording, Verdict
from examples.demo.recount import Check
from oncegate.proof.check.report.charts import Floats, Line, spelled

_HERE: Final = Path(__file__).parent
NONE: Final = "\N{EN DASH}"
_AXES: Final = {"ms": "ms", "/s": "per second", "rows": "rows"}
_UNITS: Final = {"ms": " ms", "/s": "/s", "rows": " rows"}


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that the page tells.

    Attributes:
        recording: what happened.
        checks: the results, in the order shown.
        fan_out: rows that each message becomes, int64.
        environment: name and value, in the order shown.
        finished_s: length of the whole run, from the first node's start to the last comparison.
    """

    recording: Recording
    checks: Sequence[Check]
    fan_out: Int64s
    environment: Mapping[str, str]
    finished_s: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def render(run: Run) -> str:
    """Return the page."""
    verdict = "Every count is exact" if run.passed else "The counts do not agree"
    kind = "pass" if run.passed else "fail"
    body = [
        f'<h1>oncegate demo: <span class="{kind}">{verdict}</span></h1>',
        f"<p>{_story(run)}</p>",
        _tiles(run),
        _timeline_charts(run),
        _duplicates(run.recording),
        "<h2>Results</h2>",
        "<p>What the run had to show. Messages and rows are recounted from the data file alone, by code that shares"
        " nothing with the Spark job, and every row is compared: its key, its write timestamp and its content.</p>",
        _results(run.checks),
        _kills(run.recording),
        _phases(run),
        "<h2>Environment</h2>",
        _table(("what", "value"), [(name, value) for name, value in run.environment.items()]),
        f"<script>{(_HERE / 'page.js').read_text(encoding='utf-8')}</script>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>oncegate demo: {verdict}</title>"
        f"<style>{(_HERE / 'page.css').read_text(encoding='utf-8')}</style></head><body>"
        f"{''.join(body)}</body></html>\n"
    )


def _story(run: Run) -> str:
    recording = run.recording
    killed = {0: "No leader was killed.", 1: "The leader was killed with kill -9 once while they were written."}.get(
        len(recording.kills),
        f"The leader was killed with kill -9 {_times(len(recording.kills))} while they were written, and restarted.",
    )
    return escape(
        "oncegate takes writes over HTTP, applies each of them exactly once on a replicated cluster, and derives what"
        f" follows from them through Spark. Here {recording.messages:,} real messages were written through the SDK into"
        f" three durable nodes. {recording.copied_share():.1%} of the operations were sent more than once on purpose,"
        f" to another node, at the same time or later. {killed} Meanwhile Spark copied each message to every contact of"
        " its sender."
    )


def _tiles(run: Run) -> str:
    recording = run.recording
    gaps = [gap for kill in recording.kills if (gap := recording.gap_s(kill)) is not None]
    rows = recording.delivered[-1].rows if recording.delivered else 0
    tiles = [
        (f"{recording.acknowledged:,}", "messages acknowledged"),
        (f"{rows:,}", "timeline rows delivered"),
        (f"{len(recording.copied):,}", "copies sent, none executed twice" if run.passed else "copies sent"),
        (" / ".join(f"{gap:.2f} s" for gap in gaps) or "none", "without answers after each kill"),
        (f"{run.finished_s:.0f} s", "for everything, recount included"),
    ]
    items = "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _timeline_charts(run: Run) -> str:
    recording = run.recording
    end_s = max([*(d.at_s for d in recording.delivered), *(a.at_s for a in recording.answers), 1.0])
    marks = [
        Mark(kill.at_s, kill.ready_s if kill.ready_s is not None else end_s, f"kill -9 {kill.node}")
        for kill in recording.kills
    ]
    slowed = " The last tenth was slowed down until Spark had delivered its first rows."
    slowed = slowed if recording.slowed_s > 0.1 else ""
    buckets = recording.buckets()
    grid = np.arange(0.0, end_s + BUCKET_S, BUCKET_S)
    rate = np.zeros(len(grid))
    p50, p99, worst = (np.full(len(grid), np.nan) for _ in range(3))
    at = np.rint(buckets.at_s / BUCKET_S).astype(np.int64)
    for target, source in zip((rate, p50, p99, worst), buckets[1:], strict=True):
        target[at] = source
    down = " Shaded: from the kill until that node had caught up again." if marks else ""
    return "".join(
        [
            _figure(
                "rate", "Acknowledged messages per second", f"As the SDK's calls returned.{slowed}{down}",
                grid, [(Line("mean of one second", _smooth(rate), "a"), "/s"),
                       (Line("each 100 ms", rate, "c", area=True, bare=True), "/s")], marks, end_s,
            ),
            _figure(
                "latency", "Write latency", "Time from the call of the SDK to its result, all retries included, by the"
                f" time of the result; logarithmic.{down}",
                grid, [(Line("median", p50, "a"), "ms"), (Line("99th percentile", p99, "b"), "ms"),
                       (Line("slowest", worst, "c"), "ms")], marks, end_s, log=True,
            ),
            _figure(
                "delivered", "Timeline rows delivered", "Rows that the acknowledged messages will become, and rows that"
                " Spark has written, by its own reports. The distance is the lag.",
                grid, [(Line("written by Spark", _delivered(recording, grid), "a", area=True), "rows"),
                       (Line("owed to acknowledged messages", _owed(run, grid), "b"), "rows")], marks, end_s,
            ),
        ]
    )  # fmt: skip


def _smooth(rate: Floats) -> Floats:
    """Return the mean over the second around each time."""
    width = round(1 / BUCKET_S) + 1
    found: Floats = np.convolve(np.pad(rate, width // 2, mode="edge"), np.full(width, 1 / width), mode="valid")
    return found


def _delivered(recording: Recording, grid: Floats) -> Floats:
    at = np.array([-1.0, *(delivered.at_s for delivered in recording.delivered)])
    rows = np.array([0.0, *(delivered.rows for delivered in recording.delivered)])
    found: Floats = rows[np.searchsorted(at, grid, side="right") - 1]
    return found


def _owed(run: Run, grid: Floats) -> Floats:
    """Return at each time the rows that the messages acknowledged until then become."""
    answers = run.recording.answers
    before = np.concatenate([[0], np.cumsum(run.fan_out)])
    at = np.array([-1.0, *(answer.at_s for answer in answers)])
    rows = [before[a.first - 1 + a.operations] - before[a.first - 1] for a in answers]
    owed: Floats = np.cumsum([0.0, *rows])[np.searchsorted(at, grid, side="right") - 1]
    return owed


def _figure(
    name: str,
    title: str,
    caption: str,
    at_s: Floats,
    lines: Sequence[tuple[Line, str]],
    marks: Sequence[Mark],
    end_s: float,
    *,
    log: bool = False,
) -> str:
    chart = charts.line_chart(
        name,
        f"{title}. {caption}",
        at_s,
        [line for line, _ in lines],
        marks,
        end_s=end_s,
        unit=_AXES[lines[0][1]],
        log=log,
    )
    legend = "".join(f"<li>{charts.sample(line)}{escape(line.name)}</li>" for line, _ in lines)
    data = {
        "at": [round(at, 1) for at in at_s.tolist()],
        "lines": [
            {"name": line.name, "unit": _UNITS[unit], "values": [_rounded(value) for value in line.values.tolist()]}
            for line, unit in lines
        ],
    }
    return (
        f"<h2>{escape(title)}</h2><figure><figcaption>{escape(caption)}</figcaption>"
        f'<ul class="legend">{legend}</ul>{chart}'
        f'<p class="readout" id="{name}-readout" aria-live="polite">Point at the chart, or focus it and use the arrow'
        " keys, to read values.</p>"
        f"<details><summary>The same as a table, by second</summary>{_by_second(at_s, lines)}</details>"
        f'<script type="application/json" id="{name}-data">{json.dumps(data, separators=(",", ":"))}</script></figure>'
    )


def _by_second(at_s: Floats, lines: Sequence[tuple[Line, str]]) -> str:
    per_second = round(1 / BUCKET_S)
    rows: list[tuple[str, ...]] = []
    for begin in range(0, len(at_s), per_second):
        cells = [f"{at_s[begin]:.0f} s"]
        for line, unit in lines:
            values = line.values[begin : begin + per_second]
            values = values[np.isfinite(values)]
            # A rate is a mean, a latency its worst, a count what it has come to.
            value = math.nan if not len(values) else values.mean() if unit == "/s" else values.max()
            cells.append(NONE if math.isnan(value) else spelled(float(f"{value:.3g}") if unit == "ms" else value))
        rows.append(tuple(cells))
    return _table(("time", *(f"{line.name}{_UNITS[unit]}" for line, unit in lines)), rows, numbers=True)


def _duplicates(recording: Recording) -> str:
    counts = recording.copy_counts()
    bars = [
        Bar(f"sent {when}", [(verdict.value, counts[when, verdict]) for verdict in Verdict if counts[when, verdict]])
        for when in When
    ]
    ranged = sum(copied.ranged for copied in recording.copied)
    retried = int(recording.replayed.sum())
    return (
        "<h2>Duplicates suppressed</h2><figure><figcaption>"
        + escape(
            f"{len(recording.copied):,} copies of operations under the same request ids: {ranged:,} in ranges, some cut"
            f" differently from the original, and {len(recording.copied) - ranged:,} single ones. Of a copy and its"
            " original one is executed and the other gets the stored result, also where the copy ran first; after the"
            f" acknowledgement a copy is refused. {retried:,} answers to the SDK itself were replays: a copy had run"
            " first, or an earlier attempt of its own."
        )
        + f"</figcaption>{charts.bar_chart('Copies by moment and verdict.', bars)}</figure>"
    )


def _results(checks: Sequence[Check]) -> str:
    rows = []
    for check in checks:
        mark, kind = ("✓ PASS", "pass") if check.passed else ("✗ FAIL", "fail")
        named = "".join(f"<li>{escape(name)}</li>" for name in check.named)
        rows.append(
            f"<tr><td>{escape(check.name)}{f'<ul>{named}</ul>' if named else ''}</td>"
            f'<td class="number">{escape(check.expected)}</td><td class="number">{escape(check.found)}</td>'
            f'<td class="verdict {kind}">{mark}</td></tr>'
        )
    head = '<tr><th>check</th><th class="number">expected</th><th class="number">found</th><th>verdict</th></tr>'
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'


def _kills(recording: Recording) -> str:
    if not recording.kills:
        return ""
    rows = [
        (
            f"{kill.at_s:.2f} s",
            kill.node,
            f"{kill.pending:,}",
            _seconds(recording.gap_s(kill)),
            _seconds(None if kill.restarted_s is None else kill.restarted_s - kill.at_s),
            _seconds(None if kill.ready_s is None else kill.ready_s - kill.at_s),
        )
        for kill in recording.kills
    ]
    head = ("killed at", "leader", "messages to come", "longest gap between answers", "restarted after", "ready after")
    return f"<h2>Kills</h2>{_table(head, rows)}"


def _phases(run: Run) -> str:
    p50, p99, worst = run.recording.latency_ms()
    rows = [(name, f"{seconds:.1f} s") for name, seconds in run.recording.phases.items()]
    rows.append(("everything", f"{run.finished_s:.1f} s"))
    return (
        "<h2>Time</h2>"
        f'<p class="quiet">Latency of all {len(run.recording.answers):,} calls: median {p50:.1f} ms, 99th percentile'
        f" {p99:.1f} ms, slowest {worst:.0f} ms.</p>{_table(('phase', 'time'), rows)}"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    kind = ' class="number"' if numbers else ""
    top = "".join(f"<th{kind}>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 1)


def _seconds(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f} s"


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"
