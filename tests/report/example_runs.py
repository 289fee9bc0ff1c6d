"""Folders of runs as a real one leaves them, made from a seed: simulated registers, with a flaw where asked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable
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
    state: dict[str, Any] = {f"k{number}": None for number in range(1, keys + 1)}
    old: dict[str, list[tuple[int, Any]]] = {key: [(0, None)] for key in state}
    events: list[Event] = []
    queue: list[tuple[int, int, Callable[[int], None]]] = []
    begun = fresh = 0
    written_values = 0

    def later(at: int, act: Callable[[int], None]) -> None:
        nonlocal fresh
        fresh += 1
        heapq.heappush(queue, (at, fresh, act))

    next_process = processes
    flaw = stale or lost

    def ready(process: int) -> Callable[[int], None]:
        def invoke(now: int) -> None:
            nonlocal begun, written_values, next_process
            if begun >= count:
                return
            begun += 1
            key, node = random.choice(list(state)), random.choice(NODES)
            f = random.choices(["read", "write", "cas"], [5, 3, 2])[0]
            argument: Any = None
            if f == "write":
                written_values += 1
                argument = written_values
            elif f == "cas":
                written_values += 1
                argument = [state[key] if random.random() < 0.7 else 0, written_values]
            request = f"c{process}/{begun}"
            common = {"process": process, "f": f, "key": key, "node": node, "request": request}
            events.append(Event(type="invoke", value=argument, time=now, **common))
            fate = random.random()
            slow = 12 if fate > 0.97 else 1
            point = now + int(random.uniform(0.3, 3.0) * MS * slow)
            back = point + int(random.uniform(0.2, 2.5) * MS)
            again = process
            if fate < 0.008:
                again, next_process = next_process, next_process + 1
                if random.random() < 0.5:
                    later(point, lambda at: applied(f, key, argument, at) and None)
                back = now + 25 * MS
                later(back, lambda at: events.append(Event(type="info", time=at, error="TIMEOUT", **common)))
            elif fate < 0.018:
                later(back, lambda at: events.append(Event(type="fail", time=at, error="NO_LEADER", **common)))
            else:

                def take(at: int) -> None:
                    result = flawed(f, key, now, at) if key == flaw and begun > count / 2 else None
                    if result is None:
                        result = (applied(f, key, argument, at),)
                    later(back, lambda end: events.append(Event(type="ok", value=result[0], time=end, **common)))

                later(point, take)
            later(back + int(random.uniform(0.1, 1.5) * MS), ready(again))

        return invoke

    def applied(f: str, key: str, argument: Any, at: int) -> Any:
        if f == "read":
            return state[key]
        if f == "cas" and state[key] != argument[0]:
            return {"refused": True, "value": state[key]}
        state[key] = argument if f == "write" else argument[1]
        old[key].append((at, state[key]))
        del old[key][:-50]
        return None

    def flawed(f: str, key: str, invoked: int, at: int) -> tuple[Any] | None:
        nonlocal flaw
        if stale and f == "read":
            long_gone = [value for (_, value), (until, _) in pairwise(old[key]) if until < invoked - 20 * MS]
            if long_gone and long_gone[-1] != state[key]:
                flaw = None
                return (long_gone[-1],)
        if lost and f == "write":
            flaw = None
            return (None,)
        return None

    for process in range(processes):
        later(random.randrange(2 * MS), ready(process))
    while queue:
        at, _, act = heapq.heappop(queue)
        act(at)
    return events


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
