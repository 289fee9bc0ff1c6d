"""Leaves what a node and a session with an outbox have on disk when they are killed; run by the Python of a build.

Says in JSON what it was told: requests with their commit numbers, rows, batches. Uses only what each build has that
:mod:`tests.gateway.test_files_of_earlier_builds` names.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import aiohttp

from oncegate import Client
from oncegate.gateway.http.server import running
from oncegate.gateway.node.node import Node, replica_config
from oncegate.gateway.node.settings import Settings

KIND = {"rows": "resident", "events": "stream"}
TRANSACTIONS = 3
"""The feature level from which on there are transactions, and writes with a key of the caller's."""


def small(settings: Settings) -> Node:
    """A node that saves its state after a few requests."""
    config = replica_config(settings)
    sizes = {"journal_segment_bytes": 200_000, "command_bytes_max": 50_000, "append_bytes_max": 50_000}
    return Node(settings, dataclasses.replace(config, save_log_bytes_max=10_000, **sizes))


def level(node: Node) -> int:
    """The feature level of a node's cluster; the first builds knew of none."""
    return getattr(node.machine, "level", 1)


def singles(client_id: str, first: int, count: int, first_incomplete: int) -> dict[str, Any]:
    """The body of a request with puts under adjacent numbers, from level 4 on a run, and an increment behind them."""
    many = [
        {"sequence": first + at, "op": "put", "table": "rows", "key": f"s{first + at}", "value": first + at}
        for at in range(count)
    ]
    many.append({"sequence": first + count, "op": "increment", "table": "rows", "key": "n", "by": 7})
    return {"client_id": client_id, "epoch": 1, "first_incomplete": first_incomplete, "operations": many}


async def seen(http: aiohttp.ClientSession) -> dict[str, Any]:
    """What a reader sees: rows with their versions, and the bytes of the batches of both flows."""
    page = await (await http.get("/v1/tables/rows/rows", params={"limit": 1000})).json()
    assert page["next"] is None
    rows = [(row["key"], row["version"], row["value"]) for row in page["rows"]]
    batches = []
    for flow in ("events", "moves"):
        for number in range(1, 4):
            answer = await http.get(f"/v1/flows/{flow}/batches/{number}")
            body = await answer.read() if answer.status == 200 else b""
            batches.append((flow, number, answer.status, hashlib.sha256(body).hexdigest() if body else ""))
    return {"rows": rows, "batches": batches}


async def write(settings: Settings, directory: Path) -> dict[str, Any]:
    """Do a little of everything, then stop to answer, with writes of a session under way."""
    async with running(settings, small) as node, aiohttp.ClientSession(base_url=settings.address.http) as http:
        while (await http.get("/readyz")).status != 200 or not node.machine.identity:
            await asyncio.sleep(0.01)
        for table, kind in KIND.items():
            await http.put(
                f"/v1/tables/{table}",
                json={"kind": kind, "flow": {"max_items": 20}} if kind == "stream" else {"kind": kind},
            )
        await http.put("/v1/flows/moves", json={"source": "rows", "max_items": 30})
        async with Client([settings.address.http]) as client:
            session = await client.session(outbox=directory / "worker.outbox").__aenter__()
            await asyncio.gather(*(session.put("rows", f"k{number}", "x" * 200) for number in range(100)))
            await session.put_many("events", {f"e{number}": number for number in range(50)})
            if level(node) >= TRANSACTIONS:
                async with session.transaction() as t:
                    t.increment("rows", "n", 5).put("rows", "t", "both")
                await client.put("rows", "keyed", 1, idempotency_key="once")
            opened = await (await http.post("/v1/sessions", json={"nonce": "raw", "lease_ms": 600_000})).json()
            own = opened["client_id"]
            requests = []
            for first, acked in ((1, 1), (9, 4)):
                body = singles(own, first, 7, acked)
                answer = await (await http.post("/v1/operations", json=body)).json()
                requests.append((first, [(one["status"], one["commit"]) for one in answer["results"]]))
            done = node.replica.status().applied_index
            while node.state.saved is None or node.state.saved.index < done:
                await session.put("rows", "large", "x" * 20_000)
            body = singles(own, 17, 7, 4)
            answer = await (await http.post("/v1/operations", json=body)).json()
            requests.append((17, [(one["status"], one["commit"]) for one in answer["results"]]))
            told = {"client": own, "requests": requests, "level": level(node), **await seen(http)}
            arrived = asyncio.Event()

            def never(command: Any, size: int) -> asyncio.Future[Any]:
                arrived.set()
                return asyncio.get_running_loop().create_future()

            node.submit = never  # type: ignore[method-assign, assignment]
            for _ in range(10):
                session.submit("increment", "rows", "late", by=1)
            # What travels is on disk before.
            await arrived.wait()
            print(json.dumps(told), flush=True)  # noqa: T201 - what the test reads
            os._exit(0)


if __name__ == "__main__":
    place = Path(sys.argv[2])
    asyncio.run(write(Settings(members=[sys.argv[1]], data_dir=place / "n1"), place))
