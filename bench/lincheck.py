"""How long the checker takes: 100,000 operations of 16 processes over 10 keys, on one core, and what it holds.

``python -m bench.lincheck [--operations 100000]``. Times are of the process (CPU), so that neighbours on the
machine do not count, and come with one more calibration: a million steps of an empty loop of Python.
"""

from __future__ import annotations

import heapq
import random
import resource
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.harness import Bench, Run, option
from oncegate.proof.lincheck import MODELS, Event, Limits, check, line_of, operations, read_events

PROCESSES, KEYS = 16, 10
UNKNOWN = 0.001
CASES = ("register", "register few values", "cas-register", "counter", "row", "list", "queue", "mutex")
LIST_READS = 0.01


def calls(count: int, seed: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (point, process, invoked, returned) of operations, in the order in which they take effect."""
    rng = random.Random(seed)
    free = [(rng.random(), process) for process in range(PROCESSES)]
    plan = []
    for _ in range(count):
        began, process = heapq.heappop(free)
        lasts = rng.expovariate(1.0) + 0.05
        heapq.heappush(free, (began + lasts + 0.001 * rng.random(), process))
        point = began + lasts * rng.random()
        plan.append((int(point * 1e6), process, int(began * 1e6), int((began + lasts) * 1e6)))
    yield from sorted(plan)


def history(case: str, count: int, seed: int) -> list[bytes]:
    """Return the lines of a good history."""
    rng = random.Random(seed)
    state: dict[int, Any] = {}
    events: list[tuple[int, int, Event]] = []
    for number, (_, process, invoked, returned) in enumerate(calls(count, seed), 1):
        key = rng.randrange(KEYS)
        f, argument, result = _one(case, state, key, number, rng)
        unknown = rng.random() < UNKNOWN and f not in ("read", "get", "dequeue")
        # A process that was told nothing goes on under a new number.
        name = count + number if unknown else process
        events.append((invoked, 1, Event(name, "invoke", f, key=key, value=argument, time=invoked)))
        if not unknown:
            events.append((returned, 0, Event(process, "ok", f, key=key, value=result, time=returned)))
    return [line_of(event) for _, _, event in sorted(events, key=lambda event: event[:2])]


def _one(case: str, state: dict[int, Any], key: int, number: int, rng: random.Random) -> tuple[str, Any, Any]:
    value, reads = state.get(key), rng.random() < (LIST_READS if case == "list" else 0.5)
    match case:
        case "register" | "register few values":
            if not reads:
                state[key] = number if case == "register" else rng.randrange(5)
            return ("read", None, value) if reads else ("write", state[key], None)
        case "cas-register":
            if reads:
                return "read", None, value
            old, new = rng.randrange(5), rng.randrange(5)
            if value is None or rng.random() < 0.2:
                state[key] = new
                return "write", new, None
            if value != old:
                return "cas", [old, new], {"refused": True}
            state[key] = new
            return "cas", [old, new], None
        case "counter":
            if not reads:
                state[key] = (value or 0) + 1
            return ("read", None, value or 0) if reads else ("increment", 1, None)
        case "row":
            if reads:
                return "get", {}, {"version": 0} if value is None else {"version": value, "value": value}
            state[key] = number
            return "put", {"value": number}, {"version": number}
        case "list":
            if reads:
                return "read", None, list(value or [])
            state.setdefault(key, []).append(number)
            return "append", number, None
        case "queue":
            waiting = state.setdefault(key, [])
            if reads:
                return "dequeue", None, waiting.pop(0) if waiting else None
            waiting.append(number)
            return "enqueue", number, None
        case _:
            state[key] = not value
            return ("release" if value else "acquire"), None, None


def _checked(case: str, count: int, seed: int) -> dict[str, Any]:
    """Check one history; return its figures."""
    lines = history(case, count, seed)
    began = time.process_time()
    ops = operations(read_events(lines))
    read = time.process_time()
    result = check(ops, MODELS[case.split()[0]], Limits(seconds=600.0, clock=time.process_time))
    return {
        "case": case,
        "operations": count,
        "verdict": result.verdict,
        "read_s": read - began,
        "check_s": time.process_time() - read,
        "states": result.states_visited,
        "search_mib": result.bytes_estimated / 2**20,
        "process_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _empty_loop() -> float:
    """Return seconds of a million steps of an empty loop."""
    began = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - began


def measure(run: Run) -> Iterator[dict[str, Any]]:
    yield {"what": "empty loop", "empty_loop_1e6_s": _empty_loop()}
    for case in CASES:
        yield _checked(case, run.options.operations, run.options.seed)


BENCH: Final = Bench(
    "lincheck", __doc__, measure, durability="none",
    options=(option("--operations", 100_000, "of a history", quick=2_000, type=int),),
)  # fmt: skip

if __name__ == "__main__":
    raise SystemExit(BENCH.main())
