"""The worker of the external queue, a process of its own, as the Spark job is one of the integrated data flow.

``python -m bench.dataflows.worker URL STORE AUTHORS LARGEST SEED`` takes posts, writes their copies, and acknowledges
them when the copies are durable, until standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from bench.children import say
from bench.dataflows.jetstream import JetStream
from bench.dataflows.workload import Audience, followers_of
from bench.dataflows.writers import INTERVAL_MS, Writers

FETCHED_MAX: Final = 2_000


async def work(url: str, store: str, audience: Audience, seed: int) -> None:
    """Drain the queue."""
    ending = asyncio.Event()

    async def until_closed() -> None:
        await asyncio.to_thread(sys.stdin.read)
        ending.set()

    closing = asyncio.ensure_future(until_closed())
    writers = Writers(store, followers_of(audience, seed), 1)
    async with await JetStream().connect(url) as queue:
        say("started")
        while not ending.is_set():
            asked = time.monotonic()
            messages = await queue.fetch(FETCHED_MAX)
            if messages:
                pairs = [message.payload.decode().split(" ", 1) for message in messages]
                await writers.write_copies([int(number) for number, _ in pairs], [value for _, value in pairs])
                queue.acknowledge(messages[-1])
            if len(messages) < FETCHED_MAX:
                # What comes meanwhile shares the next call, as it shares the next batch of the Spark job.
                await asyncio.sleep(max(0.0, asked + INTERVAL_MS / 1000 - time.monotonic()))
    closing.cancel()
    writers.close()


def main() -> None:
    """Run until standard input closes."""
    url, store, authors, largest, seed = sys.argv[1:]
    asyncio.run(work(url, store, Audience(int(authors), int(largest)), int(seed)))


if __name__ == "__main__":
    main()
