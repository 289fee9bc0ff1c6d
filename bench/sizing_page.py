"""The tables of docs/sizing.md, drawn from the newest run in ``bench/results/sizing.jsonl``.

Pure but for :func:`write`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, Final

from bench.pages import Columns, drawn, table

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
WEIGHS: Final = {
    "memory while filled": ("filled", "rss_anon"),
    "memory after a restart": ("opened", "rss_anon"),
    "disk: state": ("filled", "state"),
    "disk: batches": ("filled", "disk", "segments"),
}
"""Where a figure of a node stands, by its heading."""
LOGGED: Final = {
    "rows one by one": "one put of 200 bytes",
    "rows": "500 puts of 200 bytes or more",
    "items": "ranges of 500 rows of 200 bytes; batches too",
    "records": "500 increments",
    "keys": "500 increments under idempotency keys",
    "sessions": "openings of sessions",
}
PROCESSOR: Final[Columns] = {
    "puts outstanding": "{outstanding}", "operations/s": "{rate:,.0f}", "p50 ms": "{p50_ms:.2f}",
    "p99 ms": "{p99_ms:.1f}", "leader µs": "{leader_us:,.0f}", "each follower µs": "{follower_us:,.0f}",
    "client µs": "{client_us:,.0f}", "written by a node, bytes": "{written_bytes:,.0f}",
    "busy with other work": "{others_share:.0%}",
}  # fmt: skip


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


def slope(few: Mapping[str, Any], many: Mapping[str, Any], *path: str) -> float:
    """Return by how much a figure grows with one more of what is held; ``path`` leads to it in a node's figures."""
    at_few, at_many = (float(reduce(lambda found, name: found[name], path, row)) for row in (few, many))  # type: ignore[arg-type]
    return (at_many - at_few) / float(many["count"] - few["count"])


def lines(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables."""
    rows = run["rows"]
    (empty,) = (row for row in rows if row["what"] == "nothing")
    pairs = {what: [row for row in rows if row["what"] == what] for what in LOGGED}
    pairs["rows one by one"].insert(0, empty)
    flush_ms = run.get("fdatasync_4k_ms") or run["fdatasync_4k_p50_ms"]
    yield (
        f"{run['cpu']}, {run['cores']} cores, Linux {run['kernel']}, Python {run['python']}, commit {run['commit']}; "
        "`fdatasync` of 4 KiB"
    )
    yield f"{flush_ms:.3f} ms, {run['bare_posts_per_s']:,.0f} bare POSTs a second."
    yield ""
    filled, opened = empty["filled"], empty["opened"]
    nothing = ["nothing", *map(_size, (filled["rss_anon"], opened["rss_anon"], filled["disk"]["state"])), "0"]
    held = [
        [f"{unit:,} {words}", *(_size(slope(*pairs[what], *path) * unit) for path in WEIGHS.values())]
        for what, (words, unit) in HELD.items()
    ]
    yield table(("held, by each node", *WEIGHS), [nothing, *held])
    yield ""
    logged = [
        [words, *(f"{slope(*pairs[what], 'filled', name):,.0f}" for name in ("entry_bytes", "written"))]
        for what, words in LOGGED.items()
    ]
    head = ("log entries of", "bytes of log for an operation", "of log and saves, as written to the disk")
    yield table(head, logged)
    yield ""
    yield drawn(PROCESSOR, [row for row in rows if row["what"] == "processor"])


def _size(bytes_: float) -> str:
    mib = bytes_ / _MIB
    # Less than nothing is what merging files saved: what is held takes no room of this kind.
    return f"{mib:,.0f} MiB" if mib >= 9.5 else "0" if mib < 0.05 else f"{mib:.1f} MiB"


def filled(page: str, run: Mapping[str, Any]) -> str:
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
