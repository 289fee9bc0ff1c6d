"""Everything at once: losses, refusals and freezes at random, and each write still applied once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, OperationFailed, Outcome, Tuning, WriteResult
from oncegate.gateway import wire
from oncegate.gateway.client.direct_http import DirectConnection
from oncegate.gateway.http import request_bodies
from oncegate.rifl.errors import Code, OncegateError
from oncegate.testing import FakeGateway, FakeNode
from tests.client.answers import OPERATIONS, cut, rejected, results

TUNING = Tuning(
    attempt_timeout_s=0.05, backoff_first_s=0.001, backoff_cap_s=0.01, pipeline_min=4, batch_operations_max=16
)


def misbehave(node: FakeNode, dice: random.Random) -> None:
    async def before(request: web.Request) -> web.StreamResponse | None:
        if request.method != "POST" or dice.random() > 0.3:
            return None
        code = dice.choice([Code.NO_LEADER, Code.NOT_LEADER, Code.OVERLOADED, Code.NOT_READY])
        return node.problem(OncegateError(code, retry_after_ms=1))

    async def after(request: web.Request) -> None:
        if request.method != "POST":
            return
        cast = dice.random()
        if cast < 0.2:
            cut(request)
        elif cast < 0.25:
            await asyncio.sleep(0.1)  # longer than an attempt: a late answer

    node.before, node.after = before, after


@pytest.mark.parametrize("seed", range(6))
async def test_each_write_is_applied_once_through_random_faults(trio: FakeGateway, seed: int) -> None:
    dice = random.Random(seed)
    async with Client(trio.endpoints, tuning=TUNING, prefer_leader=seed % 2 == 0) as client:
        await client.table("rows")
        await client.table("events")
        async with client.session(window=64) as session:
            for node in trio.nodes:
                misbehave(node, dice)

            async def writer(number: int) -> list[WriteResult]:
                results = []
                for turn in range(12):
                    table = "events" if (number + turn) % 3 else "rows"
                    results.append(await session.put(table, f"{number}", turn))
                return results

            async def bulk(number: int) -> int:
                many = await session.put_many("events", {f"bulk {number} {row}": row for row in range(40)})
                return sum(part.last - part.first + 1 for part in many.parts)

            written, rows = await asyncio.gather(
                asyncio.gather(*(writer(number) for number in range(40))),
                asyncio.gather(*(bulk(number) for number in range(10))),
            )
            assert rows == [40] * 10
            assert session.outstanding == 0
    by_id = {(write.client_id, write.sequence): write for write in trio.executed}
    assert len(by_id) == len(trio.executed) == 40 * 12 + 10 * 40
    for number, own in enumerate(written):
        for turn, result in enumerate(own):
            write = by_id[result.client_id, result.sequence]
            assert (write.key, write.value, write.commit) == (str(number), turn, result.commit)


def take_in_part(node: FakeNode, fake: FakeGateway, dice: random.Random) -> None:
    """Apply some operations of each request and refuse the others for now."""

    async def before(request: web.Request) -> web.StreamResponse | None:
        if request.path != OPERATIONS:
            return None
        asked = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest)
        taken = [operation for operation in asked.operations if dice.random() < 0.3]
        verdicts: dict[int, wire.OperationResult] = {}
        if taken:
            some = msgspec.structs.replace(asked, operations=taken)
            body: Any = fake.apply(request_bodies.operations(some)).body
            verdicts = {verdict.sequence: verdict for verdict in body.results}
        left = [one.sequence for one in asked.operations if one.sequence not in verdicts]
        verdicts |= {sequence: rejected(sequence, "OVERLOADED", later=True) for sequence in left}
        return results(*(verdicts[one.sequence] for one in asked.operations))

    node.before = before


@pytest.mark.parametrize("way", ["single", "ranges", "both", "late connections", "in part"])
@pytest.mark.parametrize("seed", range(8))
async def test_what_callers_are_told_is_true_when_deadlines_are_short(
    trio: FakeGateway, monkeypatch: pytest.MonkeyPatch, seed: int, way: str
) -> None:
    dice = random.Random(seed)
    async with Client(trio.endpoints, tuning=TUNING) as client:
        for table in ("rows", "events"):
            await client.table(table)
        if way == "late connections":
            pool = client._connection._pool
            dial = pool.dial

            async def slowly(endpoint: str, due: float) -> DirectConnection:
                await asyncio.sleep(dice.choice([0.0, 0.01, 0.03]))
                return await dial(endpoint, due)

            monkeypatch.setattr(pool, "idle", lambda _: None)
            monkeypatch.setattr(pool, "dial", slowly)
        tables = {"ranges": ["events"], "both": ["rows", "events"]}.get(way, ["rows"])
        async with client.session(window=16) as session:
            for node in trio.nodes:
                if way == "in part":
                    take_in_part(node, trio, dice)
                else:
                    misbehave(node, dice)
            writes = [
                asyncio.create_task(
                    session.put(dice.choice(tables), f"k{n}", n, timeout_s=dice.choice([0.02, 0.1, 5.0]))
                )
                for n in range(300)
            ]
            told = await asyncio.gather(*writes, return_exceptions=True)
            for node in trio.nodes:
                node.before = node.after = None
            await session.drain()
            assert (await session.put("rows", "last", 1)).applied, "the session goes on"
    applied = [write.key for write in trio.executed]
    assert len(applied) == len(set(applied))
    for number, outcome in enumerate(told):
        if isinstance(outcome, WriteResult):
            assert f"k{number}" in applied
        else:
            assert isinstance(outcome, OperationFailed)
            if outcome.outcome is Outcome.NOT_APPLIED:
                assert f"k{number}" not in applied
