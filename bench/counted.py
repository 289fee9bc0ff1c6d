"""What one operation costs, counted instead of timed: three nodes, their HTTP servers and the SDK in this process.

``python -m bench.counted`` compares with ``bench/results/counted.json`` and prints the table; its status is 1 when a
count differs by more than 3 %, or calls by half a one, up or down: a gain has to be written down as well. ``--write``
writes it down. Counts do not depend on the load of the machine, so that a test may ask for them
(tests/test_counted.py), but on the version of Python: another one is told, and compares nothing. Receives are told
only: into how many the kernel cuts what was sent depends on the time between them.

Sockets and files are real. Time is not: the clock stands still while anything is left to do and jumps to the next timer
when nothing is, so that heartbeats and housekeeping come at the same points of every run. Work for threads is done
where it is handed over. Random numbers have seeds, and hashes of strings: the process starts itself again for that.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import gc
import itertools
import json
import os
import platform
import random
import selectors
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

from oncegate import Client, Session
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.settings import Settings

BASELINE: Final = Path(__file__).parent / "results" / "counted.json"
SHARE_MAX: Final = 0.03
CALLS_MAX: Final = 0.5
"""One call more in each request is 0.1 to 0.3 % where they come one by one, and calls repeat to a hundredth."""
SEED: Final = 18
VALUE: Final = "v" * 198
RANGE: Final = 500
_IN_FLIGHT_S: Final = 0.005
"""How long sockets may stay silent before the clock moves: what was sent on the loopback is there at once."""
_RECEIVED_BYTES: Final = 2**20
_KEPT: Final = "memory blocks kept"
"""A few more or less in a run are the allocator's."""
_EPOCH_S: Final = 1_700_000_000.0
_SENDING: Final = ("send", "sendmsg")
_RECEIVING: Final = ("recv", "recv_into")
_FLUSHES: Final = (os.fdatasync, os.fsync)

Counts = dict[str, float]
Work = Callable[[int], Awaitable[object]]
"""The operations of one round, or of one client in it, given the number of the round."""


class _StillSelector(selectors.DefaultSelector):
    """Tells what is ready; when nothing is, moves the loop's clock to its next timer."""

    now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout != 0:
            ready = super().select(_IN_FLIGHT_S if timeout is not None else 1.0)
            if not ready and timeout is not None:
                self.now_s += timeout
        return ready


class _StillLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _StillSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now_s


def _at_once(pool: object, work: Callable[..., Any], /, *args: Any, **how: Any) -> concurrent.futures.Future[Any]:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(work(*args, **how))
    except Exception as error:  # noqa: BLE001 - as a pool hands it on
        done.set_exception(error)
    return done


class _Tally:
    """Counts calls, executed bytecodes, flushes, system calls on sockets and what passed them, while it is on."""

    def __init__(self, peer_ports: set[int]) -> None:
        self.on = False
        self._found: Counter[str] = Counter()
        self._peer_ports = peer_ports
        self._links: dict[socket.socket, str] = {}

    @contextlib.contextmanager
    def wrapping(self) -> Iterator[None]:
        """Count what passes sockets; only what is done with them from here on is seen."""
        kept = {name: getattr(socket.socket, name) for name in (*_SENDING, *_RECEIVING)}
        for name, real in kept.items():
            setattr(socket.socket, name, self._wrapped(real, "sends" if name in _SENDING else "receives"))
        try:
            yield
        finally:
            for name, real in kept.items():
                setattr(socket.socket, name, real)

    def _wrapped(self, real: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def counted(this: socket.socket, *args: Any) -> Any:
            done = real(this, *args)
            link = self._links.get(this) or self._link(this)
            if self.on:
                self._found[f"{kind}, {link}"] += 1
                if kind == "sends":
                    self._found[f"bytes sent, {link}"] += done
            return done

        return counted

    def _link(self, this: socket.socket) -> str:
        link = "from threads"  # a loop wakes itself
        if this.family == socket.AF_INET:
            with contextlib.suppress(OSError):  # the other end is gone
                link = self._of_network(this)
        self._links[this] = link
        return link

    def _of_network(self, this: socket.socket) -> str:
        this.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)  # the kernel's own varies with time
        ports = {this.getsockname()[1], this.getpeername()[1]}
        return "between nodes" if ports & self._peer_ports else "client and node"

    @contextlib.contextmanager
    def counting(self) -> Iterator[Counter[str]]:
        """Count what this thread does in the block."""
        found = self._found = Counter()
        python = native = flushes = codes = 0
        written = _written()

        def profiled(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal python, native, flushes
            if event == "call":
                python += 1
            elif event == "c_call":
                native += 1
                if arg in _FLUSHES:
                    flushes += 1

        def traced(frame: FrameType, event: str, arg: Any) -> Any:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return executed

        def executed(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal codes
            if event == "opcode":
                codes += 1
            return executed

        blocks = sys.getallocatedblocks()
        self.on = True
        sys.settrace(traced)
        sys.setprofile(profiled)
        try:
            yield found
        finally:
            sys.setprofile(None)
            sys.settrace(None)
            self.on = False
        found[_KEPT] = sys.getallocatedblocks() - blocks
        writes, bytes_written = _written()
        found |= {"writes to disk": writes - written[0], "bytes to disk": bytes_written - written[1]}
        found |= {"bytecodes": codes, "calls of Python": python, "calls of C": native, "flushes": flushes}


def _written() -> tuple[int, int]:
    """How often, and how many bytes, this process has written to files."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["syscw"]), int(lines["wchar"])


@contextlib.contextmanager
def _repeatable(loop: _StillLoop) -> Iterator[None]:
    """Give this process the loop's clock, seeds, and no threads of a pool."""
    seeds = itertools.count(SEED)
    chance = random.Random(SEED)

    class Seeded(random.Random):
        def __init__(self, seed: Any = None) -> None:
            super().__init__(next(seeds) if seed is None else seed)

    kept: list[tuple[Any, str, Any]] = []

    def put(place: Any, name: str, value: Any) -> None:
        kept.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    put(time, "monotonic", loop.time)
    put(time, "perf_counter", loop.time)
    put(time, "time", lambda: _EPOCH_S + loop.time())
    put(time, "time_ns", lambda: int((_EPOCH_S + loop.time()) * 1e9))
    put(random, "Random", Seeded)
    put(random, "_urandom", chance.randbytes)
    put(os, "urandom", chance.randbytes)
    put(concurrent.futures.ThreadPoolExecutor, "submit", _at_once)
    random.seed(SEED)
    gc.disable()
    try:
        yield
    finally:
        for place, name, value in reversed(kept):
            setattr(place, name, value)


@contextlib.asynccontextmanager
async def _cluster(directory: Path, ports: list[int]) -> AsyncIterator[list[str]]:
    """Three nodes with small journals, ready; yields their addresses."""
    names = [f"n{number}" for number in (1, 2, 3)]
    members = [f"{name}=127.0.0.1:{ports[at]}:{ports[at + 3]}" for at, name in enumerate(names)]

    def node(settings: Settings) -> Node:
        small, one = 4 * 2**20, 2**20
        config = replica_config(settings)
        return Node(
            settings,
            replace(config, command_bytes_max=one, append_bytes_max=one, journal_segment_bytes=small),
        )

    async with AsyncExitStack() as stack:
        nodes = []
        for name in names:
            settings = Settings(node=name, members=members, data_dir=directory / name, insecure_peers=True)
            nodes.append(await stack.enter_async_context(running(settings, node)))
        while not all(one.machine.identity for one in nodes):
            await asyncio.sleep(0.01)
        yield [f"http://127.0.0.1:{port}" for port in ports[:3]]


def _put(session: Session, worker: int) -> Work:
    return lambda number: session.put("resident", f"k{worker:03d}-{number:03d}", VALUE)


def _range(session: Session, worker: int) -> Work:
    def work(number: int) -> Awaitable[object]:
        return session.put_many("stream", [(f"r{worker:03d}-{number:03d}-{at:03d}", VALUE) for at in range(RANGE)])

    return work


async def _loops(works: list[Work], first: int, rounds: int) -> None:
    """Closed loops side by side."""

    async def one(work: Work) -> None:
        for number in range(first, first + rounds):
            await work(number)

    await asyncio.gather(*map(one, works))


async def _measure(directory: Path) -> dict[str, Counts]:
    ports = sorted(free_ports(6))
    tally = _Tally(set(ports[3:]))
    found: dict[str, Counts] = {}
    with tally.wrapping():
        async with _cluster(directory, ports) as endpoints, AsyncExitStack() as stack:
            client = await stack.enter_async_context(Client(endpoints))
            await client.declare_table("resident", kind="resident")
            await client.declare_table("stream", kind="stream")
            session = await stack.enter_async_context(client.session(window=4096))
            own = [await stack.enter_async_context(client.session()) for _ in range(64)]
            cases: dict[str, tuple[list[Work], int, int]] = {
                "1 outstanding": ([_put(session, 0)], 50, 1),
                "64 outstanding": ([_put(session, 100 + at) for at in range(64)], 5, 1),
                "512 outstanding": ([_put(session, 200 + at) for at in range(512)], 2, 1),
                "64 sessions of 1": ([_put(one, 900 + at) for at, one in enumerate(own)], 2, 1),
                f"ranges of {RANGE}, 8 outstanding": ([_range(session, at) for at in range(8)], 2, RANGE),
            }
            for name, (works, rounds, each) in cases.items():
                await _loops(works, 0, 2)
                with tally.counting() as counts:
                    await _loops(works, 2, rounds)
                operations = len(works) * rounds * each
                found[name] = {what: counts[what] / operations for what in sorted(counts)}
    return found


def measure() -> dict[str, Counts]:
    """Count, by case and kind, what one operation costs."""
    with tempfile.TemporaryDirectory(prefix="oncegate-counted-") as directory:
        loop = _StillLoop()
        with _repeatable(loop):
            try:
                return loop.run_until_complete(_measure(Path(directory)))
            finally:
                loop.close()


def differences(baseline: dict[str, Counts], found: dict[str, Counts]) -> tuple[list[str], bool]:
    """Return the lines of the table, and whether each count is within 3 % of the baseline's, calls within half."""
    lines, within = [], True
    for case in dict.fromkeys([*baseline, *found]):
        lines.append(case)
        before, now = baseline.get(case, {}), found.get(case, {})
        for kind in dict.fromkeys([*before, *now]):
            old, new = before.get(kind, 0.0), now.get(kind, 0.0)
            room = SHARE_MAX * (max(old, 1.0) if kind == _KEPT else old)
            if kind.startswith("calls of"):
                room = min(room, CALLS_MAX)
            fits = kind.startswith("receives") or abs(new - old) <= room
            share = f"{new / old - 1:+8.1%}" if old else " " * 8
            lines.append(f"   {kind:<32} {old:12.3f} {new:12.3f} {share}{'' if fits else '   OVER'}")
            within &= fits
    return lines, within


def main() -> int:
    """Count, then compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help=f"make this the baseline, {BASELINE.name}")
    options = parser.parse_args()
    found, python = measure(), platform.python_version_tuple()[:2]
    if options.write:
        BASELINE.write_text(json.dumps({"python": ".".join(python), "counts": found}, indent=1) + "\n")
    kept = json.loads(BASELINE.read_text())
    if kept["python"] != ".".join(python):
        print(f"the baseline is of Python {kept['python']}: nothing is compared")
        return 0
    lines, within = differences(kept["counts"], found)
    print("an operation".ljust(35) + f"{'baseline':>12} {'now':>12}")
    print("\n".join(lines))
    if not within:
        print("if that is meant: python -m bench.counted --write")
    return 0 if within else 1


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "bench.counted", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {"PYTHONHASHSEED": "0"})
    raise SystemExit(main())
