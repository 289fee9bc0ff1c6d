"""What the three data flows are to show, and whether they do: figures of runs, and judgements. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.harness import Line
from bench.pages import Judgement, Limit, judge

BYTES_RATIO_MAX: Final = 0.65
MACHINES_RATIO_MAX: Final = 0.86
PROCESSOR_RATIO_MAX: Final = 0.79
"""The published ratios, saturating: of bytes 0.63 and 0.65, of machines 18 of 21, of processor time 0.76 and 0.79."""
NODES_16: Final = 16
RESPONSE_MAX_MS: Final = 200.0
FOLLOWERS_RATIO_MAX: Final = 1.05
BURST_RATIO_MAX: Final = 2.0
DELIVERED_SHARE_MIN: Final = 0.95
"""Of the load; what delivers less falls ever further behind, and its load is no 80 % of anything."""
FAILURE_SHARE_MIN: Final = 0.75
"""Of the capacity, under which a node has to be killed."""
MINUTE_S: Final = 60.0
LONGEST: Final = 4
"""Where a look over time has the longest response since the look before."""
MANY_FOLLOWERS: Final = 10_000
"""Medians of classes from here on are told beside the trend: their posts are few."""
_BYTES: Final = "saturating: bytes sent a post, integrated over external queue"
_MACHINES: Final = "saturating: cores beside 16 cores of database, on paper, integrated over external queue"
_PROCESSOR: Final = "saturating: processor time a post, integrated over external queue"
_BURST: Final = "burst to 200 %: median response over that before"
_PROFILE: Final = "0064-data-flows-beside-each-other"
LIMITS: Final = {
    _BURST: Limit(
        "the machine's two cores, which application and gateway share with a database that follows as fast as it can; "
        "what the same posts take to the gateway alone stands below the burst",
        _PROFILE,
    ),
    _BYTES: Limit(
        "copies of the post go to two followers and to the worker, as the other queue has them; rows, which were most "
        "of the published bytes, travel compressed in both",
        _PROFILE,
    ),
    _MACHINES: Limit(
        "Spark's workers: 421 of the 505 µs a post beside the database; the gateway has 76, the queue 478", _PROFILE
    ),
    _PROCESSOR: Limit(
        "seven eighths are the database's, which writes the same rows for both; the published queue had a machine of "
        "its own, which the published triggers saved",
        _PROFILE,
    ),
}
"""By what is judged."""
Row = Mapping[str, Any]


def judgements(runs: Mapping[str, Line]) -> list[Judgement]:
    """Return what is judged; ``runs`` by experiment."""
    return [*_eighty(runs.get("eighty")), *_burst(runs.get("burst")), *_costs(runs.get("saturating")), _complete(runs)]


def _eighty(line: Line | None) -> list[Judgement]:
    response = ("80 % load: longest response, all answered", f"< {RESPONSE_MAX_MS:.0f} ms")
    followers = ("80 % load: median response with 100,000 followers over that with one", f"≤ {FOLLOWERS_RATIO_MAX:.2f}")
    row = of_flow(line, "integrated")
    if line is None or row is None:
        return [Judgement(*words, "", None) for words in (response, followers)]
    rate, lost = row["phases"][0][0], row["failed"] + row["dropped"]
    told = f"{row['max_ms']:,.0f} ms of {row['samples']:,} posts in {row['seconds']:,.0f} s{_first_and_last(row)}"
    if lost:
        told += f"; {row['failed']:,} failed, {row['dropped']:,} dropped"
    met = not lost and row["max_ms"] < RESPONSE_MAX_MS
    judged = [judge(*response, told, line, met=met, limits=LIMITS), _by_followers(followers, line, row)]
    if row["delivered_per_s"] < DELIVERED_SHARE_MIN * rate:
        why_not = f"not sustained: {row['delivered_per_s']:,.0f}/s of {rate:,.0f} were delivered"
        return [one._replace(met=None, why_not=why_not) for one in judged]
    return judged


def _first_and_last(row: Row) -> str:
    """Tell the longest response of the first and of the last minute, where there are two: whether it rises."""
    looks = (look for look in row["over_time"] if len(look) > LONGEST)  # older runs have not noted it
    longest = [(look[0], look[LONGEST]) for look in looks if look[LONGEST] is not None]
    end = max((at for at, _ in longest), default=0.0)
    if end < 2 * MINUTE_S:
        return ""
    first = max(most for at, most in longest if at <= MINUTE_S)
    last = max(most for at, most in longest if at > end - MINUTE_S)
    return f" (first minute {first:,.0f}, last {last:,.0f})"


def _by_followers(words: tuple[str, str], line: Line, row: Row) -> Judgement:
    """Judge by the trend over all posts, and by each class of followers whose posts are enough to tell."""
    trend, classes = row.get("trend"), row["by_class"]
    if trend is None or not classes or classes[0]["low"] != 1:
        return Judgement(*words, "", None)
    base = classes[0]
    above = [one for one in classes[1:] if one["low_ms"] > FOLLOWERS_RATIO_MAX * base["high_ms"]]
    told = f"trend through all posts {trend['factor']:.2f} ({trend['low']:.2f} to {trend['high']:.2f}); medians"
    for one in classes[1:]:
        if one in above or one["low"] >= MANY_FOLLOWERS:
            told += f", {one['p50_ms'] / base['p50_ms']:.2f} of {one['samples']:,} posts to {one['low']:,} or more"
    told = told.removesuffix("; medians").replace("medians,", "medians")
    met: bool | None = None
    if above or trend["low"] > FOLLOWERS_RATIO_MAX:
        met = False
    elif trend["high"] <= FOLLOWERS_RATIO_MAX:
        met = True
    return judge(*words, told, line, met=met, limits=LIMITS)._replace(why_not="too few posts to tell")


def _burst(line: Line | None) -> list[Judgement]:
    whats = (
        ("burst to 200 %: dropped", "0"),
        (_BURST, f"≤ {BURST_RATIO_MAX:.0f}"),
    )
    row = of_flow(line, "integrated")
    if line is None or row is None:
        return [Judgement(*words, "", None) for words in whats]
    lost = row["dropped"] + row["failed"]
    told = f"{lost:,} of {row['measured'] + lost:,}"
    dropped = judge(*whats[0], told, line, met=not lost, limits=LIMITS)
    before, during, *_ = row["by_phase"]
    if not before["samples"] or not during["samples"]:
        return [dropped, Judgement(*whats[1], "", None)]
    ratio = during["p50_ms"] / before["p50_ms"]
    words = f"{ratio:.2f}: {during['p50_ms']:.2f} ms, {before['p50_ms']:.2f} before"
    return [dropped, judge(*whats[1], words, line, met=ratio <= BURST_RATIO_MAX, limits=LIMITS)]


def _costs(line: Line | None) -> list[Judgement]:
    found = []
    for figure, title, most in (("sent_bytes", _BYTES, BYTES_RATIO_MAX), ("cpu_us", _PROCESSOR, PROCESSOR_RATIO_MAX)):
        words = title, f"≤ {most:.2f}"
        ratio = ratio_of(line, figure)
        if line is None or ratio is None:
            found.append(Judgement(*words, "", None))
            continue
        told = f"{ratio.whole:.2f}; {ratio.rest:.2f} without the database's own"
        found.append(judge(*words, told, line, met=ratio.whole <= most, limits=LIMITS))
    return [_machines(line), *found]


def _machines(line: Line | None) -> Judgement:
    words = _MACHINES, f"≤ {MACHINES_RATIO_MAX:.2f}"
    papers = [on_paper(row) for name in ("integrated", "queue") if (row := of_flow(line, name)) is not None]
    if line is None or len(papers) != 2 or papers[0] is None or papers[1] is None:
        return Judgement(*words, "", None)
    ours, theirs = papers[0]["all"], papers[1]["all"]
    told = f"{ours / theirs:.2f} ({ours:.1f} of {theirs:.1f} cores)"
    return judge(*words, told, line, met=ours / theirs <= MACHINES_RATIO_MAX, limits=LIMITS)


def _complete(runs: Mapping[str, Line]) -> Judgement:
    what = "every acknowledged post, as written, in the timeline of each follower, a database node killed"
    rows = [row for line in runs.values() for row in line["rows"]]
    failure = runs.get("failure")
    if not rows:
        return Judgement(what, "all", "", None)
    told = f"in all experiments {_checked(rows)}"
    if failure is not None:
        told = f"{_checked(failure['rows'])}; {told}"
    if not all(row["check"]["complete"] for row in rows):
        return Judgement(what, "all", told, met=False)
    if failure is None or not all(row["killed"] for row in failure["rows"]):
        return Judgement(what, "all", told, None, why_not="no node was killed")
    share = min(share_of(failure, row) for row in failure["rows"])
    if share < FAILURE_SHARE_MIN:
        return Judgement(what, "all", told, None, why_not=f"killed under {share:.0%} of its capacity")
    return judge(what, "all", told, failure, met=True)


def _checked(rows: Sequence[Row]) -> str:
    posts, copies = (sum(row["check"][name] for row in rows) for name in ("posts", "expected"))
    return f"{posts:,} posts, {copies:,} copies"


def of_flow(line: Line | None, architecture: str) -> Row | None:
    """Return the row of a data flow; None where it was not run."""
    return next((row for row in (line or {"rows": ()})["rows"] if row["architecture"] == architecture), None)


def share_of(line: Mapping[str, Any], row: Row) -> float:
    """Return which share of its capacity a data flow was loaded with; 0 where the capacity is not known."""
    capacity = line.get("capacities", {}).get(row["architecture"])
    return float(row["phases"][0][0]) / capacity if capacity else 0.0


def on_paper(row: Row) -> dict[str, float] | None:
    """Return what sixteen cores of database take: posts a second, cores and MB/s of each part; None without costs."""
    cpu, sent = row["cpu_us"], row["sent_bytes"]
    if any(value is None for value in cpu.values()) or not cpu.get("db"):
        return None
    rate = NODES_16 * 1e6 / cpu["db"]
    found = {"rate": rate, **{part: of * rate / 1e6 for part, of in cpu.items() if part != "db"}}
    found["all"] = sum(cpu.values()) * rate / 1e6
    return found | {f"{part} sends": of * rate / 1e6 for part, of in sent.items() if of is not None}


def total(parts: Mapping[str, float | None]) -> float | None:
    """Return the sum over the parts; None where one is not known."""
    known = [value for value in parts.values() if value is not None]
    return sum(known) if len(known) == len(parts) else None


class Ratio(NamedTuple):
    """Integrated over external queue, of a post: all parts, and without the database's own."""

    whole: float
    rest: float


def ratio_of(line: Line | None, figure: str) -> Ratio | None:
    """Return the ratio of ``cpu_us`` or ``sent_bytes`` of a post; None where one is not known."""
    sides = [row[figure] for name in ("integrated", "queue") if (row := of_flow(line, name)) is not None]
    if len(sides) != 2:
        return None
    wholes = [total(parts) for parts in sides]
    rests = [total({part: of for part, of in parts.items() if part != "db"}) for parts in sides]
    if not all((*wholes, *rests)):
        return None
    return Ratio(*(float(mine or 0) / float(other or 1) for mine, other in (wholes, rests)))
