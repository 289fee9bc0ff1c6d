"""The load of a stream run, a process of its own: ``python -m bench.stream.writer --endpoints … --mode singles``.

Writes numbered events until its time is over or standard input closes, waits until each is acknowledged, and says how
many there are of each caller. Prints an event a line: ``progress`` each second, ``result`` at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from array import array
from typing import Final

from bench.children import say
from bench.figures import Latency
from bench.stream.events import TABLE, key_of
from oncegate import Client, Session

RANGE: Final = 1_024
WINDOW: Final = 4_096
PROGRESS_S: Final = 1.0
PATIENCE_S: Final = 120.0
STAMP: Final = 10


class Load:
    """Callers that write events; ``rate`` paces all of them together, 0 = each waits for its answer only."""

    def __init__(self, session: Session, *, ranges: bool, rate: float, value_bytes: int) -> None:
        self.acknowledged: dict[int, int] = {}
        self.latencies_s = array("d")
        self.stall_s = 0.0
        self.ending = asyncio.Event()
        self._session, self._each, self._rate = session, RANGE if ranges else 1, rate
        self._tail = "v" * (value_bytes - 2 - STAMP)
        self._began = self._answered = time.perf_counter()
        self._sent = 0

    @property
    def total(self) -> int:
        """Events that are acknowledged."""
        return sum(self.acknowledged.values())

    async def caller(self, caller: int) -> None:
        """Write until the end; each event after the one before is acknowledged."""
        number = self.acknowledged[caller] = 0
        while not self.ending.is_set():
            asked = await self._turn()
            keyed = [(key_of(caller, at), self._value(at)) for at in range(number + 1, number + self._each + 1)]
            if self._each == 1:
                await self._session.put(TABLE, *keyed[0], timeout_s=PATIENCE_S)
            else:
                await self._session.put_many(TABLE, keyed, timeout_s=PATIENCE_S)
            number += self._each
            self.acknowledged[caller] = number
            now = time.perf_counter()
            self.latencies_s.append(now - asked)
            self.stall_s, self._answered = max(self.stall_s, now - self._answered), now

    async def _turn(self) -> float:
        """Wait until the next write is due, and return when that is: what waits for its turn is late already."""
        now = time.perf_counter()
        if not self._rate:
            return now
        due = self._began + self._sent / self._rate
        self._sent += self._each
        await asyncio.sleep(max(0.0, due - now))
        return due

    def _value(self, number: int) -> str:
        return f"{number:0{STAMP}}{self._tail}"


async def run(options: argparse.Namespace) -> None:
    """Write as the command line says."""
    async with Client(options.endpoints.split(",")) as client, client.session(window=WINDOW) as session:
        await client.table(TABLE)
        gc.collect()
        gc.freeze()
        load = Load(session, ranges=options.mode == "ranges", rate=options.rate, value_bytes=options.value_bytes)

        async def progress() -> None:
            seen = 0
            while True:
                await asyncio.sleep(PROGRESS_S)
                recent = Latency.of(list(load.latencies_s[seen:]))
                seen = len(load.latencies_s)
                say("progress", time_s=time.time(), acknowledged=load.total, p50_ms=recent.p50_ms, max_ms=recent.max_ms)

        say("begun")
        began, cpu_s = time.perf_counter(), time.process_time()
        asyncio.get_running_loop().call_later(options.seconds, load.ending.set)
        _when_closed(load.ending)
        beside = asyncio.ensure_future(progress())
        await asyncio.gather(*(load.caller(caller) for caller in range(options.callers)))
        seconds = time.perf_counter() - began
        beside.cancel()
    say(
        "result",
        seconds=seconds,
        cpu_s=time.process_time() - cpu_s,
        stall_ms=1000 * load.stall_s,
        acknowledged=load.acknowledged,
        **Latency.of(list(load.latencies_s))._asdict(),
    )


def _when_closed(ending: asyncio.Event) -> None:
    """Set the event when standard input closes, in a thread that nobody waits for: a write that fails ends this too."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        while os.read(sys.stdin.fileno(), 4_096):  # no buffer, whose lock the end of the interpreter would wait for
            pass
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            loop.call_soon_threadsafe(ending.set)

    threading.Thread(target=read, daemon=True).start()


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoints", required=True, help="separated by commas")
    parser.add_argument("--mode", choices=("singles", "ranges"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--callers", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.0, help="events a second of all callers; 0: as answered")
    parser.add_argument("--value-bytes", type=int, default=200)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
