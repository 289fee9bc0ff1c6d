"""What the page says of sustained events: both modes beside the published figures, the recounts, a plot over time.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench.experiments.plot import Curve, Panel, draw
from bench.harness import Line
from bench.pages import Columns, Judgement, figures, header_of, judge, prose, table

TITLES: Final = {"singles": "one by one, 512 outstanding", "ranges": "ranges of 1,024, 4 outstanding"}
TARGETS: Final = {"singles": 20_000, "ranges": 92_600}
"""Events a second, sustained for ten minutes with Spark following."""
WORDS: Final = (
    "Three durable nodes, the load and a Spark job on one machine. Each caller waits for its answer; the job follows "
    "the flow and keeps, for each batch, which events of each caller were in it. In the middle a range of batches is "
    "revoked and computed again beside the live traffic. *Delivered* is all events over the time until the job had "
    "finished the last of them. The job writes a row for each run of a caller's events in a batch, not one for each "
    "event. The recounts account for each single event: in the store's rows, and in the batches as they are read over "
    "HTTP, by a reader that shares with the job only how a key is read and how numbers become runs. One by one means "
    "one session, whose SDK lets events that wait share a request; independent clients are on the [page of "
    "peers](peers.md). `python -m bench.stream`."
)
PUBLISHED: Final = (
    "**Published beside ours.** 8 billion events a day, 92,600/s, over a cluster, none lost or duplicated, a replay "
    "that catches up with the live stream; tens of thousands of messages per second even on a cluster of minimal size. "
    "What differs: theirs were events of production over many machines; ours are events of 200 bytes on one machine "
    "that carries load, nodes, Spark and store, each flushed on a majority before its answer, and de-duplicated by "
    "session and sequence number."
)


def section(runs: Mapping[str, Line]) -> list[str]:
    """Return the paragraphs; ``runs`` by mode."""
    parts = ["## Sustained events", prose(WORDS), prose(PUBLISHED)]
    if not runs:
        return [*parts, prose("Not measured yet.")]
    parts.append("![Events a second and items behind, over time](experiments-stream.svg)")
    for mode, title in TITLES.items():
        if mode in runs:
            line, row = runs[mode], runs[mode]["rows"][0]
            parts += [
                f"### Events, {title}",
                header_of(line),
                figures(FIGURES, {**row, "store": line["store"]}),
                _recounts(row),
                prose(_replay(row)),
            ]
    return parts


def judgements(runs: Mapping[str, Line]) -> list[Judgement]:
    """Return what is judged; ``runs`` by mode."""
    found = []
    for mode, wanted in TARGETS.items():
        what, words = f"events {TITLES[mode]}: delivered/s, none lost or twice", f"≥ {wanted:,}"
        if mode not in runs:
            found.append(Judgement(what, words, "", None))
            continue
        row = runs[mode]["rows"][0]
        met = row["delivered_per_s"] >= wanted and row["exact"]
        lost = "" if row["exact"] else ", **not exact**"
        reached = f"{row['delivered_per_s']:,.0f} for {row['seconds']:,.0f} s{lost}"
        found.append(judge(what, words, reached, runs[mode], met=met))
    return found


FIGURES: Final[Columns] = {
    "events, seconds": "{events:,} in {seconds:,.0f} s",
    "acknowledged/s": "{events_per_s:,.0f}",
    "delivered/s": "{delivered_per_s:,.0f}",
    "least acknowledged/s in a step of the plot, under load": lambda row: f"{_least(row):,.0f}",
    "published/s, a cluster": "92,600",
    "p50, p99, max, ms": "{p50_ms:.2f}, {p99_ms:.2f}, {max_ms:.1f} of {samples:,}",
    "longest time without an answer, ms": "{stall_ms:,.0f}",
    "processor time an event, µs": "nodes {nodes_cpu_us:.1f}, Spark {spark_cpu_us:.1f}, client {client_cpu_us:.1f}",
    "largest lag of the job, events": "{lag_max:,}",
    "caught up after the last event, s": "{caught_up_s:.1f}",
    "store": "{store}",
}


def _least(row: Mapping[str, Any]) -> float:
    return min((rate for at, rate, _ in row["over_time"] if at <= row["seconds"]), default=0.0)


def _recounts(row: Mapping[str, Any]) -> str:
    head = ("recount", "acknowledged", "found", "lost", "twice", "unknown")
    rows = []
    for title, key in (("the job's rows", "rows"), ("batches", "batches")):
        found = row[key]
        bold = [f"**{found[name]:,}**" if found[name] else "0" for name in ("lost", "twice", "unknown")]
        what = title if key == "rows" else f"{title} {found['first']:,} to {found['last']:,}"
        rows.append((what, f"{found['acknowledged']:,}", f"{found['found']:,}", *bold))
    return table(head, rows)


def _replay(row: Mapping[str, Any]) -> str:
    replay = row["replay"]
    beside = "beside the live traffic" if replay["beside_load"] else "**after** the traffic had ended"
    first = replay.get("first", 1)
    last = first + replay["batches"] - 1
    ended = "" if replay["status"] == 0 else f" **It ended with status {replay['status']}.**"
    return (
        f"Replayed: batches {first:,} to {last:,}, in {replay['seconds']:.1f} s, {beside}; the recount is of what "
        f"stood in the tables afterwards.{ended}"
    )


def drawing(runs: Mapping[str, Line]) -> str | None:
    """Return the plot over time of both modes; None without any."""
    panels = []
    for mode, title in TITLES.items():
        if mode not in runs:
            continue
        row = runs[mode]["rows"][0]
        over, replay = row["over_time"], row["replay"]
        end = max((at for at, _, _ in over), default=0.0)
        spans = [(replay["from_s"], min(replay.get("until_s", end), end))] if replay["from_s"] < end else []
        panels += [
            Panel(f"Events/s, {title}", [Curve("acknowledged", [(at, rate) for at, rate, _ in over])], faults=spans),
            Panel(f"Events behind, {title}", [Curve("Spark job", [(at, lag) for at, _, lag in over])], faults=spans),
        ]
    return draw("Events over time; the replay is shaded", panels) if panels else None
