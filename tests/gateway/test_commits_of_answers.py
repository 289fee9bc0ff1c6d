"""An answer names the commit number of the state that it reflects, whatever is applied before it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from oncegate.gateway.http.server import running
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.reads import Reads
from tests.gateway.http_contract import founded, one_node

QUOTA = 1 << 30


def a_write(table: str, key: str) -> c.Keyed:
    op = c.Op(1, int(c.OpKind.PUT), table, key, 7, b"1")  # type: ignore[arg-type]
    return c.Keyed(60_000, [c.KeyedOp(f"k{table}{key}", -1, op)])  # type: ignore[arg-type]


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "aiohttp"])
@pytest.mark.parametrize("kind", ["resident", "stream"])
async def test_read_that_others_overtake_names_the_state_that_it_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, hot: bool
) -> None:
    """Else whoever watches from there on misses the write that made the row."""
    node: Node
    look_up, written = Reads.row, iter(range(100))

    async def overtaken(self: Reads, table: str, key: str) -> Any:
        try:
            return await look_up(self, table, key)
        finally:
            await node.submit(a_write(table, key if key.startswith("absent") else f"{key}{next(written)}"), 128)

    settings = one_node(tmp_path)
    async with running(settings, hot=hot) as node, aiohttp.ClientSession(base_url=settings.address.http) as http:
        await founded(node)
        await node.submit(c.DeclareTable("t", kind, QUOTA), 128)
        await node.submit(a_write("t", "there"), 128)
        monkeypatch.setattr(Reads, "row", overtaken)
        for key, status in (("there", 200), ("absent", 404), ("there", 200), ("absent2", 404)):
            for level in ("linearizable", "session", "stale") if status == 200 else ("stale",):
                before = node.machine.commit
                async with http.get(f"/v1/tables/t/rows/{key}", params={"consistency": level}) as answer:
                    assert answer.status == status
                    assert int(answer.headers["Oncegate-Commit"]) == before
                assert node.machine.commit == before + 1
