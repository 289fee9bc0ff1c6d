"""What the page says of the three data flows: each experiment beside published figures, and plots over time. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from bench.dataflows import published
from bench.dataflows.app import UNDER_WAY_MAX
from bench.dataflows.architectures import TITLES
from bench.dataflows.priority import NICE
from bench.dataflows.targets import NODES_16, on_paper, ratio_of, share_of, total
from bench.dataflows.writers import INTERVAL_MS
from bench.experiments.plot import Curve, Panel, draw
from bench.harness import Line
from bench.pages import Columns, cells, drawn, header_of, prose, table

PARTS: Final = ("app", "workers", "queue", "db")
HEADINGS: Final = {
    "saturating": "Saturating",
    "sustained": "Posts one by one: what is sustained",
    "eighty": "At 80 % of what is sustained",
    "burst": "A burst: 50 %, 200 %, 50 %",
    "failure": "A database node dies",
    "scaling": "One, two and three database nodes on the same cores",
}
LACKS: Final = {
    "missing": "missing",
    "twice": "twice",
    "unknown": "unknown",
    "wrong": "with another author or text",
    "no_tweet": "posts without their tweet",
}
"""What a complete check may find, and how it is told."""
WORDS: Final = (
    "A post of about 200 bytes is copied to the timelines of all followers of its author; followers obey a power law. "
    "*Synchronous*: the application writes all copies into Cassandra before it answers. *External queue*: it writes "
    "the post into Cassandra and, at the same time, into NATS JetStream, which a worker drains. *Integrated*: it "
    "writes the post into the gateway, and a Spark job follows. All three make the same rows with the same code, and "
    "write them with the same store into the same Cassandra; posts that wait for the store at the same time share a "
    f"call in each of them, and whoever drains a queue looks at it every {INTERVAL_MS / 1000:g} s. In all three the "
    f"database and the workers have a lower priority (nice {NICE}) than application and queue, in place of machines of "
    "their own, though in the first two an answer waits for the database. *Delivered* is all posts over the time until "
    "the last copy was written. The three take turns in being first. After each run every acknowledged post is looked "
    "for in the timeline of every follower; the key of a copy is reader and post, so a copy that is written again "
    "replaces itself, in all three. Memory is what is resident, shared pages counted in each process. `python -m "
    "bench.dataflows`."
)


def section(runs: Mapping[str, Line]) -> list[str]:
    """Return the paragraphs; ``runs`` by experiment."""
    parts = ["## Three data flows over one Cassandra", prose(WORDS), prose(published.DIFFERS)]
    if not runs:
        return [*parts, prose("Not measured yet.")]
    if drawing(runs) is not None:
        parts.append("![Accepted posts a second and response times over time](experiments-dataflows.svg)")
    for experiment, heading in HEADINGS.items():
        parts.append(f"### {heading}")
        if experiment not in runs:
            parts.append(prose("Not measured yet."))
            continue
        line = runs[experiment]
        rows: list[dict[str, Any]] = line["rows"]
        parts += [header_of(line), _rates(rows, published.FIGURES.get(experiment, {})), *_incomplete(rows)]
        if experiment in CONDITIONS:
            parts.append(prose(CONDITIONS[experiment](line)))
        parts.append(_costs(rows))
        if experiment == "saturating":
            parts += [prose(f"{_ratio(line)} {_published_ratio()}"), _published_costs()]
            parts += [prose(_on_paper_words()), _on_paper(rows)]
        if experiment == "eighty":
            parts += ["Median response time by followers of the author, ms, with posts:", _followers(rows)]
        if experiment == "burst":
            parts += [prose(_burst(rows)), prose(of_the_gateway_alone(line))]
    return parts


RATES: Final[Columns] = {
    "": lambda row: TITLES[row["architecture"]],
    "nodes": "{nodes}", "posts": "{measured:,}", "seconds": "{seconds:,.1f}", "accepted/s": "{accepted_per_s:,.0f}",
    "delivered/s": "{delivered_per_s:,.0f}", "copies a post": "{rows_per_post:.1f}",
    "median ms": lambda row: _ms(row["p50_ms"]), "stddev": lambda row: _ms(row["stddev_ms"]),
    "p99": lambda row: _ms(row["p99_ms"]), "max": lambda row: _ms(row["max_ms"]),
    "dropped": "{dropped:,}", "failed": "{failed:,}", "missing": lambda row: _missing(row["check"]),
}  # fmt: skip


def _rates(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, tuple[float, float, float, float]]) -> str:
    if not figures:
        return drawn(RATES, rows)
    published_cells = {name: [f"{rate:,}", *map(_ms, times)] for name, (rate, *times) in figures.items()}
    head = [*RATES, "published: msg/s", "median ms", "stddev", "max"]
    return table(head, ([*cells(RATES, row), *published_cells[row["architecture"]]] for row in rows))


def _missing(check: Mapping[str, Any]) -> str:
    missing = sum(check.get(name, 0) for name in LACKS)
    return f"**{missing:,}**" if missing else "0"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def _incomplete(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    words = []
    for row in rows:
        found = row["check"]
        if not found["complete"]:
            lacks = ", ".join(f"{found[name]:,} {said}" for name, said in LACKS.items() if name in found)
            words.append(
                f"{TITLES[row['architecture']]}, {row['nodes']} nodes: of {found['expected']:,} copies {lacks}"
            )
    if words:
        return [prose(f"**Not complete: {'; '.join(words)}.**")]
    posts, copies = (sum(row["check"][name] for row in rows) for name in ("posts", "expected"))
    # Checks of older runs looked at reader and message only.
    whole = ", as it was written, and every tweet" if all("wrong" in row["check"] for row in rows) else ""
    return [prose(f"Complete: {posts:,} acknowledged posts, {copies:,} copies, each there{whole}.")]


def _costs(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["a post", *(f"{part}, µs" for part in PARTS), "all, µs", *(f"{part} sends, bytes" for part in PARTS), "all",
            *(f"{part}, MiB" for part in PARTS)]  # fmt: skip
    found = []
    for row in rows:
        cpu, sent, memory = row["cpu_us"], row["sent_bytes"], row["memory_mib"]
        cells = [TITLES[row["architecture"]], *(_count(cpu.get(part)) for part in PARTS), _count(total(cpu))]
        cells += [*(_count(sent.get(part)) for part in PARTS), _count(total(sent))]
        found.append([*cells, *(_count(memory.get(part)) for part in PARTS)])
    return table(head, found)


def _published_costs() -> str:
    head = ("published, two nodes", "CPU % of the app's machine", "of the queue's", "of each of the two of db",
            "app, MB/s", "queue, MB/s", "db, MB/s")  # fmt: skip
    parts = ("app", "queue", "db")
    return table(head, (
        [title, *(_count(published.CPU[name][part], 1) for part in parts),
         *(_count(published.NETWORK[name][part], 2) for part in parts)]
        for name, title in TITLES.items()
    ))  # fmt: skip


def _count(value: float | None, decimals: int = 0) -> str:
    return "-" if value is None else f"{value:,.{decimals}f}"


def _ratio(line: Line) -> str:
    words = []
    for figure, title in (("cpu_us", "processor time"), ("sent_bytes", "bytes sent")):
        found = ratio_of(line, figure)
        if found is None:
            words.append(f"{title}: not measured")
            continue
        words.append(f"{title} {found.whole:.2f}, {found.rest:.2f} without the database's own")
    return f"Integrated over external queue, of a post: {'; '.join(words)}."


def _followers(rows: Sequence[Mapping[str, Any]]) -> str:
    bounds = sorted({(one["low"], one["high"]) for row in rows for one in row["by_class"]})
    head = ["", *(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in bounds)]
    found = []
    for row in rows:
        by_class = {(one["low"], one["high"]): f"{_ms(one['p50_ms'])} of {one['samples']:,}" for one in row["by_class"]}
        found.append([TITLES[row["architecture"]], *(by_class.get(one, "-") for one in bounds)])
    return table(head, found)


def _published_ratio() -> str:
    """Return the same ratios of the published figures: sums over all machines."""
    return (
        "Published, sums over all machines at 1,290 messages a second with two database nodes: processor time "
        f"{published.cpu_ratio():.2f}, bytes {published.bytes_ratio():.2f}; with sixteen {published.CPU_RATIO_16:.2f} "
        f"and {published.bytes_ratio(published.NETWORK_16):.2f}, machines {published.machines_ratio():.2f} (18 of 21). "
        "Published processor figures are the average load of one machine of a part."
    )


def _burst(rows: Sequence[Mapping[str, Any]]) -> str:
    words = []
    for row in rows:
        phases = ", ".join(f"{_ms(one['p50_ms'])} and {_ms(one['p99_ms'])}" for one in row["by_phase"])
        words.append(
            f"{TITLES[row['architecture']]} dropped {row['dropped']:,}, median and 99th percentile of the posts due in "
            f"each phase {phases} ms, took everything {row['delivered_after_s']:,.1f} s after the last answer"
        )
    published_words = (
        "Published: both asynchronous ones took all 2,600 msg/s with flat response times; synchronous dropped."
    )
    return f"{'; '.join(words)}. {published_words}"


def of_the_gateway_alone(line: Mapping[str, Any]) -> str:
    """Tell what the integrated flow's posts took without Spark and database beside the gateway."""
    found = line.get("alone")
    if found is None:
        return "The same posts to the gateway alone: not measured."
    phases = ", ".join(f"{_ms(one['p50_ms'])} and {_ms(one['p99_ms'])}" for one in found["by_phase"])
    return (
        "The integrated flow's posts to the gateway alone, without Spark and database beside it: median and 99th "
        f"percentile in each phase {phases} ms, {found['busy_cores']:.2f} of {line['cores']} cores busy; µs of "
        f"processor time a post: app {found['cpu_us']['app']:,.0f}, gateway {found['cpu_us']['queue']:,.0f}."
    )


def _loaded(line: Mapping[str, Any]) -> str:
    """Name the rates, and what they are shares of."""
    rates = [
        f"{TITLES[row['architecture']]} {', then '.join(f'{rate:,.0f}' for rate, _ in row['phases'])}"
        for row in line["rows"]
    ]
    capacities = [f"{TITLES[name]} {found:,.0f}" for name, found in line.get("capacities", {}).items()]
    of = f" Capacities, {_capacities_of(line)}: {', '.join(capacities)}." if capacities else ""
    told = "; ".join(dict.fromkeys(rates))
    return f"Posts a second: {told}.{of} A post that comes when {UNDER_WAY_MAX:,} are under way is dropped."


def _capacities_of(line: Mapping[str, Any]) -> str:
    """Name what the capacities of a line are; older ones were all those of the saturating run."""
    return str(line.get("capacities_of", "delivered while saturating"))


def _died(line: Mapping[str, Any]) -> str:
    row = line["rows"][0]
    happened = (
        f"One was killed after {row['kill_s']:.0f} s and started again after {row['restart_s']:.0f} s. "
        if all(one["killed"] for one in line["rows"])
        else "**Not in every run was one killed.** "
    )
    return (
        f"{row['nodes']} database nodes on one machine with {row['replicas']} copies of each row, so each copy is "
        f"written as often. {happened}{_loaded(line)} {_shares(line)} Published: four nodes, each a machine, "
        "1,000 messages a second, one killed after 60 s and started again 30 s later; each acknowledged post "
        "looked for in each timeline."
    )


def _shares(line: Mapping[str, Any]) -> str:
    shares = (f"{TITLES[row['architecture']]} {share_of(line, row):.0%}" for row in line["rows"])
    return f"Shares of these capacities: {', '.join(shares)}."


def _scaled(line: Mapping[str, Any]) -> str:
    return (
        f"All database nodes share the {line['cores']} cores of one machine with everything else: a further one adds a "
        "process and a log, and no processor. This does not show how a flow scales. Published: throughput linear in "
        "the number of nodes, each a machine, at constant response time."
    )


CONDITIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "sustained": _loaded,
    "eighty": _loaded,
    "burst": _loaded,
    "failure": _died,
    "scaling": _scaled,
}
"""What was done to the data flows, by experiment."""


def _on_paper_words() -> str:
    return (
        f"**{NODES_16} cores of database, on paper.** From the cost of a post: the "
        f"cores that the other parts take beside {NODES_16} cores of database that are always busy. Nothing but "
        "arithmetic: it assumes that the cost of a post stays as it is and that nothing else becomes a limit. The "
        "published table counts machines."
    )


def _on_paper(rows: Sequence[Mapping[str, Any]]) -> str:
    others = [part for part in PARTS if part != "db"]
    head = ("", "posts/s", *(f"cores of {part}" for part in others), "cores of all",
            *(f"{part}, MB/s" for part in PARTS), "published: machines", "MB/s of app, queue, db")  # fmt: skip
    found = []
    for row in rows:
        name, paper, net = row["architecture"], on_paper(row) or {}, published.NETWORK_16[row["architecture"]]
        theirs = ", ".join(_count(net[part], 1) for part in ("app", "queue", "db"))
        cells = [_count(paper.get("rate")), *(_count(paper.get(part), 1) for part in (*others, "all")),
                 *(_count(paper.get(f"{part} sends"), 1) for part in PARTS)]  # fmt: skip
        found.append((TITLES[name], *cells, f"{published.MACHINES_16[name]}", theirs))
    return table(head, found)


def drawing(runs: Mapping[str, Line]) -> str | None:
    """Return the plot over time of the loads; None without any."""
    panels = []
    for experiment in ("eighty", "burst", "failure"):  # saturating is over in a second where the copies follow later
        if experiment not in runs:
            continue
        rows = runs[experiment]["rows"]
        faults = [(row["kill_s"], row["restart_s"]) for row in rows[:1] if row["killed"]]
        rates = [Curve(TITLES[row["architecture"]], accepted(row["over_time"])) for row in rows]
        times = [
            Curve(TITLES[row["architecture"]], [(at, p50) for at, _, p50, *_ in row["over_time"] if p50 is not None])
            for row in rows
        ]
        panels.append(Panel(f"{HEADINGS[experiment]}: answers/s", rates, faults=faults))
        panels.append(Panel(f"{HEADINGS[experiment]}: median response, ms", times, log=True, faults=faults))
    return draw("Three data flows", panels) if panels else None


def accepted(over_time: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return answers a second since the look before, at each look."""
    return [
        (now[0], (now[1] - then[1]) / (now[0] - then[0]))
        for then, now in itertools.pairwise(over_time)
        if now[0] > then[0]
    ]
