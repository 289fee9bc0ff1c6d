"""A worker that is stopped for longer than its lease, against a real node: its session ends, and it goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from oncegate import Client
from oncegate.gateway.http.server import running
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.node.settings import Settings

WORKER = """
import asyncio, sys
from oncegate import Client, OutcomeUnknown


async def main():
    outbox = sys.argv[2] or None
    options = {"outbox": outbox, "on_unknown": lambda entry: print("unknown", entry.key, flush=True)} if outbox else {}
    async with Client(sys.argv[1]) as client, client.session(lease_ms=1000, renew_lost=True, **options) as session:
        async def one(number):
            try:
                result = await session.increment("rows", f"n{number}")
                print("applied", f"n{number}", f"{result.client_id:016x}", flush=True)
            except OutcomeUnknown:
                print("unknown", f"n{number}", flush=True)
        number = 0
        while True:
            await asyncio.gather(*(one(number + more) for more in range(8)))
            number += 8


asyncio.run(main())
"""


@pytest.mark.parametrize("outbox", ["", "o"], ids=["memory", "outbox"])
async def test_worker_stopped_for_longer_than_its_lease_goes_on_and_counts_nothing_twice(
    tmp_path: Path, outbox: str
) -> None:
    ports = free_ports(2)
    settings = Settings(members=[f"n1=127.0.0.1:{ports[0]}:{ports[1]}"], data_dir=tmp_path / "n1")
    told: dict[str, set[str]] = {"applied": set(), "unknown": set()}
    sessions: list[str] = []

    async def listen(output: asyncio.StreamReader) -> None:
        while (line := await output.readline()).endswith(b"\n"):  # the kill may cut the last one
            word, key, *session = line.decode().split()
            told[word].add(key)
            sessions.extend(one for one in session if one not in sessions)

    async with running(settings), Client(settings.address.http) as client:
        await client.declare_table("rows")
        command = [sys.executable, "-c", WORKER, settings.address.http, str(tmp_path / outbox) if outbox else ""]
        worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
        assert worker.stdout is not None
        listening = asyncio.create_task(listen(worker.stdout))
        for lives in (1, 2, 3):
            await _until(lambda lives=lives: len(sessions) == lives and len(told["applied"]) >= 40 * lives)  # type: ignore[misc]
            worker.send_signal(signal.SIGSTOP)
            client_id = int(sessions[-1], 16)
            await _until(lambda client_id=client_id: _is_over(client, client_id))  # type: ignore[misc]
            worker.send_signal(signal.SIGCONT)
        await _until(lambda: len(sessions) == 4 and len(told["applied"]) >= 160)
        worker.kill()
        await worker.wait()
        await listening
        rows: dict[str, object] = {}
        after: str | None = None
        while True:
            page = await client.scan("rows", after=after, limit=1000)
            rows.update({row.key: row.value for row in page.rows})
            after = page.next
            if after is None:
                break
    assert set(rows.values()) == {1}, "an increment was sent again under a new id"
    assert told["applied"] <= set(rows)
    assert len(set(rows) - told["applied"] - told["unknown"]) <= 8, "only the kill may leave some untold"


async def _is_over(client: Client, client_id: int) -> bool:
    return (await client.request(client_id, 1)).state == "expired"


async def _until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    while True:
        found = holds()
        if found if isinstance(found, bool) else await found:
            return
        await asyncio.sleep(0.02)
