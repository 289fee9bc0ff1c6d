"""What the three data flows are to show, and whether they do: figures of runs, and verdicts. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.experiments.results import Line
from bench.experiments.targets import Verdict, verdict
from bench.limits import Limit

RATIO_MAX: Final = 0.65
RESPONSE_MAX_MS: Final = 200.0
FOLLOWERS_RATIO_MAX: Final = 1.05
BURST_RATIO_MAX: Final = 2.0
LIMITS: Final[Mapping[str, Limit]] = {}
"""By the name of the verdict."""
Row = Mapping[str, Any]


def verdicts(runs: Mapping[str, Line]) -> list[Verdict]:
    """Return the verdicts; ``runs`` by experiment."""
    return [*_eighty(runs.get("eighty")), *_burst(runs.get("burst")), _complete(list(runs.values()))]


def _eighty(line: Line | None) -> list[Verdict]:
    whats = {
        "response": ("80 % load: longest response", f"< {RESPONSE_MAX_MS:.0f} ms"),
        "followers": ("80 % load: median response by followers of the author, over that with one",
                      f"≤ {FOLLOWERS_RATIO_MAX:.2f}"),
        "sent_bytes": ("80 % load: bytes sent a post, integrated over external queue", f"≤ {RATIO_MAX:.2f}"),
        "cpu_us": ("80 % load: processor time a post, integrated over external queue", f"≤ {RATIO_MAX:.2f}"),
    }  # fmt: skip
    row = of_flow(line, "integrated")
    if line is None or row is None:
        return [Verdict(*words, "", None) for words in whats.values()]
    reached: dict[str, tuple[str, bool | None]] = {
        "response": (f"{row['max_ms']:,.0f} ms of {row['samples']:,} posts", row["max_ms"] < RESPONSE_MAX_MS),
        "followers": _by_followers(row),
    }
    found = ratios(line["rows"])
    for name in ("sent_bytes", "cpu_us"):
        ratio, rest = found[name], found[f"{name} without db"]
        words = f"{ratio:.2f}; {rest:.2f} without the database's own" if ratio and rest else ""
        reached[name] = words, ratio <= RATIO_MAX if ratio else None
    return [
        verdict(what, wanted, reached[name][0], line, reached[name][1], LIMITS.get(name))
        for name, (what, wanted) in whats.items()
    ]


def _by_followers(row: Row) -> tuple[str, bool | None]:
    """Return in words the class of followers that is surest to be above the first one, and whether all may be within.

    Few posts have an author with very many followers: a class is above when the whole interval of its median is.
    """
    first, *others = row["by_class"]
    if not others:
        return "", None
    base = first["p50_ms"]
    worst = max(others, key=lambda one: float(one.get("low_ms", one["p50_ms"])))
    low = worst.get("low_ms", worst["p50_ms"]) / base
    words = (
        f"{worst['p50_ms'] / base:.2f} ({low:.2f} to {worst.get('high_ms', worst['p50_ms']) / base:.2f}) with "
        f"{worst['low']:,} to {worst['high']:,}, {worst['samples']:,} posts"
    )
    return words, low <= FOLLOWERS_RATIO_MAX


def _burst(line: Line | None) -> list[Verdict]:
    whats = (
        ("burst to 200 %: dropped", "0"),
        ("burst to 200 %: median response over that before", f"≤ {BURST_RATIO_MAX:.0f}"),
    )
    row = of_flow(line, "integrated")
    if line is None or row is None:
        return [Verdict(*words, "", None) for words in whats]
    lost = row["dropped"] + row["failed"]
    dropped = verdict(*whats[0], f"{lost:,} of {row['sent'] + row['dropped']:,}", line, not lost, LIMITS.get("dropped"))
    times = by_phase(row)
    if len(times) < 2 or not times[0] or times[1] is None:
        return [dropped, Verdict(*whats[1], "", None)]
    ratio = times[1] / times[0]
    words = f"{ratio:.2f}: {times[1]:.2f} ms, {times[0]:.2f} before"
    return [dropped, verdict(*whats[1], words, line, ratio <= BURST_RATIO_MAX, LIMITS.get("burst"))]


def _complete(lines: Sequence[Line]) -> Verdict:
    rows = [row for line in lines for row in line["rows"]]
    what = "every acknowledged post once in the timeline of each follower, nodes killed or not"
    if not rows:
        return Verdict(what, "all", "", None)
    posts, copies = (sum(row["check"][name] for row in rows) for name in ("posts", "expected"))
    complete = all(row["check"]["complete"] for row in rows)
    return Verdict(what, "all", f"{posts:,} posts, {copies:,} copies", complete)


def of_flow(line: Line | None, architecture: str) -> Row | None:
    """Return the row of a data flow; None where it was not run."""
    return next((row for row in (line or {"rows": ()})["rows"] if row["architecture"] == architecture), None)


def total(parts: Mapping[str, float | None]) -> float | None:
    """Return the sum over the parts; None where one is not known."""
    known = [value for value in parts.values() if value is not None]
    return sum(known) if len(known) == len(parts) else None


def ratios(rows: Sequence[Row]) -> dict[str, float | None]:
    """Return integrated over external queue, of a post: processor time and bytes, of all parts and without database."""
    by_name = {row["architecture"]: row for row in rows}
    found: dict[str, float | None] = {}
    for figure in ("cpu_us", "sent_bytes"):
        for name, left_out in ((figure, ""), (f"{figure} without db", "db")):
            sums = [
                total({part: of for part, of in by_name[one][figure].items() if part != left_out})
                for one in ("integrated", "queue") if one in by_name
            ]  # fmt: skip
            known = len(sums) == 2 and all(sums)
            found[name] = float(sums[0] or 0) / float(sums[1] or 1) if known else None
    return found


def by_phase(row: Row) -> list[float | None]:
    """Return for each phase the median of the medians of its seconds, ms; None where nobody was answered."""
    found, begin_s = list[float | None](), 0.0
    for _, seconds in row["phases"]:
        # A second is told of when it is over, and seen up to a second later.
        times = [
            p50 for at, _, p50, *_ in row["over_time"] if begin_s + 2 <= at < begin_s + seconds and p50 is not None
        ]
        found.append(statistics.median(times) if times else None)
        begin_s += seconds
    return found
