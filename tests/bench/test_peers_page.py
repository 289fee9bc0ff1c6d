"""The results page says what the stored run says, the losses too."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench.harness import best
from bench.harness import stored as stored_runs
from bench.peers import page
from bench.peers.peer import Case
from bench.peers.ratios import Run
from bench.peers.systems import LABELS, PEERS

RATES = {
    ("oncegate", "sdk"): 20_000.0,
    ("oncegate", "ranges"): 90_000.0,
    ("kafka", "async"): 180_000.0,
    ("nats", "sync"): 8_000.0,
    ("zookeeper", "create"): 25_000.0,
}


def row(peer: str, case: Case, number: int) -> dict[str, Any]:
    rate = RATES.get((peer, case.mode), 5_000.0) * (1 + number / 10)
    times = {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0, "max_ms": 4.0 + number}
    costs = {"servers_cpu_us": 100.0, "clients_cpu_us": 10.0, "servers_written_bytes": 900.0}
    what = {"peer": peer, "mode": case.mode, "outstanding": case.outstanding}
    return {**what, **times, **costs, "rate": rate, "operations": 1_000, "errors": 0, "disturbed": None}


def stored(run: str, *, kills: int = 3, lost: int = 0, disturbed: str | None = None) -> list[dict[str, Any]]:
    about = {
        "run": run, "commit": "abc1234", "cpu": "a processor", "cores": 2, "kernel": "6.1", "python": "3.11",
        "systems": {peer.name: peer.version for peer in PEERS}, "kills": kills, "only": [],
        "measured_s": 2.0, "warm_s": 0.7, "seed": 1,
    }  # fmt: skip
    parts: list[dict[str, Any]] = []
    for number in (1, 2, 3):
        rows = [row(peer.name, case, number) for peer in PEERS for case in peer.cases]
        round_ = {"part": "round", "round": number, "attempt": 1, "disturbed": disturbed if number == 2 else None}
        parts.append({**about, **round_, "fdatasync_4k_ms": 0.2, "bare_posts_per_s": 8_000.0, "rows": rows})
    gaps = {"oncegate": [0.1, 0.12, 0.09]}
    rows = [
        {"peer": peer.name, "mode": peer.kill_case.mode, "gaps_s": gaps.get(peer.name, [1.5, 1.6, 1.7]),
         "acknowledged": 1_000, "lost": lost if peer.name == "oncegate" else 0}
        for peer in PEERS
    ]  # fmt: skip
    return [*parts, {**about, "part": "kills", "rows": rows}]


def lines(text: str, begins: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {begins}"))


def test_wins_and_losses_stand_in_one_table_and_losses_are_marked() -> None:
    text = page.render(Run(stored("r")), None)
    ratios = text.split("## oncegate over each system")[1]
    ours = lines(ratios, "oncegate, SDK, 64")
    assert "2.50 (2.50\N{EN DASH}2.50)" in ours
    assert "**0.80 (0.80\N{EN DASH}0.80)**" in ours
    assert "**NO**" in lines(text, "ranges of 1,024, 4,096 records outstanding against Kafka")
    assert "| yes |" in lines(text, "leader killed: longest gap, s")


def test_lost_acknowledgements_are_told() -> None:
    kills = page.render(Run(stored("r", lost=2)), None).split("## The leader is killed")[1]
    assert lines(kills, "oncegate, SDK").endswith("| **2** |")
    assert lines(kills, "etcd transaction").endswith("| 0 |")


def test_a_disturbed_round_that_counts_is_told_at_the_top() -> None:
    text = page.render(Run(stored("r", disturbed="during a load: 5.0% of the time stolen")), None)
    assert "round 2, during a load: 5.0% of the time stolen" in text.replace("\n", " ").split("## Targets")[0]
    assert "| yes |" in text.split("## Writes a second")[0]
    whole = [{**part, "disturbed": "steal"} for part in stored("r")]
    targets = page.render(Run(whole), None).split("## Targets")[1].split("## Writes")[0]
    assert "| disturbed |" in targets
    assert "| yes |" not in targets
    assert "NO" not in targets
    assert "No round that counts was disturbed." in page.render(Run(stored("r")), None)


def test_what_failed_is_named_and_leaves_the_rest_standing() -> None:
    parts = stored("r")
    broken = {"peer": "kafka", "mode": "single", "outstanding": 512, "failed": "no result", "disturbed": None}
    for part in parts[:3]:
        part["rows"] = [
            broken if row["mode"] == "single" and row["outstanding"] == 512 else row for row in part["rows"]
        ]
    parts[3]["rows"][1] = {"peer": "etcd", "mode": "txn", "outstanding": 64, "gaps_s": [], "failed": "no leader"}
    text = page.render(Run(parts), None)
    assert "Kafka, a producer a caller, 512; etcd transaction, 64." in text.replace("\n", " ")
    assert "| failed |" in lines(text.split("## The leader is killed")[1], "etcd transaction")
    assert page.drawing(Run(parts))


def test_duplicate_detections_cost_is_that_of_its_own_bench() -> None:
    ratio = {"ratio": 0.9, "quartile_low": 0.8, "quartile_high": 1.0, "met": False}
    dedup = {"commit": "fff", "fdatasync_4k_ms": 0.1, "rows": [{"what": "throughput, 512 outstanding", **ratio}]}
    text = page.render(Run(stored("r")), dedup)
    found = lines(text, "duplicate detection on against off: throughput")
    assert "0.900 (0.800\N{EN DASH}1.000)" in found
    assert "**NO**" in found
    assert "not measured" in lines(text, "duplicate detection on against off: latency")


def test_every_load_of_every_system_has_a_label_and_stands_on_the_page() -> None:
    assert set(LABELS) == {(peer.name, case.mode) for peer in PEERS for case in peer.cases}
    text = page.render(Run(stored("r")), None)
    assert all(f"| {label}" in text for label in LABELS.values())


def test_prose_of_the_page_ends_at_120_columns_and_tables_have_equal_rows() -> None:
    text = page.render(Run(stored("r", disturbed="x")), {"commit": "f", "fdatasync_4k_ms": 0.1, "rows": []})
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_a_quantile_of_too_few_writes_is_not_told() -> None:
    parts = stored("r")
    for row_ in (row_ for part in parts[:3] for row_ in part["rows"]):
        row_["operations"] = 2_000 if row_["peer"] == "restate" else 50_000
    latencies = page.render(Run(parts), None).split("## Latency")[1]
    assert lines(latencies, "Restate, idempotency key, 1").endswith("| 2,000 | 1.00 | 2.00 | - | 7.0 |")
    assert lines(latencies, "etcd transaction, 64").endswith("| 50,000 | 1.00 | 2.00 | 3.00 | 7.0 |")


def test_the_plot_has_a_bar_for_each_load_and_no_bar_leaves_it() -> None:
    run = Run(stored("r"))
    root = ET.fromstring(page.drawing(run))
    space = "{http://www.w3.org/2000/svg}"
    bars = [one for one in root.iter(f"{space}rect") if "bar" in one.attrib["class"]]
    assert len(bars) == len(run.loads())
    assert all(float(bar.attrib["width"]) + float(bar.attrib["x"]) <= 760 for bar in bars)


def test_only_the_last_run_that_has_everything_is_drawn() -> None:
    of_one = [{**part, "run": "one", "systems": {"etcd": "1"}} for part in stored("one")]
    unfinished = stored("unfinished")[:2]
    text = "\n".join(json.dumps(part) for part in [*stored("a"), *stored("b"), *of_one, *unfinished])
    assert page.last_whole(text).about["run"] == "b"
    with pytest.raises(LookupError):
        page.last_whole("\n".join(json.dumps(part) for part in [*of_one, *unfinished]))


def test_the_page_is_what_the_stored_run_draws() -> None:
    results = page.RESULTS / "peers.jsonl"
    dedup = best(stored_runs("dedup"), "bench")["dedup"]
    run = page.last_whole(results.read_text())
    assert (page.DOCS / "peers.md").read_text() == page.render(run, dedup), "python -m bench.peers page"
    assert (page.DOCS / "peers.svg").read_text() == page.drawing(run)
