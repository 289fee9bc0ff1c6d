"""The application and its load, a process of its own: ``python -m bench.dataflows.app --architecture queue …``.

Posts come in phases of a rate and a length. With a rate they come evenly, whatever became of those before, and the
response time of a post begins when it is due; one that comes when `UNDER_WAY_MAX` are under way is dropped and counted.
Without a rate ``--callers`` posts are always under way, ``--posts`` of them in all at most. Prints ``warm`` when some
posts have been answered, ``--warm-s`` of load among them, and begins at a line of input, the queue drained. Prints
``progress`` each second and ``result`` at the end, and keeps its connections until standard input closes: what they
have sent is counted as long as they are there. The numbers of acknowledged posts go into a file.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.children import say
from bench.dataflows.architectures import NAMES, DataFlow, ExternalQueue, Integrated, Synchronous
from bench.dataflows.trend import trend
from bench.dataflows.workload import Audience, author_of, classes, followers_of, value_of
from bench.figures import Latency
from oncegate import OncegateError
from oncegate.spark_sink.rows import Contacts
from oncegate.stores.errors import StoreError

UNDER_WAY_MAX: Final = 2_000
CALLERS: Final = 64
PROGRESS_S: Final = 1.0
WARM: Final = 20
"""Posts before the clock starts: connections, statements, imports."""


class Load:
    """Sends posts and notes what became of them."""

    def __init__(self, flow: DataFlow, audience: Audience, seed: int) -> None:
        self.sent = 0
        self.acknowledged = array("q")
        self.took_s = array("d")
        self.due_s = array("d")
        """When the acknowledged posts were due, by the clock of `time.perf_counter`."""
        self.dropped = self.failed = 0
        self.failure = ""
        self._flow, self._audience, self._seed = flow, audience, seed
        self._under_way: set[asyncio.Task[None]] = set()

    async def phase(self, rate: float, seconds: float, callers: int, most: int | None = None) -> None:
        """Send for ``seconds``, and return when the last post is due; answers may come later.

        Without a rate it ends before, when ``most`` posts have been sent.
        """
        began = time.perf_counter()
        if not rate:
            await asyncio.gather(
                *(self._caller(began + seconds, self.sent + most if most else None) for _ in range(callers))
            )
            return
        for number in range(int(rate * seconds)):
            due = began + number / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            elif number % 16 == 0:
                await asyncio.sleep(0)  # late: the answers must be read all the same
            if len(self._under_way) >= UNDER_WAY_MAX:
                self.dropped += 1
                continue
            task = asyncio.ensure_future(self.one(due))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """Wait for the last answers."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def one(self, due: float) -> None:
        """Send a post and note its answer."""
        number = self.sent
        self.sent += 1
        try:
            await self._flow.post(number, value_of(number, self._audience, self._seed))
        except (OncegateError, StoreError, OSError, RuntimeError) as fault:
            # Not acknowledged: the check leaves open whether it is there.
            self.failed += 1
            self.failure = self.failure or f"{type(fault).__name__}: {fault}"[:300]
            return
        self.took_s.append(time.perf_counter() - due)
        self.due_s.append(due)
        self.acknowledged.append(number)

    async def _caller(self, until: float, most: int | None) -> None:
        while (now := time.perf_counter()) < until and (most is None or self.sent < most):
            await self.one(now)


def by_class(
    numbers: list[int], took_s: list[float], known: Contacts, audience: Audience, seed: int
) -> list[dict[str, Any]]:
    """Return median response times by the number of followers, and the 95 % confidence interval of each."""
    authors = author_of(np.asarray(numbers, dtype=np.int64), audience, seed)
    counts, took = known.ranges_of(authors)[1], np.asarray(took_s)
    found = []
    for low, high in classes(audience):
        chosen = 1000 * np.sort(took[(counts >= low) & (counts <= high)])
        if len(chosen):
            around = 1.96 * math.sqrt(len(chosen)) / 2  # how many of them lie below the true median is binomial
            first = max(0, math.floor(len(chosen) / 2 - around) - 1)  # a rank, less one
            found.append({
                "low": low, "high": high, "samples": len(chosen), "p50_ms": float(np.median(chosen)),
                "low_ms": float(chosen[first]), "high_ms": float(chosen[len(chosen) - 1 - first]),
            })  # fmt: skip
    return found


def by_phase(due_s: Sequence[float], took_s: Sequence[float], ends_s: Sequence[float]) -> list[dict[str, Any]]:
    """Return response times by the phase in which a post was due, however late its answer came."""
    due, took = np.asarray(due_s), np.asarray(took_s)
    begins = [-math.inf, *ends_s[:-1]]
    return [
        Latency.of(took[(due >= begin) & (due < end)].tolist())._asdict()
        for begin, end in zip(begins, [*ends_s[:-1], math.inf], strict=True)
    ]


def _trend(load: Load, warm: int, known: Contacts, audience: Audience, seed: int) -> dict[str, float] | None:
    authors = author_of(np.asarray(load.acknowledged[warm:], dtype=np.int64), audience, seed)
    found = trend(known.ranges_of(authors)[1], np.asarray(load.took_s[warm:]), np.asarray(load.due_s[warm:]))
    return found and found._asdict()


async def run(options: argparse.Namespace) -> None:
    """Run the phases of the command line."""
    audience = Audience(options.authors, options.largest)
    known = followers_of(audience, options.seed)
    flow: DataFlow
    match options.architecture:
        case Synchronous.name:
            flow = Synchronous(options.store, known)
        case ExternalQueue.name:
            flow = ExternalQueue(options.store, known, options.queue)
        case _:
            flow = Integrated(options.endpoints)
    phases = [(float(rate), float(seconds)) for rate, seconds in json.loads(options.phases)]
    async with flow:
        load = Load(flow, audience, options.seed)
        for _ in range(WARM):
            await load.one(time.perf_counter())
        if options.warm_s:
            await load.phase(phases[0][0], options.warm_s, options.callers)
            await load.settled()
        warm = len(load.took_s)
        say("warm")
        await asyncio.to_thread(sys.stdin.readline)
        gc.collect()
        gc.freeze()
        say("begun")

        async def progress() -> None:
            seen, dropped = warm, 0
            while True:
                await asyncio.sleep(PROGRESS_S)
                recent = Latency.of(list(load.took_s[seen:]))
                more = load.dropped - dropped
                seen, dropped = len(load.took_s), load.dropped
                at_s = time.perf_counter() - began
                times = {"p50_ms": recent.p50_ms, "max_ms": recent.max_ms}
                say("progress", at_s=at_s, acknowledged=len(load.took_s), dropped=more, **times)

        began, cpu_s, ends_s = time.perf_counter(), time.process_time(), list[float]()
        beside = asyncio.ensure_future(progress())
        for rate, seconds in phases:
            await load.phase(rate, seconds, options.callers, options.posts)
            ends_s.append(time.perf_counter())  # all of it was due by now, and nothing of the next one
        await load.settled()
        seconds_all, cpu_all_s = time.perf_counter() - began, time.process_time() - cpu_s
        beside.cancel()
        took = list(load.took_s[warm:])
        np.save(options.acknowledged, np.array(load.acknowledged, dtype=np.int64))
        say(
            "result",
            seconds=seconds_all,
            cpu_s=cpu_all_s,
            sent=load.sent,
            acknowledged=len(load.acknowledged),
            measured=len(took),
            dropped=load.dropped,
            failed=load.failed,
            failure=load.failure,
            stddev_ms=1000 * float(np.std(took)) if took else None,
            by_class=by_class(list(load.acknowledged[warm:]), took, known, audience, options.seed),
            by_phase=by_phase(load.due_s[warm:], took, ends_s),
            trend=_trend(load, warm, known, audience, options.seed),
            **Latency.of(took)._asdict(),
        )
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", choices=NAMES, required=True)
    parser.add_argument("--store", default="")
    parser.add_argument("--queue", default="")
    parser.add_argument("--endpoints", default="")
    parser.add_argument("--phases", required=True, help="JSON: [[posts a second, or 0, seconds], …]")
    parser.add_argument("--warm-s", type=float, default=0.0, help="of the first phase's load, before the clock starts")
    parser.add_argument("--callers", type=int, default=CALLERS)
    parser.add_argument("--posts", type=int, help="at most, of each phase without a rate")
    parser.add_argument("--authors", type=int, required=True)
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--acknowledged", type=Path, required=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
