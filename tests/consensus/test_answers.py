"""An answer belongs to the connection that brought its question: a new process counts its questions from 1 again."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from oncegate.consensus.messages import CallReply, ReadReply, ReadRequest
from oncegate.consensus.net.calls import Calls
from oncegate.consensus.replica.inbound import Inbound
from oncegate.consensus.replica.read_points import ReadPoints
from oncegate.consensus.replica.ticker import FollowerReads
from tests.consensus.cluster import Cluster, until


class HeldCluster(Cluster):
    """Answers each call when the test lets it."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.may_answer = defaultdict(asyncio.Event)

    async def on_call(self, node_id, payload):
        await self.may_answer[payload].wait()
        return await super().on_call(node_id, payload)


async def test_answer_of_another_peer_than_the_one_that_was_called_is_dropped():
    calls = Calls(lambda node_id, message: True, None, 1000)
    asked = asyncio.create_task(calls.call("n2", b"question", 20))
    await asyncio.sleep(0)
    calls.replied("n3", CallReply(1, b"forged", None))
    calls.replied("n2", CallReply(1, b"answer", None))
    assert await asked == b"answer"


async def test_late_answer_to_a_process_that_is_gone_is_not_taken_for_the_answer_to_its_successor(tmp_path):
    cluster = await HeldCluster(tmp_path).start()
    try:
        served = cluster.replicas["n2"]._calls._serving

        async def call(payload, served_before):
            await until(lambda: cluster.replicas["n1"].status().peers["n2"].connected)
            task = asyncio.ensure_future(cluster.replicas["n1"].call("n2", payload, timeout_s=20))
            await until(lambda: len(served) > served_before)
            return task

        forgotten = await call(b"first", 0)
        await cluster.stop("n1")
        assert forgotten.exception() is not None
        await cluster.start("n1")
        second = await call(b"second", 1)
        cluster.may_answer[b"first"].set()
        await until(lambda: len(served) == 1)
        # What comes behind it on the same connection has come: so would it have.
        cluster.may_answer[b"third"].set()
        assert await cluster.replicas["n1"].call("n2", b"third", timeout_s=20) == b"n1:third"
        cluster.may_answer[b"second"].set()
        assert await second == b"n1:second"
    finally:
        await cluster.stop()


class Leading:
    """An engine that leads and has no read point yet, and knows who is connected."""

    leader_id = "n1"
    tick_wanted = False

    def __init__(self):
        self.epochs, self.reads = {}, []
        self.leading = self.peers = self.inbox = self

    def peer_up(self, peer_id, epoch):
        self.epochs[peer_id] = epoch

    def is_connected(self, peer_id, epoch):
        return self.epochs.get(peer_id) == epoch

    def read(self, token):
        self.reads.append(token)

    def show_commit(self, peer_id):
        pass


class Ticks:
    def soon(self):
        pass


def inbound_of(engine, reads, said):
    calls = Calls(lambda peer, message: True, None, 1024)
    points = ReadPoints(reads, lambda: None)
    return Inbound(engine, calls, reads, points, Ticks(), lambda peer, message: said.append((peer, message)))


async def test_read_point_for_a_process_that_is_gone_is_not_given_to_its_successor():
    engine, said = Leading(), []
    inbound = inbound_of(engine, FollowerReads(lambda peer, message: None, lambda read, error: None), said)
    for epoch in (71, 72):
        inbound.peer_up("n2", epoch)
        inbound.peer_said("n2", epoch, [ReadRequest(1)])
    before, after = engine.reads
    before.set_result(5)
    await asyncio.sleep(0)
    assert said == []
    after.set_result(9)
    await asyncio.sleep(0)
    assert said == [("n2", ReadReply(1, 9))]


async def test_what_was_asked_on_a_connection_that_was_replaced_is_asked_again():
    asked = []
    reads = FollowerReads(lambda peer, message: asked.append((peer, message)), lambda read, error: None)
    inbound = inbound_of(Leading(), reads, [])
    read = asyncio.get_running_loop().create_future()
    inbound.peer_up("n1", 71)
    reads.add(read)
    reads.ask("n1")
    inbound.peer_up("n3", 5)
    assert reads.waiting == []
    inbound.peer_up("n1", 72)
    reads.ask("n1")
    assert asked == [("n1", ReadRequest(1)), ("n1", ReadRequest(2))]
    assert reads.answered("n1", ReadReply(1, 4)) == []
    assert reads.answered("n1", ReadReply(2, 9)) == [read]
