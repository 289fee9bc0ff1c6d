"""The kinds of tables that a client has met (``client.connection``), against a model: who asks, when, and what is kept.

A cluster that answers, fails or is silent as a seed says; time is the loop's own, and passes when nothing is left to
do. A question is under way for each table once at most, whoever waits for its answer.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from oncegate import Client, Code, DeadlineExceeded, OncegateError, OperationFailed, Outcome
from oncegate.gateway.client.connection import ASK_AGAIN_S, TableKinds
from oncegate.gateway.client.settings import TableKind
from oncegate.testing import FakeGateway
from tests.client.answers import settle
from tests.client.small_cluster import StillLoop

TABLES = "abc"
SLACK_S = 1e-6


class Cluster:
    """Who is asked, and the model of what is known: a kind is asked for until it is told, and then never again."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.kinds = TableKinds(self.ask, self.loop.time)
        self.asked: Counter[str] = Counter()
        self.under_way: set[str] = set()
        self.told: dict[str, TableKind] = {}
        self.failed_at: dict[str, float] = {}

    async def ask(self, table: str) -> TableKind:
        assert table not in self.under_way, "callers share one question"
        assert table not in self.told, "it is known"
        self.asked[table] += 1
        self.under_way.add(table)
        try:
            await asyncio.sleep(self.dice.choice((0.2, 0.5, 2.0)))
            if self.dice.random() < 0.5:
                self.failed_at[table] = self.loop.time()
                raise OperationFailed(Code.NOT_READY, "for now", outcome=Outcome.NOT_APPLIED)
            self.told[table] = self.dice.choice(("resident", "stream"))
            return self.told[table]
        finally:
            self.under_way.discard(table)

    async def learn(self, table: str) -> None:
        """Learn a kind, and see that it is told at once, by the answer, or not before the deadline and not after it."""
        begins, asked = self.loop.time(), self.asked[table]
        deadline = begins + self.dice.choice((-1.0, 0.3, 1.0, 5.0))
        known = table in self.told
        (ended,) = await asyncio.gather(self.kinds.learn(table, deadline), return_exceptions=True)
        match ended:
            case DeadlineExceeded() as late:
                assert (late.code, late.outcome) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
                assert self.loop.time() == pytest.approx(max(begins, deadline), abs=SLACK_S)
                assert not known
            case OncegateError() as failure:
                assert failure.code is Code.NOT_READY
                assert self.loop.time() == self.failed_at[table]
            case kind:
                assert kind == self.told[table]
                assert self.loop.time() <= max(begins, deadline) + SLACK_S
        if known:
            assert (self.loop.time(), self.asked[table]) == (begins, asked)

    async def wonder(self, table: str) -> None:
        """Wonder, and see that it asks exactly if nobody does and the last failure is long enough ago."""
        failed_at = self.failed_at.get(table)
        waits = failed_at is not None and failed_at + ASK_AGAIN_S > self.loop.time()
        asks = not waits and table not in self.under_way
        before = self.asked[table]
        self.kinds.wonder(table)
        await settle()
        assert self.asked[table] - before == asks


def play(seed: int) -> None:
    async def whole() -> None:
        cluster, calls = Cluster(seed), set[asyncio.Task[None]]()
        for _ in range(60):
            table = cluster.dice.choice(TABLES)
            match cluster.dice.choice(("learn", "learn", "wonder", "sleep")):
                case "learn":
                    calls.add(asyncio.create_task(cluster.learn(table)))
                    await settle()
                case "wonder" if table not in cluster.told:  # as whoever has looked for it among the known
                    await cluster.wonder(table)
                case "sleep":
                    await asyncio.sleep(cluster.dice.choice((0.1, ASK_AGAIN_S / 2, ASK_AGAIN_S)))
            for done in [call for call in calls if call.done()]:
                done.result()
            assert cluster.kinds.known.items() <= cluster.told.items()
        await asyncio.wait_for(asyncio.gather(*calls), 60.0)
        await asyncio.sleep(60.0)
        assert cluster.kinds.known == cluster.told
        cluster.kinds.known.clear()
        cluster.told.clear()
        await asyncio.sleep(ASK_AGAIN_S)
        cluster.kinds.wonder("a")
        await settle()
        assert cluster.under_way == {"a"}
        await cluster.kinds.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}, "a question under way ends with the client"

    random.seed(seed)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(whole())


@pytest.mark.parametrize("seed", range(20))
def test_a_kind_is_asked_for_once_at_a_time_until_it_is_told_and_each_caller_waits_for_its_own_time(seed: int) -> None:
    play(seed)


async def test_nothing_is_asked_any_more_once_a_client_is_left() -> None:
    async with FakeGateway() as fake:
        async with Client(fake.endpoints) as client:
            await client.cluster()
            fake.nodes[0].freeze()
            before = asyncio.all_tasks()
            client._connection.kinds.wonder("rows")
            (asking,) = asyncio.all_tasks() - before
            await settle()
            assert not asking.done()
        assert asking.cancelled()
        fake.nodes[0].thaw()
