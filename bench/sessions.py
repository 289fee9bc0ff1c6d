"""A million sessions: what they cost the others, and how long they take to open, renew, reap, save and reload.

``python -m bench.sessions``:

- apply: an operation applied with 1, 10^4 and 10^6 live sessions, interleaved, by one session and by sessions drawn at
  random, which finds them in no cache of the processor;
- open, renew, reap, and the look for leases that ended, which the leader takes forty times a second;
- state: a save of all sessions, one after some have changed, and a restart in a fresh process.

What a session weighs is in :mod:`bench.sizing`, what they cost a write of three nodes in ``bench.scale --case
sessions``. Ratios carry between machines, times do not.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.children import answer_of
from bench.figures import Latency
from bench.harness import Bench, Run, option
from bench.load import compared, turned
from bench.usage import anonymous_mib
from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.http.server import GC_THRESHOLDS
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState
from oncegate.rifl.ids import SequenceNumber

LEASE_MS: Final = 3_600_000
AT_ONCE: Final = 1_000
"""Sessions of one entry when many are opened, renewed or reaped."""
VALUE: Final = b'"' + b"x" * 200 + b'"'


class Filled:
    """A machine with sessions 1..count, and the next sequence number of each."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.machine, self.count, self.index = machine, count, 0
        self.next: dict[int, int] = {}
        self.apply(0, c.DeclareTable("t", "resident", 1 << 40))
        opens = [c.OpenSession(uuid.uuid4().hex, LEASE_MS, 512) for _ in range(count)]
        self.opened_us = self._timed([opens[at : at + AT_ONCE] for at in range(0, count, AT_ONCE)])

    def apply(self, time_ms: int, *commands: c.Command) -> Any:
        """Apply an entry."""
        self.index += 1
        return apply(self.machine, self.index, 1, c.encode_entry(time_ms, [*commands]))

    def renewed_us(self) -> float:
        """Renew all sessions; returns microseconds of one."""
        everybody = [c.RenewSession(who, 1) for who in range(1, self.count + 1)]
        return self._timed([everybody[at : at + AT_ONCE] for at in range(0, self.count, AT_ONCE)], LEASE_MS // 2)

    def _timed(self, entries: list[list[Any]], time_ms: int = 0) -> float:
        encoded = [c.encode_entry(time_ms, entry) for entry in entries]
        began = time.perf_counter()
        for data in encoded:
            self.index += 1
            apply(self.machine, self.index, 1, data)
        return (time.perf_counter() - began) / self.count * 1e6

    def operation(self, client_id: int) -> bytes:
        """Return an entry with the next operation of a session, which acknowledges all before."""
        sequence = self.next.get(client_id, 1)
        self.next[client_id] = sequence + 1
        key = f"k{client_id % 1_000}"
        op = c.Op(SequenceNumber(sequence), int(c.OpKind.PUT), "t", key, c.fingerprint_put("t", key, VALUE), VALUE)
        return c.encode_entry(0, [c.Operate(client_id, 1, SequenceNumber(sequence), [op])])


def applied(counts: list[int], rounds: int, seed: int) -> Iterator[dict[str, Any]]:
    """Time single operations on machines with different numbers of sessions, interleaved."""
    rng = random.Random(seed)
    machines = {f"{count}": Filled(Machine(), count) for count in counts}
    draws: dict[str, Callable[[int], int]] = {
        "one session": lambda _: 1, "sessions at random": lambda count: rng.randint(1, count),
    }  # fmt: skip
    for who, draw in draws.items():
        took: dict[str, list[float]] = {name: [] for name in machines}
        for turn in range(rounds):
            for name in turned(list(machines), turn):
                filled = machines[name]
                entries = [filled.operation(draw(filled.count)) for _ in range(500)]
                began = time.perf_counter()
                for data in entries:
                    apply(filled.machine, 0, 1, data)
                took[name].append((time.perf_counter() - began) / len(entries) * 1e6)
        for count in counts:
            what = f"apply, {who}, {count:,} sessions over {counts[0]}, us"
            yield compared(what, took[f"{count}"], took[f"{counts[0]}"])
    yield from lives(machines[f"{counts[-1]}"])


def lives(filled: Filled) -> Iterator[dict[str, Any]]:
    """Time what becomes of the sessions: opened, renewed, looked at, reaped."""
    machine, count = filled.machine, filled.count
    yield {"what": "open", "sessions": count, "us": filled.opened_us}
    yield {"what": "renew", "sessions": count, "us": filled.renewed_us()}
    looks: list[float] = []

    def ended(now_ms: int) -> list[int]:
        began = time.perf_counter()
        found = machine.sessions.expired(now_ms, limit=c.REAP_MAX)
        looks.append(time.perf_counter() - began)
        return list(found)

    for now_ms in range(LEASE_MS, LEASE_MS + 25 * 400, 25):  # all were renewed: each is filed again, nobody is found
        assert not ended(now_ms)
    yield {"what": "look for ended leases, all renewed", "sessions": count, **Latency.of(looks)._asdict()}
    looks.clear()
    now_ms, reaped, took = 2 * LEASE_MS, 0, 0.0
    while reaped < count:
        found = ended(now_ms)
        data = c.encode_entry(now_ms, [c.Reap(found)])
        began = time.perf_counter()
        (gone,) = apply(machine, 0, 1, data)
        took += time.perf_counter() - began
        reaped += gone.sessions
        now_ms += 0 if found else 1_000
    yield {"what": "reap", "sessions": count, "us": took / count * 1e6}
    yield {"what": "look for ended leases, all ended", "sessions": count, **Latency.of(looks)._asdict()}


def saved(directory: Path, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Save the sessions, save again after some changed, open the state in a fresh process."""
    rng, state = random.Random(seed), MachineState(directory)
    filled = Filled(state.machine, count)
    for what in (f"save of {count:,} sessions", "save after 1,000 of them have changed"):
        began = time.perf_counter()
        state.begin_save(SavedPoint(filled.index, 1, b""))
        begin_ms = (time.perf_counter() - began) * 1000
        state.wait_saved(600)
        seconds = time.perf_counter() - began
        yield {"what": what, "begin_ms": begin_ms, "seconds": seconds, "disk_bytes": state.disk_bytes / count}
        for _ in range(1_000):
            data = filled.operation(rng.randint(1, count))
            filled.index += 1
            apply(state.machine, filled.index, 1, data)
    state.close(60)
    yield {"what": f"restart with {count:,} sessions", **answer_of("bench.sessions", "--open", str(directory))}


def opened(directory: Path) -> dict[str, Any]:
    """Open a state; returns how long it took, and what it weighs for a session."""
    before, began = anonymous_mib(), time.perf_counter()
    state = MachineState(directory)
    took, count = time.perf_counter() - began, len(state.machine.sessions)
    weighs = (anonymous_mib() - before) * 2**20 / count
    state.close()
    return {"ready_s": took, "sessions": count, "bytes": weighs}


def measure(run: Run) -> Iterator[dict[str, Any]]:
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as a serving node does
    most = run.options.sessions
    yield from applied(sorted({1, min(10_000, most), most}), run.options.rounds, run.options.seed)
    yield from saved(run.directory / "state", most, run.options.seed)


BENCH: Final = Bench(
    "sessions", __doc__, measure, durability="saves flushed",
    options=(
        option("--sessions", 1_000_000, "the largest number of live sessions", quick=20_000, type=int),
        option("--rounds", 40, "of each interleaved comparison", quick=4, type=int),
    ),
)  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:2] == ["--open"]:
        print(json.dumps(opened(Path(sys.argv[2]))))
    else:
        raise SystemExit(BENCH.main())
