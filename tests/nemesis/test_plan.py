"""Plans of faults: reproducible, bounded, survivable, and the same after a trip through JSON."""

from __future__ import annotations

import itertools
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.consensus.log.segment import SEGMENT_SUFFIX
from oncegate.proof.check.equipment import Equipment
from oncegate.proof.check.nemesis import (
    FAULTS,
    Action,
    FaultPlan,
    Injection,
    available,
    fault,
    names_of,
    plan_of,
)
from oncegate.proof.check.nemesis.fault import LEADER
from oncegate.proof.check.nemesis.network import majority_ring, shape

GROUPS = sorted({kind.group for kind in FAULTS.values()})
PINNED = [
    ("kill_leader", 1.168, 1.048, ("leader",)),
    ("kill_minority", 2.073, 0.658, ("n1",)),
    ("kill_all", 3.591, 0.35, ("n1", "n2", "n3")),
]
WORDS = st.lists(st.sampled_from([*FAULTS, *GROUPS, "all"]), min_size=1, max_size=4)
PLANS = st.builds(
    plan_of,
    seed=st.integers(0, 2**64),
    names=WORDS,
    seconds=st.floats(0.1, 120).map(lambda seconds: round(seconds, 2)),
    nodes=st.integers(1, 7),
)


def injection(name: str, targets: tuple[str, ...]) -> Injection:
    """One fault of a run, on these nodes."""
    return Injection(FAULTS[name], Action(name, 0.0, 1.0, targets))


@given(st.integers(0, 2**64), WORDS, st.integers(3, 5))
def test_same_seed_gives_the_same_plan(seed: int, words: list[str], nodes: int) -> None:
    assert plan_of(seed, words, 30, nodes) == plan_of(seed, words, 30, nodes)


def test_other_seeds_give_other_plans() -> None:
    plans = {plan_of(seed, ["all"], 30, 3).to_json() for seed in range(20)}
    assert len(plans) == 20


def test_plan_does_not_depend_on_the_process_that_makes_it() -> None:
    plan = plan_of(1, ["kills"], 4, 3)
    assert [(action.fault, action.start, action.seconds, action.targets) for action in plan.actions] == PINNED


@settings(max_examples=200)
@given(PLANS)
def test_every_fault_ends_before_its_plan(plan: FaultPlan) -> None:
    for action in plan.actions:
        shortest, longest = FAULTS[action.fault].seconds
        assert 0 <= action.start <= action.end <= plan.seconds + 1e-6
        assert shortest - 0.001 <= action.seconds <= longest


@settings(max_examples=200)
@given(PLANS)
def test_data_of_a_minority_at_most_are_lost_and_of_one_node_at_a_time(plan: FaultPlan) -> None:
    persistent = [action for action in plan.actions if FAULTS[action.fault].persistent]
    damaged = {node for action in persistent for node in action.targets}
    assert damaged <= set(plan.nodes), "who loses its data is known before the run"
    assert 2 * len(damaged) < len(plan.nodes)
    for one, other in itertools.combinations(persistent, 2):
        assert one.end < other.start or other.end < one.start


@settings(max_examples=200)
@given(PLANS)
def test_faults_that_turn_the_same_knob_never_overlap(plan: FaultPlan) -> None:
    for one, other in itertools.combinations(plan.actions, 2):
        if FAULTS[one.fault].excludes and FAULTS[one.fault].excludes == FAULTS[other.fault].excludes:
            assert one.end < other.start or other.end < one.start, (one, other)


@given(PLANS)
def test_targets_are_nodes_or_the_leader_or_what_the_workload_registers(plan: FaultPlan) -> None:
    joining = f"n{len(plan.nodes) + 1}"
    for action in plan.actions:
        assert set(action.targets) <= {*plan.nodes, LEADER, joining, FAULTS[action.fault].process}


@given(PLANS)
def test_plan_is_the_same_after_a_trip_through_json(plan: FaultPlan) -> None:
    assert FaultPlan.from_json(plan.to_json()) == plan


@given(PLANS, st.sets(st.integers(0, 20)))
def test_parts_can_be_left_out_and_the_rest_stays_as_it_was(plan: FaultPlan, indexes: set[int]) -> None:
    less = plan.without(indexes)
    assert list(less.actions) == [action for index, action in enumerate(plan.actions) if index not in indexes]
    assert FaultPlan.from_json(less.to_json()) == less


def test_plan_with_an_unknown_fault_is_refused() -> None:
    plan = FaultPlan(1, 2.0, ("n1",), (), (Action("earthquake", 0.0, 1.0),))
    with pytest.raises(ValueError, match="earthquake"):
        FaultPlan.from_json(plan.to_json())


def test_several_faults_are_planned_at_the_same_time() -> None:
    plan = plan_of(3, ["kills", "partitions"], 60, 3)
    pairs = itertools.pairwise(plan.actions)
    assert any(other.start < one.end and one.fault != other.fault for one, other in pairs)


def test_every_fault_of_a_long_plan_comes_up() -> None:
    plans = [plan_of(seed, ["all"], 600, 5) for seed in range(1, 9)]
    came = [{action.fault for action in plan.actions} for plan in plans]
    assert set.union(*came) == set(names_of("all"))
    for names in came:
        never = {other for name in names for other in FAULTS[name].never_with}
        assert not names & never
        assert set(names_of("all")) - names <= never | {"earlier_build"}


def test_groups_and_names_combine() -> None:
    assert names_of("kills+freeze_one") == sorted([*names_of("kills"), "freeze_one"])
    assert names_of(["all"]) == sorted(name for name, kind in FAULTS.items() if not kind.process)
    assert names_of("jobs") == ["kill_cassandra", "kill_spark"]
    assert names_of("none") == []
    with pytest.raises(ValueError, match="'kill' is no fault"):
        names_of("kill")


def test_what_the_machine_or_the_workload_lacks_is_left_out_with_its_reason() -> None:
    names = names_of("clock_step+kill_one+kill_spark+full_disk")
    possible, left_out = available(names, processes=[], lacks={Equipment.CLOCK: "libfaketime is not installed"})
    assert possible == ["full_disk", "kill_one"]
    assert left_out == {
        "clock_step": "libfaketime is not installed",
        "kill_spark": "the workload has no spark",
    }
    assert available(["kill_spark"], processes=["spark"], lacks={}) == (["kill_spark"], {})


def test_plan_says_what_the_cluster_needs() -> None:
    assert plan_of(1, ["kills"], 10, 3).equipment == frozenset()
    assert plan_of(1, ["full_disk"], 10, 3).equipment == {Equipment.DISK}


@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_in_a_majority_ring_every_node_reaches_a_majority_and_no_two_the_same(count: int) -> None:
    nodes = tuple(f"n{number}" for number in range(count))
    cut = set(majority_ring(injection("partition_majority_ring", nodes), list(nodes)))
    reached = {a: frozenset({a, *(b for b in nodes if b != a and (a, b) not in cut)}) for a in nodes}
    assert all(2 * len(names) > count for names in reached.values())
    assert all((b, a) in cut for a, b in cut)
    assert len(set(reached.values())) == count, "two nodes reach the same majority"


@pytest.mark.parametrize(
    ("name", "four", "five"),
    [
        ("star", "n0-n1 n0-n2 n0-n3", "n0-n1 n0-n2 n0-n3 n0-n4"),
        ("bridge", "n0-n1 n0-n2 n0-n3 n2-n3", "n0-n1 n0-n2 n0-n3 n0-n4 n1-n2 n3-n4"),
        ("chain", "n0-n1 n1-n2 n2-n3", "n0-n1 n1-n2 n2-n3 n3-n4"),
    ],
)
def test_in_a_topology_exactly_its_links_are_left(name: str, four: str, five: str) -> None:
    for links in (four, five):
        nodes = sorted({node for link in links.split() for node in link.split("-")})
        cut = shape(name)(injection(f"partition_{name}", tuple(nodes)), nodes)
        assert len(cut) == len(set(cut))
        left = set(itertools.permutations(nodes, 2)) - set(cut)
        assert left == {ends for a, b in (link.split("-") for link in links.split()) for ends in ((a, b), (b, a))}


def test_two_faults_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="kill_one"):
        fault(replace(FAULTS["kill_one"]))


def test_documentation_names_every_fault_and_group() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check-faults.md").read_text()
    named = set(re.findall(r"`(\w+)`", page))
    assert set(FAULTS) <= named
    assert all(f"| {kind.group} |" in page for kind in FAULTS.values())


def test_log_that_another_fault_has_damaged_is_not_torn_as_well(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / f"journal-{1:016}{SEGMENT_SUFFIX}").write_bytes(bytes(8192))
    cluster: Any = SimpleNamespace(lock=nullcontext(), kill=lambda *_: None, data=lambda _: tmp_path)
    assert injection("torn_tail", ("n1",)).inject(cluster) == "torn: "
