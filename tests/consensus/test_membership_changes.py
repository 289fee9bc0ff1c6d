"""Growing, shrinking, replacing and handing over, with real replicas under load."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time

import pytest

from oncegate.consensus import (
    ChangeRefused,
    CommandReserved,
    ConsensusError,
    IdentityMismatch,
    NotLeader,
    Role,
    Timeout,
    TransferFailed,
    Transferring,
)
from oncegate.consensus.configuration import MAGIC, RaftMember
from tests.consensus.cluster import Cluster, running, until


class Load:
    """Clients that propose at whoever leads, and remember what was acknowledged and what may have been applied."""

    def __init__(self, cluster, clients=8):
        self.cluster = cluster
        self.acknowledged, self.open = [], []
        self.gaps = [0.0]
        self.proposed = 0
        self.stopping = False
        self.tasks = [asyncio.create_task(self.client()) for _ in range(clients)]
        self.last = time.monotonic()

    async def client(self):
        while not self.stopping:
            name = self.cluster.leader_now()
            if name is None:
                await asyncio.sleep(0.001)
                continue
            self.proposed += 1
            command = b"command %d" % self.proposed
            try:
                self.open.append(command)
                future = self.cluster.replicas[name].propose(command)
            except ConsensusError as refused:
                if refused.outcome == "not_applied":
                    self.open.remove(command)
                await asyncio.sleep(0.001)
                continue
            try:
                await future
            except ConsensusError as error:
                if error.outcome == "not_applied":
                    self.open.remove(command)
                continue
            self.open.remove(command)
            self.acknowledged.append(command)
            now = time.monotonic()
            self.gaps.append(now - self.last)
            self.last = now

    async def stop(self):
        """All clients end: no proposal is left without an outcome."""
        self.stopping = True
        async with asyncio.timeout(20):
            await asyncio.gather(*self.tasks)

    def check(self, *names):
        for name in names:
            commands = self.cluster.machines[name].commands
            assert len(set(commands)) == len(commands), "applied twice"
            assert not set(self.acknowledged) - set(commands), "lost"


@contextlib.asynccontextmanager
async def under_load(cluster, **settings):
    load = Load(cluster, **settings)
    try:
        yield load
    finally:
        await load.stop()


async def at_leader(cluster, operation):
    """Repeat at whoever leads what was refused and may be repeated, as an operator would."""
    async with asyncio.timeout(30):
        while True:
            replica = cluster.replicas[await cluster.leader()]
            try:
                return await operation(replica)
            except ConsensusError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(0.005)


async def connected_leader(cluster):
    """A leader that has met every member, and so knows its data directory; and another member."""
    name, _, other = await cluster.by_role()
    await until(lambda: all(peer.connected for peer in cluster.replicas[name].status().peers.values()))
    return name, other


async def applied_everywhere(cluster, *names):
    index = cluster.replicas[await cluster.leader()].status().commit_index
    for name in names:
        await cluster.replicas[name].wait_applied(index, timeout_s=20)


async def test_three_grow_to_five_and_shrink_to_three_others_under_load(tmp_path):
    async with running(tmp_path) as cluster:
        async with under_load(cluster) as load:
            for name in ("n4", "n5"):
                await cluster.join(name)
                await at_leader(cluster, lambda leader, name=name: leader.add_member(name, cluster.member(name)))
                assert name in cluster.replicas[await cluster.leader()].status().configuration.voters
            for name in ("n1", "n2"):
                await at_leader(cluster, lambda leader, name=name: leader.remove_member(name))
                assert name not in cluster.replicas[await cluster.leader()].status().configuration.members
                await cluster.stop(name)
            done = len(load.acknowledged)
            await until(lambda: len(load.acknowledged) > done + 50)
        await applied_everywhere(cluster, "n3", "n4", "n5")
        load.check("n3", "n4", "n5")
        logs = [cluster.machines[name].entries for name in ("n3", "n4", "n5")]
        assert logs[0] == logs[1] == logs[2]
        for name in ("n3", "n4", "n5"):
            assert cluster.replicas[name].status().configuration.voters == {"n3", "n4", "n5"}


async def test_a_cluster_of_one_grows_to_three(tmp_path):
    async with running(tmp_path, ("n1",)) as cluster:
        await cluster.replicas["n1"].propose(b"alone")
        for name in ("n2", "n3"):
            await cluster.join(name)
            await cluster.replicas["n1"].add_member(name, cluster.member(name))
        await cluster.stop("n1")
        leader = cluster.replicas[await cluster.leader()]
        await leader.propose(b"without the first")
        await cluster.start("n1")
        await applied_everywhere(cluster, "n1", "n2", "n3")
        assert cluster.machines["n1"].commands == [b"alone", b"without the first"]


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "cut off"])
@pytest.mark.parametrize("new", ["n0", "n4"])
async def test_a_voter_that_missed_an_addition_follows_the_added_member_when_it_leads(tmp_path, new, restarted):
    async with running(tmp_path) as cluster:
        name, late, other = await cluster.by_role()
        if restarted:
            await cluster.stop(late)
        else:
            transport = cluster.replicas[late]._transport
            # In the dark: it refuses and loses everybody, and goes on running.
            transport._welcome.__class__ = type(
                "Nobody", (type(transport._welcome),), {"__contains__": lambda *_: False}
            )
            for connection in list(transport._peers.values()):
                connection.abort()
        await cluster.join(new)
        await at_leader(cluster, lambda leader: leader.add_member(new, cluster.member(new)))
        await at_leader(cluster, lambda leader: leader.transfer_leadership(new))
        await cluster.replicas[new].propose(b"led by the new one")
        if restarted:
            await cluster.start(late)
        else:
            transport._welcome.__class__ = type(transport._welcome).__mro__[1]
        await until(lambda: b"led by the new one" in cluster.machines[late].commands)
        assert cluster.replicas[late].status().leader_id == new
        assert new in cluster.replicas[late].configuration.members
        # It counts again: without the third, nothing could be committed otherwise.
        await cluster.stop(other if other != new else name)
        await cluster.replicas[new].propose(b"with it")


async def test_a_joiner_alone_never_campaigns(tmp_path):
    async with running(tmp_path, election_ms_min=300, election_ms_max=400) as cluster:
        leader = await cluster.leader()
        term = cluster.replicas[leader].status().term
        await cluster.join("n4")
        joiner = cluster.replicas["n4"]
        deadline = joiner._engine._election.deadline
        await until(lambda: joiner._engine._election.deadline > deadline + 1.0)
        status = joiner.status()
        assert (status.role, status.term, status.counters.pre_votes_started) == (Role.FOLLOWER, 0, 0)
        assert not any(peer.connected for peer in status.peers.values())
        assert cluster.replicas[leader].status().term == term


async def test_a_learner_that_was_given_up_is_still_promoted_by_the_next_leader(tmp_path):
    async with running(tmp_path) as cluster:
        name = await cluster.leader()
        leader = cluster.replicas[name]
        leader._engine.leading.changes.promote = lambda *arguments, **settings: False
        await cluster.join("n4")
        with pytest.raises(Timeout) as late:
            await leader.add_member("n4", cluster.member("n4"), timeout_s=0.2)
        assert late.value.outcome == "unknown"
        await leader.transfer_leadership()
        new = cluster.replicas[await cluster.leader()]
        assert new is not leader
        await until(lambda: "n4" in new.status().configuration.voters and not new.status().change_pending)


async def test_a_stranger_without_a_secret_cannot_be_added_from_elsewhere(tmp_path):
    async with running(tmp_path, ("n1",)) as cluster:
        with pytest.raises(ValueError, match="secret"):
            await cluster.replicas["n1"].add_member("n2", RaftMember("192.0.2.1", 1))


async def test_a_leader_that_is_to_remove_itself_refers_to_its_successor(tmp_path):
    async with running(tmp_path) as cluster, under_load(cluster) as load:
        old = await cluster.leader()
        with pytest.raises(NotLeader) as referred:
            await cluster.replicas[old].remove_member(old)
        new = referred.value.leader_id
        assert new not in (None, old)
        await at_leader(cluster, lambda leader: leader.remove_member(old))
        removed = cluster.replicas[old]
        # It learns that it is removed, and stays quiet.
        await until(lambda: old not in removed.status().configuration.members)
        await until(lambda: not any(peer.connected for peer in removed.status().peers.values()))
        term = cluster.replicas[await cluster.leader()].status().term
        started = removed.status().counters.pre_votes_started
        deadline = removed._engine._election.deadline
        await until(lambda: removed._engine._election.deadline > deadline + 1.0)
        assert removed.status().counters.pre_votes_started == started
        assert cluster.replicas[await cluster.leader()].status().term == term
        done = len(load.acknowledged)
        await until(lambda: len(load.acknowledged) > done + 20)


async def test_a_node_that_missed_its_removal_is_refused_and_deposes_nobody(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as cluster:
        name, _, gone = await cluster.by_role()
        await cluster.stop(gone)
        leader = cluster.replicas[name]
        await leader.remove_member(gone)
        term = leader.status().term
        await cluster.start(gone)
        await until(lambda: f"node {gone} is refused by" in caplog.text)
        removed = cluster.replicas[gone]
        started = removed.status().counters.pre_votes_started
        await until(lambda: removed.status().counters.pre_votes_started > started + 3)
        assert removed.status().role is Role.FOLLOWER
        assert (leader.status().role, leader.status().term) == (Role.LEADER, term)
        assert removed.status().term <= term


async def test_a_command_that_looks_like_a_configuration_is_refused(tmp_path):
    async with running(tmp_path, ("only",)) as cluster:
        with pytest.raises(CommandReserved) as refused:
            cluster.replicas["only"].propose(MAGIC + b"anything")
        assert refused.value.outcome == "not_applied"


async def test_members_that_differ_from_those_the_directory_was_made_with_are_refused(tmp_path):
    cluster = await Cluster(tmp_path, ("n1",)).start()
    await cluster.stop()
    other = Cluster(tmp_path, ("n1", "n2", "n3"))
    with pytest.raises(IdentityMismatch, match="members"):
        await other.start("n1")


# -- handing over ------------------------------------------------------------------------------------------


async def test_transfers_under_load_lose_nothing_and_leave_nobody_waiting(tmp_path):
    async with running(tmp_path) as cluster:
        async with under_load(cluster) as load:
            for _ in range(6):
                name = await cluster.leader()
                done = len(load.acknowledged)
                await until(lambda done=done: len(load.acknowledged) > done + 20)
                try:
                    new = await cluster.replicas[name].transfer_leadership()
                except TransferFailed:
                    continue
                await until(lambda new=new: cluster.leader_now() == new)
        await applied_everywhere(cluster, *cluster.names)
        load.check(*cluster.names)
        # Every proposal was applied or refused before it was appended.
        assert load.open == []


async def test_a_transfer_to_a_node_that_cannot_take_over_ends_and_the_leader_goes_on(tmp_path):
    async with running(tmp_path, election_ms_min=300, election_ms_max=400) as cluster:
        name, target, other = await cluster.by_role()
        leader = cluster.replicas[name]
        await until(lambda: all(leader.status().peers[peer].connected for peer in (target, other)))
        cluster.replicas[target]._engine._voting.told_to_campaign = lambda peer_id, message, now: None
        transfer = asyncio.create_task(leader.transfer_leadership(target))
        await until(lambda: leader.status().transfer_target == target)
        with pytest.raises(Transferring) as refused:
            leader.propose(b"meanwhile")
        assert (refused.value.outcome, refused.value.retryable) == ("not_applied", True)
        with pytest.raises(ChangeRefused):
            await leader.transfer_leadership(other)
        with pytest.raises(TransferFailed):
            await transfer
        await leader.propose(b"afterwards")
        with pytest.raises(ChangeRefused):
            await leader.transfer_leadership(name)


async def test_a_drained_leader_hands_over_before_it_stops(tmp_path):
    async with running(tmp_path, election_ms_min=5000, election_ms_max=9000) as cluster, under_load(cluster) as load:
        for _ in range(2):
            name = await cluster.leader()
            done = len(load.acknowledged)
            await until(lambda done=done: len(load.acknowledged) > done + 20)
            await cluster.replicas.pop(name).stop(drain=True)
            successor = await cluster.leader()
            reasons = [change.reason for node, change in cluster.roles if node == successor]
            assert f"transfer from {name}" in reasons
            await cluster.start(name)
        await load.stop()
        assert load.open == []


async def test_a_lone_node_and_a_follower_drain_at_once(tmp_path):
    async with running(tmp_path, ("only",)) as cluster:
        await cluster.replicas["only"].stop(drain=True)
        cluster.replicas.clear()
    async with running(tmp_path / "three") as cluster:
        name, follower, _ = await cluster.by_role()
        await cluster.replicas[follower].stop(drain=True)
        del cluster.replicas[follower]
        assert cluster.replicas[name].status().role is Role.LEADER


# -- reasons and counters ------------------------------------------------------------------------------------


async def test_each_role_change_says_why(tmp_path):
    async with running(tmp_path, election_ms_min=300, election_ms_max=400) as cluster:
        name = await cluster.leader()

        def reasons(node):
            return [change.reason for found, change in cluster.roles if found == node]

        assert any(reason.startswith("election won in term") for reason in reasons(name))
        new = await cluster.replicas[name].transfer_leadership()
        await cluster.leader()
        assert f"transfer from {name}" in reasons(new)
        assert any("later term" in reason and new in reason for reason in reasons(name))
        await cluster.stop(new)
        after = await cluster.leader()
        assert any(f"the connection to the leader {new} closed" in reasons(node) for node in cluster.replicas)
        cluster.cut(after)
        await until(lambda: "no quorum for 0.4 s" in reasons(after))
        assert all(change.reason for _, change in cluster.roles)


async def test_the_status_counts_what_happened(tmp_path):
    async with running(tmp_path) as cluster:
        name, follower, _ = await cluster.by_role()
        leader = cluster.replicas[name]
        await asyncio.gather(*[leader.propose(b"command %d" % number) for number in range(10)])
        future = leader.propose(b"queued")
        status = leader.status()
        assert (status.queued_commands, status.queued_bytes) == (1, 6)
        await future
        status = leader.status()
        assert status.counters.elections_won == 1
        assert status.counters.pre_votes_started >= 1
        assert status.counters.appends_sent > 0
        assert (status.queued_commands, status.appended_commands, status.appended_bytes) == (0, 0, 0)
        await until(lambda: leader.status().peers[follower].lag == 0)
        peer = leader.status().peers[follower]
        assert (peer.next_index, peer.voter) == (leader.status().last_index + 1, True)
        assert cluster.replicas[follower].status().counters.appends_received > 0
        copied = status.counters
        copied.elections_won = 99
        assert leader.status().counters.elections_won == 1


# -- identity ------------------------------------------------------------------------------------------------


async def test_a_wiped_directory_is_refused_until_the_member_is_removed_and_added_again(tmp_path, caplog):
    async with running(tmp_path) as cluster:
        name, wiped = await connected_leader(cluster)
        leader = cluster.replicas[name]
        await leader.propose(b"before")
        await cluster.stop(wiped)
        shutil.rmtree(tmp_path / wiped)
        await cluster.start(wiped)
        await until(lambda: f"node {wiped} is refused by {name}" in caplog.text)
        assert "remove the member, then add it again" in caplog.text
        assert not leader.status().peers[wiped].connected
        assert cluster.replicas[wiped].status().last_index == 1
        await leader.remove_member(wiped)
        await leader.add_member(wiped, cluster.member(wiped))
        await leader.propose(b"after")
        await applied_everywhere(cluster, wiped)
        assert cluster.machines[wiped].commands == [b"before", b"after"]


async def test_a_wiped_node_with_the_lesser_id_is_refused_by_those_that_dial_it(tmp_path, caplog):
    async with running(tmp_path) as cluster:
        name, _ = await connected_leader(cluster)
        if name == "n1":
            await cluster.replicas[name].transfer_leadership()
            name, _ = await connected_leader(cluster)
        await cluster.stop("n1")
        shutil.rmtree(tmp_path / "n1")
        await cluster.start("n1")
        await until(lambda: "refuses 'n1': its data directory is not the one known" in caplog.text)
        await until(lambda: "node n1 is refused by" in caplog.text)
        assert not cluster.replicas[name].status().peers["n1"].connected


@pytest.mark.parametrize("extra_starts", [0, 1, 3, 6])
async def test_a_restored_old_copy_is_refused_however_often_it_is_started(tmp_path, caplog, extra_starts):
    async with running(tmp_path) as cluster:
        name, restored = await connected_leader(cluster)
        await cluster.stop(restored)
        shutil.copytree(tmp_path / restored, tmp_path / "backup")
        for _ in range(3):
            await cluster.start(restored)
            await until(lambda: cluster.replicas[name].status().peers[restored].connected)
            await cluster.replicas[name].propose(b"acknowledged by the one that is lost")
            await cluster.stop(restored)
        shutil.rmtree(tmp_path / restored)
        (tmp_path / "backup").rename(tmp_path / restored)
        for _ in range(extra_starts):
            await cluster.start(restored)
            await cluster.stop(restored)
        caplog.clear()
        await cluster.start(restored)
        await until(lambda: f"node {restored} is refused by {name}" in caplog.text)
        assert "is a copy, or an old one restored" in caplog.text
        assert not cluster.replicas[name].status().peers[restored].connected


async def test_of_two_copies_of_a_directory_one_is_refused(tmp_path, caplog):
    async with running(tmp_path) as cluster:
        name, cloned = await connected_leader(cluster)
        await cluster.stop(cloned)
        shutil.copytree(tmp_path / cloned, tmp_path / "copy")
        await cluster.start(cloned)
        await until(lambda: cluster.replicas[name].status().peers[cloned].connected)
        await cluster.stop(cloned)
        # As often opened as the original: only the random number of its last start tells them apart.
        shutil.rmtree(tmp_path / cloned)
        (tmp_path / "copy").rename(tmp_path / cloned)
        await cluster.start(cloned)
        await until(lambda: f"node {cloned} is refused by {name}" in caplog.text)
        assert not cluster.replicas[name].status().peers[cloned].connected
