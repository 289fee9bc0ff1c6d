"""A million sessions: what they weigh, what they cost the others, how long they take to open, renew, reap and reload.

``python -m bench.sessions`` prints:

- memory: anonymous bytes of a live session, idle since it was opened and idle after operations (fresh processes);
- apply: an operation applied with 1, 10^4 and 10^6 live sessions, interleaved, by one session and by sessions drawn at
  random, which finds them in no cache of the processor;
- open, renew, reap, and the look for leases that ended, which the leader takes forty times a second;
- state: a save of all sessions, one after some have changed, and a restart in a fresh process;
- latency: sequential operations by sessions drawn at random through the log of three durable nodes of one member each,
  holding 1, 10^4 and 10^6 sessions, a round of each in turn.

Ratios carry between machines, times do not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.calibrate import fdatasync_4k
from bench.figures import Latency, header, save
from bench.usage import anonymous_mib
from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.http.server import GC_THRESHOLDS
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.ids import SequenceNumber

LEASE_MS: Final = 3_600_000
WINDOW: Final = 512
AT_ONCE: Final = 1_000
"""Sessions of one entry when many are opened, renewed or reaped."""
VALUE: Final = b'"' + b"x" * 200 + b'"'


class Filled:
    """A machine with sessions 1..count, and the next sequence number of each."""

    def __init__(self, machine: Machine, count: int) -> None:
        self.machine = machine
        self.count = count
        self.index = 0
        self.next: dict[int, int] = {}
        self.apply(0, [c.DeclareTable("t", "resident", 1 << 40)])

    def apply(self, time_ms: int, commands: list[c.Command]) -> None:
        """Apply an entry; its encoding is not what is measured."""
        self.index += 1
        apply(self.machine, self.index, 1, c.encode_entry(time_ms, commands))

    def fill(self, lease_ms: int = LEASE_MS) -> float:
        """Open the sessions; returns microseconds a session, decoding the entries included."""
        opens = [c.OpenSession(uuid.uuid4().hex, lease_ms, WINDOW) for _ in range(self.count)]
        entries = [c.encode_entry(0, list(opens[at : at + AT_ONCE])) for at in range(0, self.count, AT_ONCE)]
        del opens
        began = time.perf_counter()
        for data in entries:
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


def quiet_collector() -> None:
    """Set the collector as a serving node does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def memory(count: int, operations: int) -> None:
    """Child: print the anonymous bytes of a session that made ``operations``, all acknowledged."""
    quiet_collector()
    filled = Filled(Machine(), count)
    before = anonymous_mib()
    filled.fill()
    for client_id in range(1, count + 1) if operations else ():
        for _ in range(operations):
            apply(filled.machine, 0, 1, filled.operation(client_id))
        del filled.next[client_id]
        # As the next operation would, so that what is left is an idle session's.
        filled.machine.trackers[client_id].acknowledge(SequenceNumber(operations + 1))
    filled.machine.touched = set()  # as after a save
    gc.collect()
    print(json.dumps({"bytes": (anonymous_mib() - before) * 2**20 / count, "tracked": len(gc.get_objects())}))


def apply_cost(counts: list[int], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Time single operations on machines with different numbers of sessions, interleaved."""
    quiet_collector()
    rng = random.Random(seed)
    machines = [Filled(Machine(), count) for count in counts]
    opening = [machine.fill() for machine in machines]
    rows = []
    for who in ("one session", "sessions at random"):
        took: list[list[float]] = [[] for _ in counts]
        for turn in range(rounds):
            for at in range(len(machines)):
                number = (at + turn) % len(machines)
                filled = machines[number]
                clients = [1 if who == "one session" else rng.randint(1, filled.count) for _ in range(500)]
                entries = [filled.operation(client_id) for client_id in clients]
                began = time.perf_counter()
                for data in entries:
                    apply(filled.machine, 0, 1, data)
                took[number].append((time.perf_counter() - began) / len(entries) * 1e6)
        for count, times in zip(counts, took, strict=True):
            ratio = statistics.median(time_ / first for time_, first in zip(times, took[0], strict=True))
            rows.append({"what": f"apply, {who}", "sessions": count, "us": statistics.median(times), "ratio": ratio})
    rows += _life_cost(machines[-1], opening[-1])
    return rows


def _life_cost(filled: Filled, opening_us: float) -> list[dict[str, Any]]:
    machine, count = filled.machine, filled.count
    rows: list[dict[str, Any]] = [{"what": "open", "sessions": count, "us": opening_us}]
    everybody = range(1, count + 1)
    parts = [list(everybody[at : at + AT_ONCE]) for at in range(0, count, AT_ONCE)]
    renewals = [c.encode_entry(LEASE_MS // 2, [c.RenewSession(who, 1) for who in part]) for part in parts]
    began = time.perf_counter()
    for data in renewals:
        apply(machine, 0, 1, data)
    rows.append({"what": "renew", "sessions": count, "us": (time.perf_counter() - began) / count * 1e6})
    looks: list[float] = []
    for now_ms in range(LEASE_MS, LEASE_MS + 25 * 400, 25):  # all were renewed: each is filed again, nobody is found
        began = time.perf_counter()
        found = machine.sessions.expired(now_ms, limit=c.REAP_MAX)
        looks.append(time.perf_counter() - began)
        assert not found
    rows.append({"what": "look for ended leases, all renewed", "sessions": count, **Latency.of(looks)._asdict()})
    now_ms, reaped, took = 2 * LEASE_MS, 0, 0.0
    looks.clear()
    while reaped < count:
        began = time.perf_counter()
        found = machine.sessions.expired(now_ms, limit=c.REAP_MAX)
        looks.append(time.perf_counter() - began)
        data = c.encode_entry(now_ms, [c.Reap(found)])
        began = time.perf_counter()
        (gone,) = apply(machine, 0, 1, data)
        took += time.perf_counter() - began
        reaped += gone.sessions
        now_ms += 0 if found else 1_000
    rows.append({"what": "reap", "sessions": count, "us": took / count * 1e6})
    rows.append({"what": "look for ended leases, all ended", "sessions": count, **Latency.of(looks)._asdict()})
    return rows


def state_cost(directory: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Save the sessions, save again after some changed, open the state in a fresh process."""
    rng = random.Random(seed)
    state = MachineState(directory)
    filled = Filled(state.machine, count)
    filled.fill()
    rows = []
    for what in (f"save of {count:,} sessions", "save after 1,000 of them have changed"):
        began = time.perf_counter()
        state.begin_save(SavedPoint(filled.index, 1, b""))
        begin_ms = (time.perf_counter() - began) * 1000
        state.wait_saved(600)
        rows.append({"what": what, "begin_ms": begin_ms, "seconds": time.perf_counter() - began})
        for _ in range(1_000):
            data = filled.operation(rng.randint(1, count))
            filled.index += 1
            apply(state.machine, filled.index, 1, data)
    rows[0]["disk_bytes_a_session"] = state.disk_bytes / count
    state.close(60)
    rows.append({"what": f"restart with {count:,} sessions", **_child("--open", str(directory))})
    return rows


def opened(directory: Path) -> None:
    """Child: open a state and print how long it took."""
    before, began = anonymous_mib(), time.perf_counter()
    state = MachineState(directory)
    took = time.perf_counter() - began
    count = len(state.machine.sessions)
    print(json.dumps({"ready_s": took, "sessions": count, "bytes": (anonymous_mib() - before) * 2**20 / count}))
    state.close()


def _child(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.sessions", *arguments]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    row: dict[str, Any] = json.loads(out.stdout)
    return row


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def serve_rounds(directory: Path, count: int, seed: int) -> None:
    """Child: a durable node with ``count`` sessions; for each line of input, a round of that many operations."""
    node = Node(Settings(members=[f"n1=127.0.0.1:{_free_port()}:{_free_port()}"], data_dir=directory))
    await node.start()
    while not node.leadership.leads:
        await asyncio.sleep(0.01)
    quiet_collector()
    await node.submit(c.DeclareTable("t", "resident", 1 << 40), 64)
    began = time.perf_counter()
    for at in range(0, count, AT_ONCE):
        opens = [
            node.submit(c.OpenSession(uuid.uuid4().hex, LEASE_MS, WINDOW), 128) for _ in range(min(AT_ONCE, count - at))
        ]
        await asyncio.gather(*opens)
    print(json.dumps({"opened_us": (time.perf_counter() - began) / count * 1e6}), flush=True)
    rng = random.Random(seed)
    sequences: dict[int, int] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        took = []
        for _ in range(int(line)):
            client_id = rng.randint(1, count)
            sequence = sequences[client_id] = sequences.get(client_id, 0) + 1
            key = f"k{client_id % 1_000}"
            op = c.Op(SequenceNumber(sequence), int(c.OpKind.PUT), "t", key, c.fingerprint_put("t", key, VALUE), VALUE)
            began = time.perf_counter()
            await node.submit(c.Operate(client_id, 1, SequenceNumber(sequence), [op]), 300)
            took.append(time.perf_counter() - began)
        print(json.dumps(took), flush=True)
    await node.stop()


@contextlib.contextmanager
def _node(directory: Path, count: int, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.sessions", "--serve", str(directory), "--sessions", str(count)]
    child = subprocess.Popen(
        [*command, "--seed", str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield child
    finally:
        assert child.stdin is not None
        child.stdin.close()
        child.wait(60)


def latency(directory: Path, counts: list[int], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Time operations through the log, a round on each node in turn."""
    with contextlib.ExitStack() as stack:
        nodes, opening = [], []
        for count in counts:
            node = stack.enter_context(_node(directory / f"node-{count}", count, seed))
            assert node.stdout is not None
            opening.append(json.loads(node.stdout.readline())["opened_us"])
            nodes.append(node)
        took: list[list[float]] = [[] for _ in counts]
        for number in range(rounds + 1):
            for at in range(len(nodes)):
                samples, node = took[(at + number) % len(nodes)], nodes[(at + number) % len(nodes)]
                assert node.stdin is not None
                assert node.stdout is not None
                node.stdin.write("200\n")
                node.stdin.flush()
                answered = json.loads(node.stdout.readline())
                samples += answered if number else []  # the first round warms up
    first = Latency.of(took[0]).p50_ms
    rows: list[dict[str, Any]] = [
        {
            "what": "latency",
            "sessions": count,
            **Latency.of(samples)._asdict(),
            "ratio": Latency.of(samples).p50_ms / first,
        }
        for count, samples in zip(counts, took, strict=True)
    ]
    return [*rows, {"what": "open through the log", "sessions": counts[-1], "us": opening[-1]}]


def show(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print rows and return them."""
    for row in rows:
        figures = [f"{k} {v:,.3f}" if isinstance(v, float) else f"{k} {v:,}" for k, v in row.items() if k != "what"]
        print(f"   {row['what']}: " + ", ".join(figures), flush=True)
    return rows


def main() -> None:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000_000, help="the largest number of live sessions")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each interleaved comparison")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None, help="where nodes and state lie")
    parser.add_argument("--memory", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory is not None:
        memory(options.sessions, options.memory)
    elif options.open is not None:
        opened(options.open)
    elif options.serve is not None:
        asyncio.run(serve_rounds(options.serve, options.sessions, options.seed))
    else:
        _run(options)


def _run(options: argparse.Namespace) -> None:
    counts = sorted({1, min(10_000, options.sessions), options.sessions})
    with tempfile.TemporaryDirectory(prefix="oncegate-bench-", dir=options.directory) as name:
        directory = Path(name)
        about = header(
            "sessions",
            seed=options.seed,
            durability="one member, one fdatasync a batch; saves flushed",
            calibrations={"fdatasync_4k_p50_ms": fdatasync_4k(directory).p50_ms},
        )
        rows: list[dict[str, Any]] = []
        for operations, what in ((0, "idle since it was opened"), (2, "idle after two operations")):
            found = _child("--memory", str(operations), "--sessions", str(options.sessions))
            rows += show([{"what": f"RssAnon of a session, {what}", **found}])
        rows += show(apply_cost(counts, options.rounds, options.seed))
        rows += show(state_cost(directory / "state", options.sessions, options.seed))
        rows += show(latency(directory, counts, options.rounds, options.seed))
        save("sessions", about, rows)


if __name__ == "__main__":
    main()
