"""A worker of the external queue, a process of its own.

``python -m bench.dataflows.worker URL STORE AUTHORS LARGEST SEED`` takes posts, writes their copies, and acknowledges
them when the copies are durable, until standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

from bench.dataflows.architectures import Writers
from bench.dataflows.jetstream import JetStream
from bench.dataflows.workload import Audience, followers_of

FETCHED_MAX: Final = 200
IDLE_S: Final = 0.01
THREADS: Final = 2


async def work(url: str, store: str, audience: Audience, seed: int) -> None:
    """Drain the queue."""
    ending = asyncio.Event()

    async def until_closed() -> None:
        await asyncio.to_thread(sys.stdin.read)
        ending.set()

    closing = asyncio.ensure_future(until_closed())
    writers = Writers(store, followers_of(audience, seed), THREADS)
    async with await JetStream().connect(url) as queue:

        async def one() -> None:
            while not ending.is_set():
                messages = await queue.fetch(FETCHED_MAX)
                if not messages:
                    await asyncio.sleep(IDLE_S)
                    continue
                pairs = [message.payload.decode().split(" ", 1) for message in messages]
                numbers, values = [int(number) for number, _ in pairs], [value for _, value in pairs]
                await writers.write(numbers, values, with_tweets=False, with_copies=True)
                for message in messages:
                    queue.acknowledge(message)

        print(json.dumps({"event": "started"}), flush=True)
        await asyncio.gather(*(one() for _ in range(THREADS)))
    closing.cancel()
    writers.close()


def main() -> None:
    """Run until standard input closes."""
    url, store, authors, largest, seed = sys.argv[1:]
    asyncio.run(work(url, store, Audience(int(authors), int(largest)), int(seed)))


if __name__ == "__main__":
    main()
