"""Folders of runs as a real one leaves them, made from a seed: simulated registers, with a flaw where asked for."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from oncegate.proof.check.folder import FaultNote, RunFolder, RunInfo, RunVerdict
from oncegate.proof.lincheck import MODELS, Event, Failure, Limits, Result, check, operations

MS = 1_000_000
NODES = ["n1", "n2", "n3"]


def valid_run(root: Path, seed: int = 7) -> RunFolder:
    """Write a run with faults whose results can be explained."""
    return written(root, simulated(seed), faults_of(seed), seed=seed)


def stale_read(root: Path, seed: int = 7) -> RunFolder:
    """Write a run in which a read of ``k2`` returned what had been overwritten before the read began."""
    return written(root, simulated(seed, stale="k2"), faults_of(seed), seed=seed)


def lost_write(root: Path, seed: int = 11) -> RunFolder:
    """Write a run in which an acknowledged write of ``k1`` never happened."""
    return written(root, simulated(seed, lost="k1"), faults_of(seed), seed=seed)


def large_run(root: Path, count: int, seed: int = 3) -> RunFolder:
    """Write a run of ``count`` operations of 16 processes over 10 keys; its failure is made up, not searched for."""
    events = simulated(seed, count=count, processes=16, keys=10)
    of_key = [operation for operation in operations(events) if operation.key == "k2" and operation.status == "ok"]
    of_key.sort(key=lambda operation: operation.returned or 0)
    prefix = [operation.index for operation in of_key[: len(of_key) // 2]]
    stuck = of_key[len(of_key) // 2].index
    failure = Failure(key="k2", prefix=prefix, stuck=[stuck], window=[*prefix[-3:], stuck], words=["made up"])
    result = Result(name="register", verdict="invalid", operations=count, keys=10, failures=[failure])
    return written(root, events, faults_of(seed, events[-1].time), seed=seed, result=result)


def faults_of(seed: int, end: int = 700 * MS) -> list[FaultNote]:
    """Return five faults spread over the run; one does not end."""
    random, notes = Random(seed), []
    for number, name in enumerate(["kill -9", "partition", "slow disk", "clock step", "pause"]):
        start = int(end * (0.1 + 0.17 * number))
        last = None if number == 4 else start + int(end * (0.06 + 0.1 * random.random()))
        notes.append(FaultNote(start, last, name, [random.choice(NODES)], f"planned as number {number + 1}"))
    return notes


def simulated(
    seed: int,
    *,
    count: int = 600,
    processes: int = 5,
    keys: int = 4,
    stale: str | None = None,
    lost: str | None = None,
) -> list[Event]:
    """Return a history of compare-and-set registers, right but for the flaw: at ``stale`` a read after half of the run
    returns an old value, at ``lost`` a write does nothing.
    """
    random = Random(seed)
    free = [(random.randrange(2 * MS), process) for process in range(processes)]
    planned: list[tuple[int, int, int, float, dict[str, Any]]] = []
    for number in range(1, count + 1):
        invoked, process = heapq.heappop(free)
        fate = random.random()
        point = invoked + int(random.uniform(0.3, 3.0) * MS * (12 if fate > 0.97 else 1))
        back = invoked + 25 * MS if fate < 0.008 else point + int(random.uniform(0.2, 2.5) * MS)
        common = {
            "process": process,
            "f": random.choices(["read", "write", "cas"], [5, 3, 2])[0],
            "key": f"k{random.randint(1, keys)}",
            "node": random.choice(NODES),
            "request": f"c{process}/{number}",
        }
        planned.append((point, invoked, back, fate, common))
        # After an unknown outcome a process goes on under a new number.
        again = processes + number if fate < 0.008 else process
        heapq.heappush(free, (back + int(random.uniform(0.1, 1.5) * MS), again))
    state: dict[str, list[tuple[int, Any]]] = {}
    events: list[Event] = []
    for value, (point, invoked, back, fate, common) in enumerate(sorted(planned, key=lambda one: one[0]), 1):
        held = state.setdefault(common["key"], [(0, None)])
        f, late = common["f"], value > count / 2
        expected = held[-1][1] if random.random() < 0.7 else 0
        argument: Any = {"read": None, "write": value, "cas": [expected, value]}[f]
        result: Any = held[-1][1] if f == "read" else None
        applied = not 0.008 <= fate < 0.018 and (fate >= 0.008 or random.random() < 0.5)
        if f == "cas" and expected != held[-1][1]:
            result, applied = {"refused": True, "value": held[-1][1]}, False
        if fate >= 0.018 and late and f == "read" and common["key"] == stale:
            long_gone = [old for (_, old), (until, _) in pairwise(held) if until < invoked - 20 * MS]
            if long_gone and long_gone[-1] != result:
                result, stale = long_gone[-1], None
        if fate >= 0.018 and late and f == "write" and common["key"] == lost:
            applied, lost = False, None
        if applied and f != "read":
            held.append((point, value))
        events.append(Event(type="invoke", value=argument, time=invoked, **common))
        if fate < 0.008:
            events.append(Event(type="info", time=back, error="TIMEOUT", **common))
        elif fate < 0.018:
            events.append(Event(type="fail", time=back, error="NO_LEADER", **common))
        else:
            events.append(Event(type="ok", value=result, time=back, **common))
    return sorted(events, key=lambda event: event.time)


def written(
    root: Path, events: list[Event], faults: list[FaultNote], *, seed: int = 0, result: Result | None = None
) -> RunFolder:
    """Write a folder with the checker's verdict, or ``result`` for it."""
    info = RunInfo(
        workload="register",
        faults="kills+links",
        seed=seed,
        seconds=1.2,
        nodes=NODES,
        settings={"processes": 5, "read_from": "any"},
        commit="0123456789abcdef",
        versions={"oncegate": "0.1.0"},
    )
    folder = RunFolder.create(root, info, now=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC))
    with folder.history_writer() as history, folder.faults_writer() as notes:
        for event in events:
            history.event(event)
        for note in faults:
            notes.fault(note)
    found = operations(events)
    if result is None:
        result = check(found, MODELS["cas-register"], Limits())
    counts = {name: sum(operation.status == name for operation in found) for name in ("ok", "unknown", "failed")}
    names = {note.fault: sum(other.fault == note.fault for other in faults) for note in faults}
    verdict = RunVerdict(
        verdict=result.verdict,
        checks=[result],
        operations={"ok": counts["ok"], "unknown": counts["unknown"], "fail": counts["failed"]},
        faults=names,
        seconds=0.25,
    )
    folder.write_verdict(verdict)
    return folder
