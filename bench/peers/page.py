"""The results page, drawn from what a run has stored: targets, ratios, rates, latencies, costs, kills, settings.

Owns: what the page says. All numbers come from ``bench/results/peers.jsonl`` (the last whole run) and from the last
line of ``dedup.jsonl``. Pure but for :func:`write`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench import pages
from bench.harness import RESULTS, best, stored
from bench.pages import prose, table
from bench.peers import plot
from bench.peers.ratios import Key, Run, Spread, runs, told
from bench.peers.systems import LABELS, PEERS
from bench.peers.targets import OURS, judge, of_dedup
from oncegate.proof.check.report import page as checker_page

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
STYLE: Final = Path(checker_page.__file__).parent / "assets" / "plot.css"
COLUMNS: Final = (1, 64, 512)
MANY: Final = "many"
EACH: Final = {"batches": 100, "ranges": 1_024}
"""Writes whose answers come together: one sample of a latency."""
SAMPLES_OF_P999: Final = 3_000
"""With fewer the value is that of the slowest one or two."""
COMPARED: Final = {
    "sdk": (("etcd", "txn"), ("nats", "sync"), ("zookeeper", "create"), ("kafka", "batch"), ("restate", "put")),
    "rotating": (("etcd", "txn"), ("nats", "sync"), ("zookeeper", "create"), ("kafka", "batch"), ("restate", "put")),
    "key": (("etcd", "txn"), ("nats", "sync"), ("zookeeper", "create"), ("kafka", "single"), ("restate", "put")),
    "session": (("etcd", "txn"), ("nats", "sync"), ("zookeeper", "create"), ("kafka", "single"), ("restate", "put")),
}
"""What a load of ours stands beside in the table of ratios: Kafka with one producer, or with one a caller."""
OF_MANY: Final = (("nats", "async", 4096), ("kafka", "async", 4096))


def is_whole(about: Mapping[str, Any]) -> bool:
    """Whether a run had all systems, all their loads, and kills, and is no sample."""
    everything = set(about["systems"]) == {peer.name for peer in PEERS} and not about["only"] and about["kills"] > 0
    return everything and not about.get("quick", False)


def write() -> Path:
    """Write the page and its plot from the last whole run; returns the page's path.

    Raises:
        LookupError: there is no such run.
    """
    run = last_whole((RESULTS / "peers.jsonl").read_text())
    dedup = best(stored("dedup"), "bench")["dedup"]
    target = DOCS / "peers.md"
    target.write_text(render(run, dedup))
    (DOCS / "peers.svg").write_text(drawing(run))
    return target


def last_whole(text: str) -> Run:
    """Return the last run in the lines of a results file that is over and has everything.

    Raises:
        LookupError: there is none.
    """
    parts = [json.loads(line) for line in text.splitlines()]
    whole = [run for run in runs(part for part in parts if is_whole(part)) if run.kills]
    if not whole:
        raise LookupError("no whole run is stored: python -m bench.peers")
    return whole[-1]


def drawing(run: Run) -> str:
    """Return the plot as SVG."""
    by_column: dict[str, list[plot.Bar]] = {}
    for key in run.loads():
        spread = Spread.of(run.figure(key, "rate").values())
        if spread is not None:
            bar = plot.Bar(LABELS[key.peer, key.mode], spread, key.peer == OURS)
            by_column.setdefault(_column(key), []).append(bar)
    panels = [
        plot.Panel(f"{name} outstanding, writes/s", by_column[name])
        for name in (*map(str, COLUMNS), MANY)
        if name in by_column
    ]
    return plot.draw("Acknowledged writes a second, three flushed nodes", panels, STYLE.read_text().strip())


def render(run: Run, dedup: Mapping[str, Any] | None) -> str:
    """Return the page in Markdown."""
    judgements = [*judge(run, disturbed=len(run.disturbed) == len(run.rounds)), *of_dedup(dedup)]
    parts = [
        "# Beside other systems",
        prose(
            "Drawn by `make bench-peers` from [raw data](../bench/results/peers.jsonl): change nothing here by hand. "
            "Three nodes of each system on one machine, each write flushed before its answer, values of 200 bytes, "
            "every key new, closed loop, the load on the same cores. In each round every system runs on a fresh "
            "cluster, in turn; a ratio is formed within a round. A write counts if its answer came inside the window. "
            "Numbers are medians, with the smallest and greatest of the rounds in parentheses."
        ),
        _machine(run),
        *_disturbed(run),
        *_failed(run),
        "## Targets",
        prose("Ratios of writes a second where nothing else is said, judged by their median; gaps by the longest one."),
        pages.verdicts(judgements),
        *pages.missed(judgements),
        *_about_dedup(dedup),
        "## Writes a second",
        "![Writes a second, a panel for each number of outstanding writes](peers.svg)",
        _rates(run),
        "## oncegate over each system",
        prose("Ratios of writes a second, round by round. **Bold: the other system is ahead.**"),
        _ratios(run),
        "## Latency, milliseconds",
        _latencies(run),
        "## What a write costs",
        prose(
            "Microseconds of processor time, and bytes that the file systems were asked to write, for each write: the "
            "three servers together; the client beside them. Restate's client includes the process with its handler."
        ),
        _costs(run),
        "## The leader is killed",
        _kills(run),
        "## What was compared",
        *map(prose, WORDS),
        _settings(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


WORDS: Final = (
    "**These are different promises.** oncegate and Restate remember the answer to a request; etcd's transaction and "
    "ZooKeeper's names keep a record that somebody has to delete; NATS forgets ids after two minutes; Kafka knows the "
    "retries of one living producer, no key of the application. etcd's plain put is not duplicate-safe and stands here "
    "as the measure of what a transaction costs it.",
    "**Who shares requests.** Through the SDK all outstanding writes belong to one client and one session, and travel "
    "together; so do those of Kafka's one producer, and NATS, etcd and ZooKeeper share three connections among all "
    "callers. *Independent* means one request for each write, no caller knows of another, through the Go standard "
    "library's HTTP client: with an `Idempotency-Key`, or each caller in a session of its own.",
    "**Which node is asked.** Clients of etcd, NATS, ZooKeeper and Restate, and the independent ones of oncegate, take "
    "the nodes in turn; Kafka's and oncegate's SDK ask the leader. *Nodes in turn* is the SDK without that.",
    "**Many** is 4,096 messages outstanding of one NATS or Kafka publisher, and 4,096 records in four ranges of 1,024, "
    "or 800 writes in eight batches of 100, of one oncegate client.",
    "**Languages.** The generator is written in Go, the SDK in Python; both run on the cores of the servers, so a "
    "cheaper client raises its system's rate. Before the first window ZooKeeper was under load for 6 s, Kafka "
    "for 6 s of each of its two ways, others for 2 to 3 s. Settings are the defaults but for what the table says; "
    "nobody tuned any system, oncegate included.",
)


def _machine(run: Run) -> str:
    about = run.about
    calibrations = [
        f"{told(Spread.of(one[name] for one in run.rounds), decimals)} {unit}"
        for name, decimals, unit in (
            ("fdatasync_4k_ms", 3, "ms for `fdatasync` of 4 KiB"),
            ("bare_posts_per_s", 0, "bare aiohttp POSTs/s"),
        )
    ]
    seconds = f"windows of {about['measured_s']:g} s after {about['warm_s']:g} s"
    return prose(
        f"Commit {about['commit']}, {about['run']}, {about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, "
        f"Python {about['python']}, seed {about['seed']}. Rounds: {len(run.rounds)}; {seconds}; run again: "
        f"{run.repeated}. "
        f"Calibrations of the rounds: {', '.join(calibrations)}."
    )


def _disturbed(run: Run) -> list[str]:
    if not run.disturbed:
        return [prose("No round that counts was disturbed.")]
    what = "; ".join(f"round {one['round']}, {one['disturbed']}" for one in run.disturbed)
    count = f"{len(run.disturbed)} of {len(run.rounds)}"
    return [prose(f"**Something else had the machine in {count} rounds that count: {what}. Trust no figure of them.**")]


def _failed(run: Run) -> list[str]:
    """Name what ended without a result: a gap in a table must have a reason."""
    named = dict.fromkeys(f"{LABELS[row['peer'], row['mode']]}, {row['outstanding']}" for row in run.failed)
    return [prose(f"**Without a result, in some round or under kills: {'; '.join(named)}.**")] if named else []


def _about_dedup(dedup: Mapping[str, Any] | None) -> list[str]:
    if dedup is None:
        return []
    where = f"commit {dedup['commit']}, `fdatasync` {dedup['fdatasync_4k_ms']:.3f} ms"
    return [prose(f"Duplicate detection is measured by `python -m bench.dedup` ({where}); spread: its middle rounds.")]


def _rates(run: Run) -> str:
    rows = []
    for peer, mode in dict.fromkeys((key.peer, key.mode) for key in run.loads()):
        cells = dict.fromkeys((*map(str, COLUMNS), MANY), "")
        for key in run.loads():
            if (key.peer, key.mode) == (peer, mode):
                cells[_column(key)] = told(Spread.of(run.figure(key, "rate").values()), 0)
        rows.append((LABELS[peer, mode], *cells.values()))
    return table(("outstanding", *map(str, COLUMNS), MANY), rows)


def _ratios(run: Run) -> str:
    titles = {peer.name: peer.title for peer in PEERS}
    rows = []
    for mode, others in COMPARED.items():
        for count in COLUMNS:
            cells = []
            for peer, their_mode in others:
                # One producer with one write under way is one producer a caller.
                theirs = "single" if (their_mode, count) == ("batch", 1) else their_mode
                cells.append(_ratio(run, Key(OURS, mode, count), Key(peer, theirs, count)))
            rows.append((f"{LABELS[OURS, mode]}, {count}", *cells))
    ranges = {peer: _ratio(run, Key(OURS, "ranges", 4096), Key(peer, mode, n)) for peer, mode, n in OF_MANY}
    rows.append((f"{LABELS[OURS, 'ranges']}, {MANY}", *(ranges.get(peer, "") for peer, _ in COMPARED["sdk"])))
    return table(("", *(titles[peer] for peer, _ in COMPARED["sdk"])), rows)


def _ratio(run: Run, ours: Key, other: Key) -> str:
    spread = run.ratio(ours, (other,), "rate", max)
    text = told(spread, 2)
    return f"**{text}**" if spread is not None and spread.median < 1 else text


def _latencies(run: Run) -> str:
    names = ("p50_ms", "p99_ms", "p999_ms", "max_ms")
    rows = []
    for key in run.loads():
        found = [run.figure(key, name).values() for name in names]
        if not found[0]:
            continue
        middles = [f"{statistics.median(of):,.2f}" for of in found[:3]]
        least = min(run.figure(key, "operations").values()) // EACH.get(key.mode, 1)
        if least < SAMPLES_OF_P999:
            middles[2] = "-"
        row = (f"{LABELS[key.peer, key.mode]}, {key.outstanding:,}", f"{least:,.0f}", *middles, f"{max(found[3]):,.1f}")
        rows.append(row)
    return table(("", "samples, least of the rounds", "p50", "p99", "p99.9", "max of all rounds"), rows)


def _costs(run: Run) -> str:
    rows = []
    for key in run.loads():
        cells = [
            told(Spread.of(run.figure(key, name).values()), decimals)
            for name, decimals in (("servers_cpu_us", 1), ("clients_cpu_us", 1), ("servers_written_bytes", 0))
        ]
        errors = sum(run.figure(key, "errors").values())
        rows.append((f"{LABELS[key.peer, key.mode]}, {key.outstanding:,}", *cells, f"{errors:,.0f}" if errors else ""))
    return table(("", "servers, µs", "client, µs", "servers write, bytes", "errors"), rows)


def _kills(run: Run) -> str:
    rows = []
    for row in run.kills:
        gaps = sorted(row["gaps_s"])
        if not gaps:
            rows.append((LABELS[row["peer"], row["mode"]], "failed", "", "", ""))
            continue
        lost = f"**{row['lost']:,}**" if row["lost"] else "0"
        each = ", ".join(f"{gap:.2f}" for gap in gaps)
        title = LABELS[row["peer"], row["mode"]]
        rows.append((title, f"{statistics.median(gaps):.2f}", each, f"{row['acknowledged']:,}", lost))
    words = prose(
        "64 callers write, the leader's process is killed with SIGKILL, comes back on its data and catches up; the "
        "longest time without any acknowledgement, in seconds. At the end everything acknowledged is read back. "
        "The page cache outlives a kill: lost writes would be the protocol's fault; a missing flush would not show. "
        "Time-outs of elections are the defaults."
    )
    return words + "\n\n" + table(("", "median gap", "each", "acknowledged", "of these lost"), rows)


def _settings(run: Run) -> str:
    rows = []
    for peer in PEERS:
        version = run.about["systems"].get(peer.name, peer.version)
        settings = "; ".join(f"{name}: {value}" for name, value in peer.settings.items())
        rows.append((f"{peer.title} {version}", settings, peer.duplicates))
    return table(("system", "settings", "what keeps a repeated write from being done twice"), rows)


def _column(key: Key) -> str:
    return str(key.outstanding) if key.outstanding in COLUMNS else MANY
