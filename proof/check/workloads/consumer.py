"""A flow's consumer without Spark: batches go into a store, then the cursor moves, and it is killed anywhere between.

Owns: that order, deaths and take-overs of an instance, and the store's rows for the final comparison. The store is
the embedded one of :mod:`oncegate.stores`, written with the commit number as each row's timestamp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pyarrow as pa

from oncegate.gateway.client.paths import flow_path, segment
from oncegate.proof.check.run_context import FINAL_S, World, batch_path
from oncegate.stores import Column, ColumnType, StoreTable, open_store

NAME: Final = "store"
ROWS: Final = StoreTable(
    "rows", (Column("key", ColumnType.TEXT), Column("value", ColumnType.TEXT)), partition_key=("key",)
)
DEATH: Final = 0.1
"""How likely an instance dies at each point where it can."""


class CheckedConsumer:
    """One consumer of one flow, in one instance after another."""

    def __init__(self, world: World, flow: str, random: Random) -> None:
        self._world = world
        self._flow = flow
        self._random = random
        self._path = f"{flow_path(flow)}/consumers/{segment(NAME)}"

    async def run(self, until: float) -> None:
        """Consume until ``until``; instances die at random and the next one attaches."""
        while self._world.goes_on(until):
            attached = await self._ask("attach", {"nonce": f"{self._random.getrandbits(128):032x}"})
            if attached is not None:
                await self._instance(attached["fence"], attached["cursor"], until)
            await self._world.think(self._random, 0.05)

    async def drain(self, last: int) -> None:
        """Consume up to batch ``last`` without dying; raises NotRecovered."""

        async def there() -> bool:
            attached = await self._ask("attach", {"nonce": f"{self._random.getrandbits(128):032x}"})
            cursor = 0 if attached is None else int(attached["cursor"])
            while attached is not None and cursor < last and await self._one(cursor + 1, attached["fence"], 0.0):
                cursor += 1
            return attached is not None and cursor >= last

        await self._world.wait(there, 2 * FINAL_S, f"the consumer of {self._flow} has reached batch {last}")

    async def _instance(self, fence: int, cursor: int, until: float) -> None:
        while self._world.goes_on(until):
            if not await self._one(cursor + 1, fence, DEATH):
                return
            cursor += 1

    async def _one(self, number: int, fence: int, death: float) -> bool:
        """Take one batch from flow to store to cursor; False if this instance has ended or there is no batch."""
        world, random = self._world, self._random
        node = random.choice(world.nodes.ids)
        accept = {"Accept": "application/x-ndjson"}
        reply = await world.nodes.call(node, "GET", batch_path(self._flow, number), headers=accept)
        if not reply.done or random.random() < death:
            return False
        items = [msgspec.json.decode(line) for line in bytes(reply.body).splitlines()]
        await asyncio.to_thread(write_rows, world.directory, self._flow, items)
        if random.random() < death:
            return False
        moved = await self._ask("cursor", {"batch": number, "fence": fence})
        return moved is not None and random.random() >= death

    async def _ask(self, what: str, body: dict[str, Any]) -> Any:
        node = self._random.choice(self._world.nodes.ids)
        reply = await self._world.nodes.call(node, "POST", f"{self._path}/{what}", body)
        return reply.body if reply.done else None


def _url(directory: Path, flow: str) -> str:
    return f"sqlite://{directory.resolve() / f'store-{flow}'}?shards=1"


def write_rows(directory: Path, flow: str, items: Sequence[dict[str, Any]]) -> None:
    """Write items to the flow's store; durable when it returns."""
    columns = {
        "key": pa.array([item["key"] for item in items], pa.string()),
        "value": pa.array([msgspec.json.encode(item["value"]).decode() for item in items], pa.string()),
        "write_ts": pa.array([item["commit"] for item in items], pa.int64()),
    }
    with open_store(_url(directory, flow)) as store:
        store.create([ROWS])
        store.write(ROWS, pa.RecordBatch.from_pydict(columns))


def stored_rows(directory: Path, flow: str) -> list[list[Any]]:
    """Return what the flow's store holds, as [key, value, commit], by key."""
    with open_store(_url(directory, flow)) as store:
        store.create([ROWS])
        rows = [row for batch in store.scan(ROWS) for row in batch.to_pylist()]
    return sorted([row["key"], msgspec.json.decode(row["value"]), row["write_ts"]] for row in rows)
