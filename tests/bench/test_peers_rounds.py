"""Rounds that are disturbed, and systems that fail, without starting any."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

from bench.peers import measure, rounds
from bench.peers.kafka import Kafka
from bench.peers.measure import LoadFailed
from bench.peers.peer import Case
from bench.peers.rounds import Plan, play


class Small:
    """As much of a system as a round sees."""

    name = "small"
    prime_s = 0.1
    prime_cases: tuple[Case, ...] = ()
    kill_case = Case("put", 64)
    cases = (Case("put", 1), Case("put", 64))
    starts = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_fault: object) -> None:
        pass

    def start(self) -> None:
        if not self.starts:
            raise TimeoutError("small serves: not within 60 s; at last\n--- n1\nlines of a log")


def plan(*, count: int = 1, repeats: int = 0) -> Plan:
    makers: Any = {"small": Small}
    return Plan(makers, rounds=count, warm_s=0.0, measured_s=0.1, repeats=repeats, patience_s=0.0, kills=0)


def test_a_disturbed_round_is_run_again_while_repeats_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter(["steal", "load", None, "load"])
    asked: list[bool] = []

    def one_round(_plan: Plan, _number: int, *, give_up: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        asked.append(give_up)
        return {"disturbed": next(seen)}, []

    monkeypatch.setattr(rounds, "one_round", one_round)
    saved: list[tuple[int, int, str | None]] = []
    play(
        plan(count=2, repeats=2), lambda about, _: saved.append((about["round"], about["attempt"], about["disturbed"]))
    )
    assert saved == [(1, 1, "steal"), (1, 2, "load"), (1, 3, None), (2, 1, "load")]
    assert asked == [True, True, False, False]  # with no repeat left a disturbed round goes on: it counts


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.disturbance, "wait_for_quiet", lambda _patience_s: None)
    monkeypatch.setattr(rounds, "bare_posts", lambda *_words: 8_000.0)


@pytest.mark.usefixtures("calm")
def test_a_load_that_fails_is_a_row_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def window(peer: Small, case: Case, **_words: float) -> dict[str, Any]:
        if case.outstanding == 1:
            raise LoadFailed("no result")
        return {"peer": peer.name, **case._asdict(), "disturbed": None}

    monkeypatch.setattr(measure, "window", window)
    monkeypatch.setattr(rounds, "shown", str)
    _, rows = rounds.one_round(plan(), 0, give_up=False)
    assert [row.get("failed") for row in rows] == ["no result", None]


@pytest.mark.usefixtures("calm")
def test_a_system_that_does_not_start_has_a_row_for_each_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Small, "starts", False)
    _, rows = rounds.one_round(plan(), 0, give_up=False)
    assert len(rows) == len(Small.cases)
    assert all(row["failed"] == "small serves: not within 60 s; at last" for row in rows)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("failure", [
    OSError(errno.ENOSPC, "No space left on device"), RuntimeError("the data folders cannot be formatted"),
    subprocess.TimeoutExpired("format", 60.0), RuntimeError(),
])  # fmt: skip
def test_a_system_that_cannot_be_made_ready_leaves_the_others_their_round(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Small):
        def start(self) -> None:
            raise failure

    monkeypatch.setattr(measure, "window", lambda peer, case, **_: {"peer": peer.name, "disturbed": None})
    monkeypatch.setattr(rounds, "shown", str)
    makers: Any = {"broken": Broken, "small": Small}
    _, rows = rounds.one_round(plan()._replace(makers=makers), 0, give_up=False)
    assert [bool(row.get("failed")) for row in rows] == [True, True, False, False]
    (killed,) = rounds.all_kills(plan()._replace(makers={"broken": makers["broken"]}, kills=1))
    assert killed["failed"]
    assert killed["gaps_s"] == []


@pytest.mark.usefixtures("calm")
def test_a_system_is_warmed_in_each_of_its_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[tuple[Case, float]] = []

    def window(peer: Small, case: Case, *, warm_s: float, measured_s: float) -> dict[str, Any]:
        loads.append((case, measured_s))
        return {"peer": peer.name, "disturbed": None}

    monkeypatch.setattr(measure, "window", window)
    monkeypatch.setattr(rounds, "shown", str)
    rounds.one_round(plan()._replace(measured_s=1.7), 0, give_up=False)
    assert loads[:2] == [(Small.kill_case, Small.prime_s), (Small.cases[0], 1.7)]
    loads.clear()
    monkeypatch.setattr(Small, "prime_cases", Kafka.prime_cases)
    rounds.one_round(plan()._replace(measured_s=1.7), 0, give_up=False)
    assert loads[:2] == [(case, Small.prime_s) for case in Kafka.prime_cases]
    assert {case.mode for case in Kafka.prime_cases} >= {"batch", "async"}


@pytest.mark.usefixtures("calm")
def test_a_round_that_may_be_run_again_ends_when_it_is_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds.disturbance, "of_disk", lambda _ms: "not a disk")
    about, rows = rounds.one_round(plan(), 0, give_up=True)
    assert (about["disturbed"], rows) == ("not a disk", [])
