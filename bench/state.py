"""The state on disk: what it costs an operation, how long it stalls the event loop, how fast a node comes back.

``python -m bench.state`` runs, in one process without consensus and without HTTP:

- apply: operations a second with rows in plain dicts and with stored rows, side by side, so that the ratio counts;
- load: fills the state up to ``--rows`` rows of 200 bytes while it is saved again and again, as consensus would have
  it, and prints the longest time the event loop was held up, beside the longest without any save;
- snapshot: a copy of the whole state is read, written and installed elsewhere under the same load;
- restart: a fresh process opens the state; seconds until it is ready, and its anonymous memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.calibrate import fdatasync_4k
from bench.figures import header, save
from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.http.server import GC_THRESHOLDS
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState
from oncegate.rifl.ids import Fingerprint, SequenceNumber

VALUE_BYTES = 200
OPERATIONS = 100
"""Operations of an entry."""
PIECE_BYTES = 1 << 20
TABLE_BYTES = 1 << 40
PHASE_S = 20.0
"""Seconds of a phase that has no other end; equal, so that the worst of one compares with the worst of another."""


def entry(number: int, keys: list[str], rng: random.Random) -> bytes:
    """Return an entry of puts by session 1, whose sequence numbers follow from ``number``."""
    first = number * OPERATIONS + 1
    filler = "x" * (VALUE_BYTES - 12)
    ops = []
    for at, key in enumerate(keys):
        value = b'"%s%010d"' % (filler.encode(), rng.randrange(10**10))
        ops.append(
            c.Op(SequenceNumber(first + at), int(c.OpKind.PUT), "t", key, Fingerprint(rng.getrandbits(63)), value)
        )
    return c.encode_entry(number, [c.Operate(1, 1, SequenceNumber(first), ops)])


def start(machine: Machine) -> None:
    """Declare a table and open a session."""
    apply(
        machine,
        1,
        1,
        c.encode_entry(0, [c.DeclareTable("t", "resident", TABLE_BYTES), c.OpenSession("bench", 86_400_000, 4096)]),
    )


def key_of(number: int) -> str:
    """Return a key; adjacent numbers lie far apart in key order."""
    return f"user:{number * 2654435761 % 2**32:010d}"


def apply_cost(directory: Path, count: int, seed: int) -> dict[str, float]:
    """Time the same entries on a machine with dicts, on one with stored rows, and on keys that are only on disk."""
    rng = random.Random(seed)
    hot = [entry(n, [key_of(rng.randrange(20_000)) for _ in range(OPERATIONS)], rng) for n in range(count)]
    state = MachineState(directory)
    plain, stored = Machine(), state.machine
    start(plain)
    start(stored)
    took = {"dict": 0.0, "stored": 0.0}
    for low in range(0, count, 50):
        for name, machine in (("dict", plain), ("stored", stored)):
            began = time.perf_counter()
            for index in range(low, min(low + 50, count)):
                apply(machine, index + 2, 1, hot[index])
            took[name] += time.perf_counter() - began
    # Twice, so that nothing of these rows is left in memory in front of the store.
    for index in (count + 2, count + 3):
        if index == count + 3:
            apply(stored, index, 1, entry(count, [key_of(10**6 + n) for n in range(OPERATIONS)], rng))
        state.begin_save(SavedPoint(index, 1, b""))
        state.wait_saved(60)
    cold = [
        entry(n, [key_of(k) for k in rng.sample(range(20_000), OPERATIONS)], rng) for n in range(count + 1, count + 101)
    ]
    began = time.perf_counter()
    for index, data in enumerate(cold, count + 4):
        apply(stored, index, 1, data)
    took["cold"] = (time.perf_counter() - began) * count / len(cold)
    state.close()
    shutil.rmtree(directory)
    per = {name: seconds / count / OPERATIONS * 1e6 for name, seconds in took.items()}
    return {
        "dict_us": per["dict"],
        "stored_us": per["stored"],
        "cold_us": per["cold"],
        "stored_to_dict": per["stored"] / per["dict"],
        "cold_to_dict": per["cold"] / per["dict"],
    }


class Stalls:
    """Notices how long the event loop is held up: a timer of one millisecond that comes late."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self.over_10_ms = 0
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time()
        self._handle = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        late_ms = (now - self._due) * 1000
        self.worst_ms = max(self.worst_ms, late_ms)
        self.over_10_ms += late_ms > 10
        self._due = now + 0.001
        self._handle = self._loop.call_at(self._due, self._tick)

    def close(self) -> None:
        """Stop."""
        self._handle.cancel()


class Load:
    """Applies entries on the event loop, some each turn, at a bounded rate, and saves when the state asks for it."""

    def __init__(self, state: MachineState, seed: int, operations_s: int) -> None:
        self.state = state
        self.rng = random.Random(seed)
        self.operations_s = operations_s
        self.index = 1
        self.entries = 0
        self.begin_ms: list[float] = []
        self.slice_ms: list[float] = []
        self.save_s: list[float] = []

    async def run(self, keys: Callable[[int], str], until: Callable[[], bool], *, saves: bool) -> float:
        """Apply until ``until``; returns operations a second."""
        began, done = time.perf_counter(), 0
        while not until():
            slice_began = time.perf_counter()
            number = self.entries * OPERATIONS
            data = entry(self.entries, [keys(number + at) for at in range(OPERATIONS)], self.rng)
            self.index += 1
            apply(self.state.machine, self.index, 1, data)
            self.entries += 1
            done += OPERATIONS
            if saves and self.state.save_wanted and not self.state.saving:
                save_began = time.perf_counter()
                self.state.begin_save(SavedPoint(self.index, 1, b""))
                self.begin_ms.append((time.perf_counter() - save_began) * 1000)
                self.save_s.append(self.state.stats.last_seconds)
            self.slice_ms.append((time.perf_counter() - slice_began) * 1000)
            ahead_s = done / self.operations_s - (time.perf_counter() - began)
            await asyncio.sleep(max(0.0, ahead_s))
        return done / (time.perf_counter() - began)


async def measured(name: str, work: Awaitable[float], load: Load, rows: list[dict[str, Any]]) -> None:
    """Run ``work`` and print the stalls that came with it."""
    load.begin_ms.clear()
    load.slice_ms.clear()
    stalls = Stalls()
    began = time.perf_counter()
    speed = await work
    stalls.close()
    row = {
        "what": name,
        "seconds": time.perf_counter() - began,
        "operations_s": speed,
        "longest_stall_ms": stalls.worst_ms,
        "stalls_over_10_ms": stalls.over_10_ms,
        "longest_slice_ms": max(load.slice_ms, default=0.0),
        "longest_begin_save_ms": max(load.begin_ms, default=0.0),
        "saves": len(load.begin_ms),
        "fresh_mb": load.state.fresh_bytes / 2**20,
        "disk_mb": load.state.disk_bytes / 2**20,
    }
    rows.append(row)
    print(
        "   " + ", ".join(f"{k} {v:,.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True
    )


def copy_to(state: MachineState, target: MachineState) -> float:
    """Ship a snapshot from one state to another; returns seconds. Worker thread."""
    began = time.perf_counter()
    source = state.open_snapshot()
    sink = target.open_sink(source.manifest)
    for number, file in enumerate(source.manifest.files):
        for offset in range(0, file.size, PIECE_BYTES):
            sink.write(number, offset, source.read(number, offset, min(PIECE_BYTES, file.size - offset)))
            time.sleep(0.002)
    sink.finish()
    source.close()
    return time.perf_counter() - began


async def loaded(directory: Path, count: int, seed: int, operations_s: int) -> list[dict[str, Any]]:
    """Fill a state under load, then ship it under load."""
    rows: list[dict[str, Any]] = []
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    state = MachineState(directory / "one")
    start(state.machine)
    load = Load(state, seed, operations_s)
    few = random.Random(seed + 2)
    end = time.perf_counter() + PHASE_S
    await measured(
        "overwrite 100,000 rows, no save",
        load.run(lambda _: key_of(few.randrange(100_000)), lambda: time.perf_counter() >= end, saves=False),
        load,
        rows,
    )
    goal = load.entries * OPERATIONS + count
    await measured(
        "fill, saving",
        load.run(lambda n: key_of(n % count), lambda: load.entries * OPERATIONS >= goal, saves=True),
        load,
        rows,
    )
    rng = random.Random(seed + 1)
    end = time.perf_counter() + PHASE_S
    await measured(
        "overwrite at random, saving",
        load.run(lambda _: key_of(rng.randrange(count)), lambda: time.perf_counter() >= end, saves=True),
        load,
        rows,
    )
    await asyncio.to_thread(state.wait_saved, 60)
    target = MachineState(directory / "two")
    copying = asyncio.get_running_loop().run_in_executor(None, copy_to, state, target)
    await measured(
        "ship a snapshot, saving",
        load.run(lambda _: key_of(rng.randrange(count)), copying.done, saves=True),
        load,
        rows,
    )
    rows[-1]["copied_s"] = await copying
    began = time.perf_counter()
    sink = target._sink  # noqa: SLF001 - the harness stands where consensus stands
    assert sink is not None
    sink.install()
    rows[-1]["install_ms"] = (time.perf_counter() - began) * 1000
    print(f"   install {rows[-1]['install_ms']:.1f} ms")
    await asyncio.to_thread(state.wait_saved, 60)
    if not state.saving:
        state.begin_save(SavedPoint(load.index, 1, b""))
    await asyncio.to_thread(state.wait_saved, 60)
    state.close(60)
    target.close(60)
    return rows


def restarted(directory: Path) -> dict[str, float]:
    """Open the state in a fresh process and return what it says."""
    command = [sys.executable, "-m", "bench.state", "--open", str(directory)]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, float] = json.loads(out.stdout)
    return row


def opened(directory: Path) -> None:
    """Open a state, look at some rows, print seconds and memory."""
    before = rss_anon_mb()
    began = time.perf_counter()
    state = MachineState(directory)
    took = time.perf_counter() - began
    rows = state.machine.tables["t"].rows
    rng = random.Random(1)
    count = len(rows)
    keys = [key_of(rng.randrange(count)) for _ in range(100_000)]
    began = time.perf_counter()
    found = sum(rows.get(key) is not None for key in keys)
    look_us = (time.perf_counter() - began) / len(keys) * 1e6
    after = rss_anon_mb()
    print(
        json.dumps(
            {
                "rows": count,
                "ready_s": took,
                "found": found,
                "look_us": look_us,
                "rss_anon_mb": after,
                "before_mb": before,
            }
        )
    )
    state.close()


def rss_anon_mb() -> float:
    """Return this process's anonymous memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the state under load")
    parser.add_argument("--rate", type=int, default=60_000, help="operations a second under load, at most")
    parser.add_argument("--entries", type=int, default=2_000, help="entries of the comparison of apply")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None, help="where the state lies; a temporary one otherwise")
    parser.add_argument("--open", type=Path, default=None, help="only open this state")
    arguments = parser.parse_args()
    if arguments.open is not None:
        opened(arguments.open)
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        about = header(
            "state",
            seed=arguments.seed,
            durability="saves flushed",
            calibrations={"fdatasync_4k_p50_ms": fdatasync_4k(directory).p50_ms},
        )
        costs = apply_cost(directory / "apply", arguments.entries, arguments.seed)
        print("   apply: " + ", ".join(f"{name} {value:.2f}" for name, value in costs.items()), flush=True)
        rows = asyncio.run(loaded(directory, arguments.rows, arguments.seed, arguments.rate))
        again = restarted(directory / "one")
        print("   restart: " + ", ".join(f"{name} {value:,.2f}" for name, value in again.items()))
        save("state", about, [costs, *rows, again])


if __name__ == "__main__":
    main()
