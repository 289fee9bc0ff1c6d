"""A worker that may be killed at any point: it counts the words of a file, each word of each line exactly once.

oncegate dev --nodes 3 &
python -m examples.applications.worker README.md words.outbox     # kill -9 it, start it again
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oncegate import Client, OutboxEntry

LEASE_MS = 3_600_000
"""How long the worker may be down: after that nobody can tell what became of a write that had no answer."""


def words(text: str) -> Iterator[str]:
    """Yield the words in order; the same text gives the same words at each start."""
    return (word.lower() for word in text.split())


def report(entry: OutboxEntry) -> None:
    """Take note of a write whose outcome nobody can tell any more; it is never sent again."""
    print(f"unknown: {entry.request_id} {entry.op} {entry.key}", file=sys.stderr)


async def count(client: Client, text: str, outbox: Path) -> int:
    """Count the words that no earlier process has counted, and return how many those were."""
    await client.declare_table("words")
    async with client.session(outbox=outbox, lease_ms=LEASE_MS, on_unknown=report, renew_lost=True) as session:
        position = session.position
        begin = position if isinstance(position, int) else 0
        places = asyncio.Semaphore(64)
        async with asyncio.TaskGroup() as writes:
            done = begin
            for done, word in enumerate(words(text), 1):
                if done > begin:
                    await places.acquire()
                    write = session.submit("increment", "words", word, position=done)
                    write.add_done_callback(lambda _: places.release())
                    writes.create_task(_finished(write))
        return done - begin


async def _finished(write: asyncio.Future[Any]) -> None:
    await write  # a write that fails ends the worker: the next start goes on where it stood


async def main() -> None:
    text, outbox = Path(sys.argv[1]).read_text(), Path(sys.argv[2])
    async with Client() as client:
        print(f"{await count(client, text, outbox)} words counted")


if __name__ == "__main__":
    asyncio.run(main())
