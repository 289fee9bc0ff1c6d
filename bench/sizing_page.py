"""The tables of docs/sizing.md, drawn from the newest run in ``bench/results/sizing.jsonl``.

Pure but for :func:`write`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "sizing.md"
RESULTS: Final = ROOT / "bench" / "results" / "sizing.jsonl"
_BETWEEN: Final = re.compile(r"(?ms)^(<!-- measured: sizing [^\n]*\n).*?^(<!-- end: sizing -->)$")
_MIB: Final = 2**20
HELD: Final = {
    "rows": ("rows of a resident table, keys of 15 bytes and values of 200", 1_000_000),
    "sessions": ("live sessions, idle", 100_000),
    "records": ("completion records that clients have not acknowledged", 1_000_000),
    "keys": ("writes under an idempotency key, remembered", 1_000_000),
    "items": ("rows of a stream table, ranges of 500, values of 200 bytes, retained", 1_000_000),
}
"""What a node may hold, in words, and how many of it a line of the table is about."""


def newest(stored: str) -> dict[str, Any]:
    """Return the newest run of a results file.

    Raises:
        LookupError: there is none.
    """
    lines = stored.splitlines()
    if not lines:
        raise LookupError("no run of bench.sizing is stored")
    run: dict[str, Any] = json.loads(lines[-1])
    return run


def slope(few: dict[str, Any], many: dict[str, Any], *path: str) -> float:
    """Return by how much a figure grows with one more of what is held; ``path`` leads to it in a node's figures."""

    def at(row: dict[str, Any]) -> float:
        found: Any = row
        for name in path:
            found = found[name]
        return float(found)

    return (at(many) - at(few)) / float(many["count"] - few["count"])


def lines(run: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables."""
    yield (
        f"{run['cpu']}, {run['cores']} cores, Linux {run['kernel']}, Python {run['python']}, commit {run['commit']}; "
        "`fdatasync` of 4 KiB"
    )
    yield f"{run['fdatasync_4k_p50_ms']:.3f} ms, {run['bare_posts_per_s']:,.0f} bare POSTs a second."
    yield ""
    yield from _held(run["rows"])
    yield ""
    yield from _log(run["rows"])
    yield ""
    yield from _processor([row for row in run["rows"] if row["what"] == "processor"])


def _held(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| held, by each node | memory while filled | memory after a restart | disk: state | disk: batches |"
    yield "|---|---|---|---|---|"
    (empty,) = (row for row in rows if row["what"] == "nothing")
    filled, opened = empty["filled"], empty["opened"]
    empty_cells = [_size(filled["rss_anon"]), _size(opened["rss_anon"]), _size(filled["disk"]["state"]), "0"]
    yield f"| nothing | {' | '.join(empty_cells)} |"
    for what, (words, unit) in HELD.items():
        few, many = (row for row in rows if row["what"] == what)
        cells = [
            _size(slope(few, many, "filled", "rss_anon") * unit),
            _size(slope(few, many, "opened", "rss_anon") * unit),
            _size(slope(few, many, "filled", "state") * unit),
            _size(slope(few, many, "filled", "disk", "segments") * unit),
        ]
        yield f"| {unit:,} {words} | {' | '.join(cells)} |"


def _log(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| log entries of | bytes of log for an operation | of log and saves, as written to the disk |"
    yield "|---|---|---|"
    (empty,) = (row for row in rows if row["what"] == "nothing")
    (single,) = (row for row in rows if row["what"] == "rows one by one")
    yield _log_line("one put of 200 bytes", empty, single)
    for what, words in (
        ("rows", "500 puts of 200 bytes or more"),
        ("items", "ranges of 500 rows of 200 bytes; batches too"),
        ("records", "500 increments"),
        ("keys", "500 increments under idempotency keys"),
        ("sessions", "openings of sessions"),
    ):
        few, many = (row for row in rows if row["what"] == what)
        yield _log_line(words, few, many)


def _log_line(words: str, few: dict[str, Any], many: dict[str, Any]) -> str:
    log, written = (slope(few, many, "filled", name) for name in ("entry_bytes", "written"))
    return f"| {words} | {log:,.0f} | {written:,.0f} |"


def _processor(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "| puts outstanding | operations/s | p50 ms | p99 ms | leader µs | each follower µs | client µs "
        "| written by a node, bytes | busy with other work |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row['outstanding']} | {row['rate']:,.0f} | {row['p50_ms']:.2f} | {row['p99_ms']:.1f} "
            f"| {row['leader_us']:,.0f} | {row['follower_us']:,.0f} | {row['client_us']:,.0f} "
            f"| {row['written_bytes']:,.0f} | {row['others_share']:.0%} |"
        )


def _size(bytes_: float) -> str:
    mib = bytes_ / _MIB
    # Less than nothing is what merging files saved: what is held takes no room of this kind.
    return f"{mib:,.0f} MiB" if mib >= 9.5 else "0" if mib < 0.05 else f"{mib:.1f} MiB"


def filled(page: str, run: dict[str, Any]) -> str:
    """Return the page with a run's tables between its markers.

    Raises:
        ValueError: the markers do not stand there exactly once.
    """
    body = "".join(f"{line}\n" for line in lines(run))
    text, found = _BETWEEN.subn(lambda match: match[1] + body + match[2], page)
    if found != 1:
        raise ValueError(f"the markers stand {found} times in the page, not once")
    return text


def write() -> Path:
    """Write the newest run's tables into the page; returns its path."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), newest(RESULTS.read_text())), encoding="utf-8")
    return PAGE
