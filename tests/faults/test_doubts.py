"""A majority of real nodes stands still while writers with short deadlines go on: each doubt gets its fate."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from oncegate import Client, OperationFailed, Outcome, OutcomeUnknown, RequestId, request_ids
from oncegate.proof.check.cluster import CheckCluster

pytestmark = pytest.mark.faults

FREEZES = 3
FROZEN_S = 2.0
WRITERS = 6
TABLE = "doubted"


@pytest.mark.parametrize("own", ["deadline", "timeout"])
async def test_each_doubt_of_a_frozen_majority_is_resolved_and_agrees_with_the_rows(
    gateways: CheckCluster, soak: int, own: str
) -> None:
    """Six writers share a session of a small window, so that their doubts fill it in each freeze."""
    endpoints = [gateways.endpoint(node) for node in gateways.ids]
    doubts: list[tuple[RequestId, str]] = []
    done: Counter[str] = Counter()
    outcomes: Counter[Outcome] = Counter()
    over = asyncio.Event()

    async def write(key: str) -> None:
        try:
            if own == "deadline":
                await session.increment(TABLE, key, timeout_s=0.3)
            else:
                async with asyncio.timeout(0.3):
                    await session.increment(TABLE, key, timeout_s=60)
        except (TimeoutError, OutcomeUnknown) as cut_off:
            doubts.extend((one, key) for one in request_ids(cut_off))
        except OperationFailed as refused:
            outcomes[refused.outcome] += 1
        else:
            done[key] += 1

    async def writer(number: int) -> None:
        count = 0
        while not over.is_set():
            count += 1
            await write(f"{own}-{number}-{count % 3}")

    async def progress(writes: int) -> None:
        goal = done.total() + writes
        async with asyncio.timeout(60):
            while done.total() < goal:
                await asyncio.sleep(0.01)

    async with Client(endpoints, timeout_s=60) as client:
        await client.declare_table(TABLE)
        async with client.session(window=64) as session:
            writers = [asyncio.create_task(writer(number)) for number in range(WRITERS)]
            for at in range(FREEZES * soak):
                await progress(200)
                victims = [gateways.ids[at % 3], gateways.ids[(at + 1) % 3]]
                before = len(doubts)
                gateways.freeze(*victims)
                await asyncio.sleep(FROZEN_S)
                gateways.thaw(*victims)
                assert len(doubts) > before, "the freeze was felt"
            await progress(200)
            over.set()
            await asyncio.gather(*writers)
            fates: list[Any] = [await session.resolve(one) for one, _ in doubts]
            applied = done + Counter(key for fate, (_, key) in zip(fates, doubts, strict=True) if fate.applied)
            keys = [f"{own}-{number}-{at}" for number in range(WRITERS) for at in range(3)]
            rows = [await client.get(TABLE, key) for key in keys]
    assert {fate.state for fate in fates} <= {"applied", "sealed"}
    assert [row.value if row else 0 for row in rows] == [applied[key] for key in keys]
    assert set(outcomes) <= {Outcome.NOT_APPLIED}
