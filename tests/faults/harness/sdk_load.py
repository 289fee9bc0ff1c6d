"""Writers through the SDK, what they were told, and whether every node agrees: each write once, none lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Final

from oncegate import Client, OncegateError, Session
from oncegate.gateway.local.waiting import until
from tests.batches import read_flow

WORKERS = 24


class Ledger:
    """What the SDK acknowledged: key to commit number, and how often each counter was raised."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.name: Final = f"load{next(self._numbers)}"
        """Of its stream table and flow, and before its keys: several loads may come one after the other."""
        self.rows: dict[str, int] = {}
        self.counted: dict[str, int] = {}
        self.streamed: dict[str, int] = {}
        self.unknown = 0


async def write(session: Session, ledger: Ledger, worker: int, stop: asyncio.Event, pause_s: float = 0.0) -> None:
    """Put, count and stream until told to stop, or until a write is given up; a round takes ``pause_s`` more."""
    number = 0
    while not stop.is_set():
        number += 1
        key = f"{ledger.name}-w{worker}-{number}"
        counter = f"{ledger.name}-c{worker}"
        try:
            ledger.rows[key] = (await session.put("rows", key, {"n": number})).commit
            result = await session.increment("rows", counter)
            ledger.counted[counter] = ledger.counted.get(counter, 0) + 1
            assert result.value == ledger.counted[counter], "an increment was applied twice or lost"
            many = await session.put_many(ledger.name, [(f"{key}-{i}", {"i": i}) for i in range(20)])
            await asyncio.sleep(pause_s)
            ledger.streamed.update({f"{key}-{i}": many.commit + i for i in range(20)})
        except OncegateError:
            ledger.unknown += 1
            return


async def progress(ledger: Ledger, rows: int) -> None:
    """Wait until so many more rows are acknowledged."""
    goal = len(ledger.rows) + rows
    await until(lambda: len(ledger.rows) >= goal, 60.0, f"{rows} more rows", state=lambda: len(ledger.rows))


@contextlib.asynccontextmanager
async def writing(
    client: Client, ledger: Ledger, workers: int = WORKERS, pause_s: float = 0.0
) -> AsyncIterator[Session]:
    """Declare the tables and keep the writers busy inside the block."""
    stop = asyncio.Event()
    await client.declare_table("rows", kind="resident")
    await client.declare_table(ledger.name, kind="stream")
    async with client.session() as session:
        writers = [asyncio.create_task(write(session, ledger, number, stop, pause_s)) for number in range(workers)]
        try:
            yield session
        finally:
            stop.set()
            await asyncio.gather(*writers)


async def check_counters(client: Client, ledger: Ledger) -> None:
    """Every counter is what was acknowledged, and no write was given up."""
    assert ledger.unknown == 0, "a write was given up"
    for counter, times in ledger.counted.items():
        row = await client.get("rows", counter, consistency="linearizable")
        assert row is not None
        assert row.value == times, f"{counter} counts other than was acknowledged"


async def check_rows(client: Client, ledger: Ledger) -> None:
    """Every row stands where it was acknowledged: it was not written again afterwards."""
    for key, commit in ledger.rows.items():
        row = await client.get("rows", key, consistency="stale")
        assert row is not None
        assert row.version == commit, f"{key} was written again after its acknowledgement"


async def check_flows(endpoints: list[str], ledger: Ledger) -> None:
    """Every node's flow has every item once, in its place."""
    for endpoint in endpoints:
        items = await asyncio.to_thread(read_flow, endpoint, ledger.name)
        assert len({commit for _, commit in items}) == len(items)
        assert dict(items) == ledger.streamed
        assert len(items) == len(ledger.streamed), "an item is in the flow twice"
