"""Reads of stream rows against a dictionary, while batches are sealed and tables dropped and declared anew."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.http_contract import declare, one_node, put, serving

KEYS = "abc"


async def read(node: Node, table: str, key: str) -> bytes | None:
    try:
        return (await node.reads.row(table, key)).value
    except OncegateError as refusal:
        if refusal.code is not Code.NOT_FOUND:
            raise
        return None


@pytest.mark.parametrize("seed", range(4))
async def test_row_is_the_newest_of_the_present_table_whatever_was_dropped_before(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with serving(one_node(tmp_path)) as (api, node):
        session = await api.session()
        machine, number, sealed = node.machine, 0, 0
        rows: dict[str, dict[str, bytes]] = {}
        for _ in range(60):
            table, what = dice.choice("tu"), dice.random()
            if table not in rows:
                await declare(api, table, "stream")
                rows[table] = {}
            elif what < 0.6:
                number += 1
                await api.operate(session, put(number, key := dice.choice(KEYS), number, table))
                rows[table][key] = b"%d" % number
            elif what < 0.8:
                flow = machine.flows.of_table(table)[0]
                await node.submit(c.Seal(flow.declaration.name, flow.batches.last + 1), 0)
            else:
                await node.submit(c.DropTable(table, machine.tables[table].incarnation, True), 0)
                del rows[table]
            for table, key in ((one, key) for one in rows for key in KEYS):
                assert await read(node, table, key) == rows[table].get(key), (table, key)
                sealed += machine.flows.of_table(table)[0].batches.last > 1
        assert sealed, "rows of batches were read, too"
