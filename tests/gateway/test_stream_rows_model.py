"""Reads of stream rows against a dictionary, while batches are sealed and dropped, tables dropped and declared anew.

A delivered row stays in the store when its table is dropped: the next table of that name does not answer with it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from oncegate.flows.flow import ROWS_CONSUMER
from oncegate.flows.lookup import FoundWrite, KeyIndex
from oncegate.gateway.local.waiting import until
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.flow_commands import Attach, MoveCursor
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.stream_store import StreamStore
from oncegate.rifl.errors import Code, OncegateError
from tests.conftest import Api
from tests.gateway.http_contract import declare, one_node, put, serving

KEYS = "abc"
DELIVERED = {"consumers": [ROWS_CONSUMER], "retention_ms": 0, "linger_ms": 3_600_000}


class Store:
    """Keeps the newest delivered write of each row for ever, as the real one does."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], FoundWrite] = {}
        self.asked = 0

    async def find(self, table: str, key: str) -> FoundWrite | None:
        self.asked += 1
        return self.rows.get((table, key))


async def deliver(node: Node, store: Store, table: str) -> None:
    """Bring the sealed batches into the store, and let the node drop them."""
    batches = node.machine.flows.get(table).batches
    last = batches.last
    for number in range(batches.first, last + 1):
        index = KeyIndex.of_payload((await node.reads.batch(table, number))[0])
        for key in KEYS:
            found = index.find(key)
            if found is not None:
                store.rows[table, key] = found
    attached = (await node.submit(Attach(table, ROWS_CONSUMER, "n"), 0)).body
    await node.submit(MoveCursor(table, ROWS_CONSUMER, last, attached.fence, False), 0)
    await until(lambda: node.machine.flows.get(table).batches.first > last, 20, "they are dropped")


def delete(sequence: int, key: str, table: str) -> dict[str, Any]:
    return {"sequence": sequence, "op": "delete", "table": table, "key": key}


async def read(node: Node, table: str, key: str) -> bytes | None:
    try:
        return (await node.reads.row(table, key)).value
    except OncegateError as refusal:
        if refusal.code is not Code.NOT_FOUND:
            raise
        return None


class Walk:
    def __init__(self, seed: int, api: Api, node: Node, session: str) -> None:
        self.dice = random.Random(seed)
        self.api, self.node, self.session, self.store = api, node, session, Store()
        node.reads._stored = cast("StreamStore", self.store)
        self.number = self.sealed = self.anew = 0
        self.rows: dict[str, dict[str, bytes | None]] = {}

    async def declare(self, table: str) -> None:
        await declare(self.api, table, "stream", flow=DELIVERED)
        self.rows[table] = {}
        self.anew += any(found.commit == self.node.machine.commit for found in self.store.rows.values())

    async def write(self, table: str) -> None:
        self.number += 1
        key, gone = self.dice.choice(KEYS), self.dice.random() < 0.2
        change = delete(self.number, key, table) if gone else put(self.number, key, self.number, table)
        await self.api.operate(self.session, change)
        self.rows[table][key] = None if gone else b"%d" % self.number

    async def seal(self, table: str) -> None:
        await self.node.submit(c.Seal(table, self.node.machine.flows.get(table).batches.last + 1), 0)

    async def drop(self, table: str) -> None:
        await self.node.submit(c.DropTable(table, self.node.machine.tables[table].incarnation, True), 0)
        del self.rows[table]

    async def deliver_newest(self, table: str) -> None:
        await self.write(table)
        await self.seal(table)
        await deliver(self.node, self.store, table)

    async def step(self) -> None:
        table, what = self.dice.choice("tu"), self.dice.random()
        if table not in self.rows:
            await self.declare(table)
        elif what < 0.5:
            await self.write(table)
        elif what < 0.65:
            await self.seal(table)
        elif what < 0.8 and self.node.machine.flows.get(table).batches.last:
            await deliver(self.node, self.store, table)
        elif what < 0.9:
            # The newest write of all is one that was delivered, and the next table of its name asks the store.
            await self.deliver_newest(table)
            await self.drop(table)
            await self.declare(table)
            await self.deliver_newest(table)
        else:
            await self.drop(table)

    async def check(self) -> None:
        for table, rows in self.rows.items():
            batches = self.node.machine.flows.get(table).batches
            self.sealed += batches.last >= batches.first
            for key in KEYS:
                assert await read(self.node, table, key) == rows.get(key), (table, key)


@pytest.mark.parametrize("seed", range(4))
async def test_row_is_the_newest_of_the_present_table_whatever_was_dropped_before(seed: int, tmp_path: Path) -> None:
    async with serving(one_node(tmp_path)) as (api, node):
        walk = Walk(seed, api, node, await api.session())
        for _ in range(60):
            await walk.step()
            await walk.check()
        assert walk.sealed, "rows of batches were read, too"
        assert walk.store.asked, "and rows of the store"
        assert walk.anew, "and a table's that began right after the newest delivered write of the one before"
