"""What a stored run of the comparison says, what disturbs one, and which gap is whose."""

from __future__ import annotations

import statistics
import subprocess
import sys
from typing import Any

import pytest

from bench import disturbance
from bench.peers.kills import Kill, gaps_of
from bench.peers.measure import shares
from bench.peers.ratios import Key, Run, Spread, over_best, runs
from bench.peers.rounds import order
from bench.peers.sdk_load import Window, gaps
from bench.peers.targets import TARGETS, judge
from bench.usage import TICKS_PER_S, MachineTime, Usage

OURS, THEIRS, OTHER = Key("oncegate", "sdk", 64), Key("nats", "sync", 64), Key("etcd", "txn", 64)


def part(number: int, rates: dict[Key, float], *, attempt: int = 1, disturbed: str | None = None) -> dict[str, Any]:
    rows = [
        {"peer": key.peer, "mode": key.mode, "outstanding": key.outstanding, "rate": rate}
        for key, rate in rates.items()
    ]
    return {"run": "r", "part": "round", "round": number, "attempt": attempt, "disturbed": disturbed, "rows": rows}


def test_a_ratio_is_formed_within_each_round_and_not_of_the_medians() -> None:
    ours, theirs = {1: 100.0, 2: 300.0, 3: 900.0}, {1: 50.0, 2: 300.0, 3: 300.0}
    assert over_best(ours, [theirs], max) == Spread(2.0, 1.0, 3.0, 3)
    assert statistics.median(ours.values()) / statistics.median(theirs.values()) == 1.0


def test_the_best_of_the_others_is_that_of_the_same_round() -> None:
    assert over_best({1: 10.0, 2: 10.0}, [{1: 5.0, 2: 20.0}, {1: 20.0, 2: 5.0}], max) == Spread(0.5, 0.5, 0.5, 2)
    assert over_best({1: 10.0, 2: 10.0}, [{1: 5.0, 2: 20.0}, {1: 20.0, 2: 5.0}], min) == Spread(2.0, 2.0, 2.0, 2)


def test_a_round_that_lacks_one_of_the_others_has_no_ratio() -> None:
    assert over_best({1: 10.0, 2: 10.0}, [{1: 5.0}, {1: 5.0, 2: 1.0}], max) == Spread(2.0, 2.0, 2.0, 1)
    assert over_best({1: 10.0}, [{2: 5.0}], max) is None
    assert over_best({1: 10.0}, [{1: 0.0}], max) is None
    assert over_best({1: 10.0}, [], max) is None


def test_of_a_round_that_was_run_again_the_last_attempt_counts() -> None:
    run = Run([
        part(1, {OURS: 1.0}, disturbed="load"),
        part(1, {OURS: 2.0}, attempt=2),
        part(2, {OURS: 3.0}, disturbed="steal"),
    ])  # fmt: skip
    assert run.figure(OURS, "rate") == {1: 2.0, 2: 3.0}
    assert run.repeated == 1
    assert [one["round"] for one in run.disturbed] == [2]


def test_lines_of_a_results_file_make_up_their_runs() -> None:
    first, second = part(1, {OURS: 1.0}), {**part(1, {OURS: 5.0}), "run": "s"}
    found = runs([first, second, part(2, {OURS: 2.0})])
    assert [run.figure(OURS, "rate") for run in found] == [{1: 1.0, 2: 2.0}, {1: 5.0}]


@pytest.mark.parametrize(("ours", "met"), [(209.0, False), (210.0, True)])
def test_a_target_is_met_by_the_median_of_the_rounds(ours: float, met: bool) -> None:
    zookeeper = Key("zookeeper", "create", 64)
    run = Run([part(number, {OURS: ours, THEIRS: 100.0, OTHER: 50.0, zookeeper: 60.0}) for number in (1, 2, 3)])
    verdict = next(one for one in judge(run) if one.what.startswith("SDK, 64 outstanding against"))
    assert verdict.met is met


def test_each_missed_target_of_a_load_names_its_limit() -> None:
    rates = {key: 1.0 for one in TARGETS for key in (one.ours, *one.others)}
    of_nothing = {"servers_cpu_us": 1e6, "clients_cpu_us": 0.0}
    run = Run([part(1, {key: 1e-9 if key.peer == "oncegate" else rate for key, rate in rates.items()})])
    for row in run.rounds[0]["rows"]:
        row.update(of_nothing if row["peer"] == "oncegate" else {"servers_cpu_us": 1.0})
    missed = [one for one in judge(run) if one.met is False]
    assert len(missed) == len(TARGETS)
    unexplained = {one.what for one in missed if one.limit is None}
    assert unexplained == {"SDK, 1 outstanding against best of ZooKeeper, etcd, NATS"}, (
        "it has never been missed by a median"
    )


def test_independent_clients_and_nodes_in_turn_are_judged_too() -> None:
    judged = {(one.ours.mode, one.ours.outstanding, one.cost) for one in TARGETS}
    assert {("rotating", count, False) for count in (1, 64, 512)} <= judged
    assert {(mode, count, True) for mode in ("sdk", "key", "session") for count in (64, 512)} <= judged


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert {one.met for one in judge(Run([part(1, {OURS: 1.0})]))} == {None}


def kills(ours: list[float]) -> dict[str, Any]:
    rows = [{"peer": "oncegate", "gaps_s": ours}, {"peer": "zookeeper", "gaps_s": [1.0, 1.2, 0.9]}]
    return {"run": "r", "part": "kills", "rows": rows}


@pytest.mark.parametrize(("gaps_s", "met"), [([0.1, 0.29, 0.2], True), ([0.1, 0.1, 0.31], False)])
def test_the_longest_of_all_gaps_has_to_be_short_enough(gaps_s: list[float], met: bool) -> None:
    verdict = next(one for one in judge(Run([part(1, {}), kills(gaps_s)])) if one.what.endswith(", s"))
    assert verdict.met is met


def seen(*, busy: float, stolen: float = 0.0, seconds: float = 2.0) -> MachineTime:
    """Shares of all cores over some seconds of two of them."""
    return MachineTime(busy * 2 * seconds, stolen * 2 * seconds, 2 * seconds)


def test_load_or_steal_before_the_start_disturbs_a_round() -> None:
    assert disturbance.before_start(seen(busy=0.1)) is None
    assert "cores busy" in (disturbance.before_start(seen(busy=0.5)) or "")
    assert "stolen" in (disturbance.before_start(seen(busy=0.0, stolen=0.05)) or "")


def test_a_load_is_disturbed_by_what_neither_servers_nor_clients_took() -> None:
    assert disturbance.during(seen(busy=1.0), ours_s=3.6) is None
    assert "something else" in (disturbance.during(seen(busy=1.0), ours_s=2.0) or "")
    assert "stolen" in (disturbance.during(seen(busy=0.9, stolen=0.1), ours_s=3.6) or "")


def test_a_disk_that_does_not_flush_disturbs_a_round() -> None:
    assert disturbance.of_disk(0.2) is None
    assert "nothing is flushed" in (disturbance.of_disk(0.004) or "")


def test_steal_is_read_beside_what_was_busy() -> None:
    text = "cpu  100 0 50 800 20 5 5 20 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert MachineTime.parse(text) == MachineTime(160 / TICKS_PER_S, 20 / TICKS_PER_S, 1000 / TICKS_PER_S)


def test_costs_are_for_each_operation_and_unknown_without_any() -> None:
    assert shares("servers", Usage(2.0, 8_000), 1_000) == {"servers_cpu_us": 2_000.0, "servers_written_bytes": 8.0}
    assert shares("servers", Usage(2.0, 8_000), 0) == {"servers_cpu_us": None, "servers_written_bytes": None}


PARENT = """
import subprocess, sys, time
burn = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"
subprocess.run([sys.executable, "-S", "-c", burn], check=True)
print("ended", flush=True)
sys.stdin.read()
"""


def test_processor_time_of_a_worker_that_has_ended_stays_with_its_part() -> None:
    command = [sys.executable, "-S", "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ended\n"
        assert Usage.of([parent.pid]).cpu_s >= 0.25


def test_each_kill_has_the_longest_gap_before_its_node_came_back() -> None:
    found = [{"from_ns": 9, "until_ns": 14}, {"from_ns": 30, "until_ns": 33}, {"from_ns": 1, "until_ns": 8}]
    times = [Kill(10, 20), Kill(31, 40), Kill(50, 60)]
    assert gaps_of(times, found) == [5e-9, 3e-9, 0.0]


def test_what_ends_in_the_window_counts_wherever_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now_s)
    load = Window(2.0, warm_s=1.0)
    for began_s, ended_s in ((99.0, 100.5), (100.5, 101.5), (102.0, 102.5), (102.5, 103.5)):
        now_s = ended_s
        load.note(began_s, 10)
    assert load.operations == 20
    assert load.latencies_s == [1.0, 0.5]


def test_gaps_lie_between_answers_that_follow_each_other() -> None:
    assert gaps([30, 10, 12])[:2] == [{"from_ns": 12, "until_ns": 30}, {"from_ns": 10, "until_ns": 12}]
    assert gaps([]) == []


def test_no_system_has_the_same_place_in_all_rounds() -> None:
    names = ["a", "b", "c", "d", "e", "f"]
    orders = [order(names, number) for number in range(3)]
    assert all(sorted(one) == names for one in orders)
    assert all(len({one.index(name) for one in orders}) > 1 for name in names)
