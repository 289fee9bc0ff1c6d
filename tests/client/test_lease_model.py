"""The keeping of a lease against its rule, with renewals that fail, come late, or are spared by writes.

The rule: no renewal before half of the lease is over; one is under way or due soon from then on; an answer counts from
when its request was sent, and none shortens what is known.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from oncegate.gateway.client.session_life import LeaseClock, keep_lease
from tests.client.small_cluster import StillLoop


@pytest.mark.parametrize("seed", range(40))
def test_lease_is_renewed_from_its_half_on_and_never_before(seed: int) -> None:
    dice = random.Random(seed)
    lease_ms = dice.choice((1_000, 30_000))
    lease_s = lease_ms / 1000

    async def play() -> None:
        loop = asyncio.get_running_loop()
        lease = LeaseClock(lease_ms, loop.time())
        ends_at = loop.time() + lease_s
        begun: list[float] = []
        ended: list[float] = []
        grew: list[bool] = []

        async def renew() -> None:
            nonlocal ends_at
            sent_at = loop.time()
            assert sent_at >= ends_at - lease_s / 2 - 1e-9, "half of it is left for retries, and the first for work"
            begun.append(sent_at)
            before = ends_at
            took_s = dice.choice((0.0, 0.01, 0.3)) * lease_s
            await asyncio.sleep(took_s)
            ended.append(loop.time())
            if dice.random() < 0.6:
                lease.extend(sent_at, lease_ms)
                ends_at = max(ends_at, sent_at + lease_s)
            grew.append(ends_at > before)

        async def write() -> None:
            nonlocal ends_at
            while True:
                await asyncio.sleep(dice.choice((0.05, 0.3, 2.0)) * lease_s)
                sent_at = loop.time()
                await asyncio.sleep(dice.choice((0.0, 0.2)) * lease_s)
                memory_ms = dice.choice((lease_ms, lease_ms // 3, 2 * lease_ms))
                lease.extend(sent_at, memory_ms)
                ends_at = max(ends_at, sent_at + memory_ms / 1000)
                assert lease.ends_at == ends_at

        tasks = [asyncio.create_task(keep_lease(lease, renew, loop.time, asyncio.sleep))]
        if dice.random() < 0.7:
            tasks.append(asyncio.create_task(write()))
        for _ in range(400):
            await asyncio.sleep(lease_s / 40)
            assert not any(task.done() for task in tasks)
            assert lease.ends_at == ends_at
            if loop.time() > ends_at - lease_s / 2 + lease_s / 15 and len(begun) == len(ended):
                assert ended, "one is due"
                assert loop.time() <= ended[-1] + lease_s / 15, "soon after one that failed"
        for one, following, extended in zip(ended, begun[1:], grew, strict=False):
            assert extended or following - one >= lease_s / 25, "and not without a pause"
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert lease.lease_s == lease_s

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(play())
