"""One replica of the bench as a process, with the load inside it, as a gateway's is.

``python -m bench.raft.node SETTINGS``: a bare replica (:mod:`tests.faults.harness.replica_process`) that can be asked
to load itself and to report.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from typing import Any

from bench.figures import Latency
from oncegate.consensus import ConsensusError, Replica
from tests.faults.harness.replica_process import ReplicaProcess, main

WAITING_COMMANDS_MAX = 4096


class ClosedLoop:
    """Keeps a number of commands outstanding; those that wait together are proposed together."""

    def __init__(self, replica: Replica, outstanding: int, command: bytes) -> None:
        self.replica = replica
        self.command = command
        self.latencies: list[float] = []
        self.entries = 0
        self.running = True
        self.loop = asyncio.get_running_loop()
        self.scheduled = False
        self.waiting = [time.perf_counter()] * outstanding
        self.open = outstanding
        self.done = asyncio.Event()
        self.schedule()

    def schedule(self) -> None:
        """Propose at the next loop iteration."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.propose)

    def propose(self) -> None:
        """Put everything that waits into one entry."""
        self.scheduled = False
        started, self.waiting = self.waiting, []
        self.entries += 1
        future = self.replica.propose(b"".join([self.command] * len(started)))
        future.add_done_callback(lambda done: self.answered(done, started))

    def answered(self, done: asyncio.Future[object], started: list[float]) -> None:
        """Record latencies; every answered command is followed by the next."""
        done.result()
        now = time.perf_counter()
        self.latencies += [now - start for start in started]
        if self.running:
            self.waiting += [now] * len(started)
            self.schedule()
        else:
            self.open -= len(started)
            if not self.open:
                self.done.set()


class BenchNode(ReplicaProcess):
    """A replica that loads and measures itself."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.load: ClosedLoop | None = None
        self.marked: tuple[float, int, int] = (0.0, 0, 0)
        self.asks |= {
            "load": self._load,
            "mark": self._mark,
            "report": self._report,
            "unload": self._unload,
            "fill": self._fill,
        }

    async def _load(self, argument: Any) -> None:
        outstanding, command_bytes, seed = argument
        gc.collect()
        self.load = ClosedLoop(self.replica, outstanding, random.Random(seed).randbytes(command_bytes))

    async def _mark(self, _: Any) -> None:
        """Measure from now on."""
        if self.load is not None:
            self.load.latencies.clear()
            self.marked = (time.perf_counter(), self.replica.status().flushes, self.load.entries)

    async def _report(self, _: Any) -> dict[str, float]:
        """What was measured since the mark; measures on from here."""
        load = self.load
        if load is None:
            return {}
        latencies, load.latencies = load.latencies, []
        status = self.replica.status()
        began, flushes, entries = self.marked
        self.marked = (time.perf_counter(), status.flushes, load.entries)
        elapsed = self.marked[0] - began
        return {
            "per_second": len(latencies) / elapsed,
            **Latency.of(latencies)._asdict(),
            "flushes_per_second": (status.flushes - flushes) / elapsed,
            "commands_per_entry": len(latencies) / max(1, load.entries - entries),
            "flush_p50_ms": status.flush_p50_ms,
            "flush_p99_ms": status.flush_p99_ms,
        }

    async def _unload(self, _: Any) -> None:
        if self.load is not None:
            self.load.running = False
            await self.load.done.wait()
            self.load = None

    async def _fill(self, argument: Any) -> int:
        """Append so many entries of one command each; returns the index of the last."""
        count, command_bytes = argument
        command = bytes(command_bytes)
        last: asyncio.Future[object] | None = None
        for number in range(count):
            try:
                last = self.replica.propose(command)
            except ConsensusError:
                await asyncio.sleep(0.05)  # Overloaded: the bench waits as a client would.
            if last is not None and number % WAITING_COMMANDS_MAX == 0:
                await last
        if last is not None:
            await last
        return self.replica.status().last_index


if __name__ == "__main__":
    main(BenchNode)
