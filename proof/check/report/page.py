"""A run's page: one file that needs nothing else, which no text of a user can change.

Owns: reading the run's folder, what the page says where, and its safety: every text is escaped, the data is inert JSON,
and the policy in the page allows this page's one script and one style by their hashes and nothing else: no network, no
frames, no forms. Looks and behaviour: ``assets/``, joined here.
Read next: :mod:`oncegate.proof.check.report.payload`, :mod:`oncegate.proof.check.report.plots`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final, NamedTuple

import msgspec

from oncegate.proof.check.errors import FileMalformed
from oncegate.proof.check.folder import FaultNote, RunFolder, RunInfo, RunVerdict, replace_file
from oncegate.proof.check.report.payload import FAULTS_MAX, OPERATIONS_MAX, end_of, payload
from oncegate.proof.check.report.plots import alone, latency_plot, rate_plot, series
from oncegate.proof.check.report.shown import TEXT_CHARS_MAX, shortened, spelled
from oncegate.proof.lincheck import Event, HistoryError, Operation, Result, operations

_SCRIPTS: Final = ("data.js", "view.js", "draw.js", "overview.js", "panels.js", "input.js", "main.js")
_MARKS: Final = {"valid": "✓", "invalid": "✗", "unknown": "?"}
_HEADLINES: Final = {
    "valid": "Valid: the results can be explained",
    "invalid": "Invalid: nothing explains these results",
    "unknown": "Unknown: the check did not come to an end",
}


class RecordedRun(NamedTuple):
    """Everything a page says; ``ended``: by index of an operation without an answer, when it was given up or refused
    (ns), and the code.
    """

    info: RunInfo
    verdict: RunVerdict
    faults: list[FaultNote]
    operations: list[Operation]
    ended: dict[int, tuple[int, str | None]]


def recorded(folder: RunFolder) -> RecordedRun:
    """Read the folder.

    Raises:
        FileMissing: no run, no history or no verdict.
        FileMalformed: a file that is not what its name says, or events that do not fit together.
    """
    info, verdict = folder.read_run(), folder.read_verdict()
    events = list(folder.read_history())
    try:
        found = operations(events)
    except HistoryError as bad:
        raise FileMalformed(folder.history, bad.detail.partition(": ")[2], line=bad.line) from bad
    return RecordedRun(info, verdict, folder.read_faults(), found, ends(events))


def ends(events: Sequence[Event]) -> dict[int, tuple[int, str | None]]:
    """Return for every operation that was refused or given up its last end, by index.

    Of an operation with an answer nothing is returned that matters: the answer is its end. Times are line numbers where
    the history has none, as in :func:`oncegate.proof.lincheck.history.operations`.
    """
    timed = any(event.time for event in events)
    running: dict[int, int] = {}
    requests: dict[str, int] = {}
    found: dict[int, tuple[int, str | None]] = {}
    invocations = 0
    for number, event in enumerate(events, 1):
        time = event.time if timed else number
        if event.type == "invoke":
            first = invocations if event.request is None else requests.setdefault(event.request, invocations)
            running[event.process] = first
            invocations += 1
            continue
        index = running.pop(event.process)
        if event.type != "ok" and (index not in found or found[index][0] <= time):
            found[index] = (time, event.error)
    return found


def write_report(folder: RunFolder, *, operations_max: int = OPERATIONS_MAX) -> Path:
    """Write ``report.html``, ``latency.svg`` and ``rate.svg`` into the folder, and return the page.

    Needs ``run.json``, ``history.jsonl`` and ``verdict.json``; ``faults.jsonl`` if there were faults. Again writes the
    same bytes. Raises like :func:`recorded`.
    """
    run = recorded(folder)
    data = payload(run.operations, run.verdict, run.faults, run.ended, run.info.nodes, operations_max=operations_max)
    found = series(run.operations, run.ended, data["to"])
    latency, rate = latency_plot(found, run.faults[:FAULTS_MAX]), rate_plot(found, run.faults[:FAULTS_MAX])
    replace_file(folder.path / "latency.svg", alone(latency, _asset("plot.css")).encode())
    replace_file(folder.path / "rate.svg", alone(rate, _asset("plot.css")).encode())
    replace_file(folder.report, render(run, data, latency, rate).encode())
    return folder.report


def render(run: RecordedRun, data: Mapping[str, Any], latency: str, rate: str) -> str:
    """Return the page."""
    script = '(() => {\n"use strict";\n' + "".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    style = _asset("page.css") + _asset("plot.css")
    verdict = run.verdict.verdict
    headline = _HEADLINES[verdict]
    return Template(_asset("page.html")).substitute(
        policy=_policy(script, style),
        title=escape(f"{_MARKS[verdict]} {verdict}: {run.info.workload}, seed {run.info.seed}"),
        style=style,
        verdict=verdict,
        mark=_MARKS[verdict],
        headline=escape(headline),
        about=escape(_about(run)),
        tiles=_tiles(run),
        proof_title="Why" if verdict == "invalid" else "What was checked",
        words="".join(f"<li>{escape(word)}</li>" for word in _words(run, data)),
        checks="".join(_check(check) for check in run.verdict.checks),
        latency=latency,
        rate=rate,
        faults=_faults(run),
        run=_run(run),
        sample=escape(data["sample"] or "Every operation of the run is on this page."),
        data=inert(msgspec.json.encode(data).decode()),
        script=script,
    )


def inert(json: str) -> str:
    """Return the same JSON without a character that means something to a reader of HTML."""
    for char in "<>&\u2028\u2029":
        json = json.replace(char, f"\\u{ord(char):04x}")
    return json


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    return (
        f"default-src 'none'; script-src {hashed(script)}; style-src {hashed(style)}; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def _about(run: RecordedRun) -> str:
    info = run.info
    parts = [
        info.workload,
        f"under {info.faults}" if info.faults and info.faults != "none" else "without faults",
        f"seed {info.seed}",
        f"{info.seconds:g} s" if info.seconds else "",
        f"{len(info.nodes)} nodes" if len(info.nodes) > 1 else "",
        f"commit {info.commit[:12]}" if info.commit else "",
        info.started[:19].replace("T", " ") + " UTC" if info.started else "",
    ]
    return ", ".join(filter(None, (shortened(part, TEXT_CHARS_MAX) for part in parts)))


def _tiles(run: RecordedRun) -> str:
    counts = dict.fromkeys(("ok", "unknown", "failed"), 0)
    for operation in run.operations:
        counts[operation.status] += 1
    tiles = [
        (f"{len(run.operations):,}", "operations"),
        (f"{counts['ok']:,}", "ok"),
        (f"{counts['unknown']:,}", "unknown"),
        (f"{counts['failed']:,}", "fail"),
        (f"{len(run.faults):,}", "fault" if len(run.faults) == 1 else "faults"),
        (f"{run.verdict.seconds:.3g} s", "to check"),
    ]
    return "".join(f"<li><b>{escape(value)}</b><span>{escape(name)}</span></li>" for value, name in tiles)


def _words(run: RecordedRun, data: Mapping[str, Any]) -> list[str]:
    """Return the words of the first failure; without one, what every check found."""
    for check in data["checks"]:
        for failure in check["failures"]:
            return list(failure["words"]) or ["The check gives no words for this failure."]
    return [_summary(check) for check in run.verdict.checks] or ["Nothing was checked."]


def _summary(check: Result) -> str:
    of = f"{check.operations:,} operations" + (f" on {check.keys:,} keys" if check.keys > 1 else "")
    reason = f": {shortened(check.reason, 500)}" if check.reason else ""
    ending = {"valid": "nothing is wrong", "invalid": "invalid", "unknown": "no verdict"}[check.verdict]
    return f"{shortened(check.name, TEXT_CHARS_MAX)}: {of}, {ending}{reason}."


def _failures(check: Result) -> str:
    keyed = check.keys > 1 and all(failure.key is not None for failure in check.failures)
    word = "failing key" if keyed else "failure"
    return f"{len(check.failures):,} {word}{'' if len(check.failures) == 1 else 's'}"


def _check(check: Result) -> str:
    more = f"{check.operations:,} operations" + (f", {check.keys:,} keys" if check.keys > 1 else "")
    more += f", {_failures(check)}" if check.failures else ""
    more += f". {shortened(check.reason, 500)}" if check.reason else ""
    return (
        f'<li><span class="row"><span class="sign {check.verdict}" aria-hidden="true">{_MARKS[check.verdict]}</span>'
        f'<span class="name" title="{escape(check.name)}">{escape(shortened(check.name, TEXT_CHARS_MAX))}</span></span>'
        f'<span class="hidden">{check.verdict}</span><p class="quiet">{escape(more)}</p></li>'
    )


def _faults(run: RecordedRun) -> str:
    if not run.faults:
        return '<p class="quiet">None.</p>'
    rows = [
        (
            fault.fault,
            ", ".join(fault.target),
            f"{fault.start / 1e9:.3f} s",
            "to the end" if fault.end is None else f"{(fault.end - fault.start) / 1e9:.3f} s",
            fault.detail,
        )
        for fault in run.faults[:FAULTS_MAX]
    ]
    left = len(run.faults) - len(rows)
    more = f'<p class="quiet">{left:,} more are in faults.jsonl.</p>' if left > 0 else ""
    return _table(("fault", "target", "from", "lasted", "detail"), rows) + more


def _run(run: RecordedRun) -> str:
    info = run.info
    last = max((end_of(operation, run.ended) for operation in run.operations), default=0)
    rows = [
        ("workload", info.workload),
        ("faults", info.faults or "none"),
        ("seed", str(info.seed)),
        ("started", info.started),
        ("length", f"{last / 1e9:.3f} s"),
        ("nodes", ", ".join(info.nodes)),
        ("commit", info.commit),
        *((f"version of {name}", version) for name, version in sorted(info.versions.items())),
        *((name, spelled(value, 500)) for name, value in sorted(info.settings.items())),
        *((f"states visited by {check.name}", f"{check.states_visited:,}") for check in run.verdict.checks),
    ]
    return _table(("what", "value"), [row for row in rows if row[1]])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(shortened(cell, 500))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
