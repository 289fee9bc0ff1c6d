"""Whole clusters on simulated time, driven by a script: elections, transfers, catching up, full disks, power loss."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from oncegate.consensus.core.replication import FULL_PAUSE_S
from oncegate.consensus.messages import Ack, Append
from oncegate.proof.sim.engine.checkers import LinearizableReads
from oncegate.proof.sim.engine.engine_node import EngineNode
from oncegate.proof.sim.engine.faults import DEFAULT_MIX, REGISTRY
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.run import run_plan, staged
from oncegate.proof.sim.engine.stage import calm


def passes(seed, **drawn):
    outcome = run_plan(make_plan(seed, **drawn))
    assert not outcome.failed, f"seed {seed}: {outcome.checker}: {outcome.text}"
    return outcome.counts


# -- elections and transfers -------------------------------------------------------------------------------


def test_a_node_that_rejoins_deposes_nobody():
    with staged(calm(3)) as stage:
        leader = stage.leader()
        late, other = map(stage.node, stage.others(leader.name))
        term = leader.term
        stage.connect((leader.name, other.name))
        stage.wait(30)
        stage.connect_all()
        stage.until(lambda: late.engine.leader_id == leader.name)
        stage.same_logs()
        assert stage.leads_now() is leader
        assert {node.term for node in (leader, late, other)} == {term}


def test_a_leader_without_a_quorum_steps_down_within_one_election_time_out():
    with staged(calm(4)) as stage:
        leader = stage.leader()
        began = stage.world.now
        stage.connect(stage.others(leader.name))
        stage.until(lambda: not leader.leads)
        # A clock is up to a fiftieth slow, and what was under way is still acknowledged.
        assert stage.world.now - began <= 1.2 * 1.02 + 0.05


@pytest.mark.parametrize("seed", range(8))
def test_a_transfer_takes_no_election_time_out_and_costs_no_proposal(seed):
    with staged(calm(seed)) as stage:
        old = stage.leader()
        stage.acknowledged(10)
        proposals, unknown = old.engine.leading.proposals, []
        answer = proposals._on_failure
        proposals._on_failure = lambda token, error: (unknown.append(error), answer(token, error))
        target = stage.node(stage.others(old.name)[0])
        stage.linked(old.name, target.name)
        old.transfer(target.name, 5.0)
        stage.until(lambda: old.engine.leading.transfers.told)
        began = stage.world.now
        stage.until(lambda: stage.leads_now() is target)
        assert stage.world.now - began < 0.2
        stage.same_logs()
        assert all(error.outcome == "not_applied" for error in unknown)
        assert old.term == target.term


# -- power loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_entries_survive_power_loss_of_all_nodes(seed):
    """Each acknowledgement needs the follower that loses power inside a flush, and then has to be found on it."""
    rng = random.Random(seed)
    with staged(calm(seed)) as stage:
        for losses in range(1, 6):
            leader = stage.leader()
            needed, spare = rng.sample(stage.others(leader.name), 2)
            stage.connect((leader.name, needed))
            stage.acknowledged(20)
            REGISTRY["power loss"].strike(stage.world, needed, rng.randint(1, 9), (0.1, 0.1, 0.1))
            stage.until(lambda losses=losses: stage.world.counts["power losses"] == 3 * losses)
            stage.connect((needed, spare))
            stage.until(lambda: all(node.alive for node in stage.world.nodes.values()))
            assert stage.leader().name == needed
            stage.acknowledged(5)
            stage.connect_all()


# -- a follower far behind ---------------------------------------------------------------------------------

RATE = 20_000


class WatchedNode(EngineNode):
    """Remembers what it has sent, by the clock of its machine."""

    def boot(self):
        super().boot()
        self.old, self.ends, self.tried, self.full_acks = [], [], [], 0

    def _send(self, peer, message):
        super()._send(peer, message)
        self.full_acks += isinstance(message, Ack) and message.full
        if isinstance(message, Append) and message.entries:
            now, log = self.clock.read(), self.engine.log
            self.tried.append((self.world.now, peer))
            self.ends.append((now, log.end))
            if not log.in_memory(message.prev_index + 1):
                self.old.append((now, sum(len(entry[0]) for entry in message.entries)))

    def grown(self, since, until):
        """Bytes by which its log grew."""
        seen = [end for at, end in self.ends if since <= at <= until]
        return seen[-1] - seen[0]


def left_behind(stage):
    """A follower is cut off while many commands are acknowledged, and then comes back."""
    leader = stage.leader()
    late = stage.others(leader.name)[0]
    stage.connect(stage.others(late))
    stage.acknowledged(200)
    stage.connect_all()
    return leader, stage.node(late)


@pytest.mark.parametrize("seed", range(4))
def test_old_entries_leave_at_the_configured_rate_beyond_the_growth_and_the_follower_catches_up(seed):
    plan = calm(seed, catch_up_bytes_per_s=RATE)
    with staged(plan, node_type=WatchedNode) as stage:
        leader, late = left_behind(stage)
        stage.until(lambda: late.applied_index > leader.applied_index - 20, 60.0)
        assert sum(size for _, size in leader.old) > 10_000
        piece = plan.settings["append_bytes_max"] + plan.settings["command_bytes_max"]
        for start, (began, _) in enumerate(leader.old):
            total = 0
            for at, size in leader.old[start:]:
                total += size
                # The growth of one window sets the rate of the next.
                assert total <= RATE * (at - began) + leader.grown(began - 2, at) + piece + 300


@pytest.mark.parametrize("seed", range(2))
def test_the_leader_goes_on_acknowledging_while_a_follower_catches_up(seed):
    with staged(calm(seed, catch_up_bytes_per_s=RATE)) as stage:
        _, late = left_behind(stage)
        behind, before = late.applied_index, stage.world.counts["acknowledged"]
        stage.until(lambda: late.applied_index > behind + 100)
        assert stage.world.counts["acknowledged"] > before + 30


@pytest.mark.parametrize("deposed", [False, True], ids=["a follower", "a leader with commands of its own"])
@pytest.mark.parametrize("seed", range(4))
def test_a_node_left_behind_gets_the_state_and_goes_on(seed, deposed):
    with staged(calm(seed, save_every=25, log_kept_bytes=0, journal_segment_bytes=10_000)) as stage:
        leader = stage.leader()
        late = leader if deposed else stage.node(stage.others(leader.name)[0])
        stage.connect(stage.others(late.name))

        def forgotten():
            leading = stage.leads_now()
            return leading not in (None, late) and leading.engine.log.base.index > late.engine.log.last_index + 10

        stage.until(forgotten, 60.0)
        stage.connect_all()
        stage.until(lambda: late.machine.installs == 1)
        stage.same_logs()
        assert late.machine.installs == 1
        assert late.engine.log.base.index > 10


def test_promises_hold_while_followers_need_snapshots_under_every_fault():
    totals = Counter()
    for seed in range(10):
        totals += passes(seed, kinds={**DEFAULT_MIX, "script: left behind": 15}, durable=True, seconds=6.0)
    assert totals["snapshots installed"] >= 8
    assert totals["compactions"] > 100


# -- full disks --------------------------------------------------------------------------------------------


def fill(*nodes):
    for node in nodes:
        node.disk.fill()


def free(stage):
    for node in stage.world.nodes.values():
        node.disk.capacity = None


def steady(stage):
    """Run until nothing new is acknowledged, and see that clients still read."""
    counts, reads = stage.world.counts, stage.world.see.find(LinearizableReads)
    before = -1
    while counts["acknowledged"] > before:
        before = counts["acknowledged"]
        stage.wait(1.0)
    before = reads.reads
    stage.until(lambda: reads.reads > before + 10)


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_with_a_full_disk_refuses_and_serves_reads_until_there_is_space(seed):
    with staged(calm(seed)) as stage:
        leader = stage.leader()
        stage.acknowledged(20)
        fill(leader)
        steady(stage)
        assert stage.leads_now() is leader
        free(stage)
        stage.acknowledged(50)


@pytest.mark.parametrize("seed", range(3))
def test_a_follower_with_a_full_disk_holds_nobody_up_and_catches_up_when_there_is_space(seed):
    with staged(calm(seed), node_type=WatchedNode) as stage:
        leader = stage.leader()
        stage.acknowledged(20)
        full = stage.node(stage.others(leader.name)[0])
        fill(full)
        stage.until(lambda: full.full_acks > 3, 60.0)
        since = stage.world.now
        stage.acknowledged(400)
        assert stage.leads_now() is leader
        assert full.engine.log.last_index < leader.engine.log.last_index - 100
        assert leader.engine.leading.replication._progress[full.name].ack_at > leader.clock.read() - 0.5
        # One attempt a pause, and what is in flight when the answer comes.
        tried = sum(at > since + 0.5 for at, peer in leader.tried if peer == full.name)
        assert 0 < tried <= 8 * (stage.world.now - since) / FULL_PAUSE_S + 8
        free(stage)


@pytest.mark.parametrize("seed", range(3))
def test_with_all_disks_full_reads_go_on_a_leader_is_elected_and_nothing_is_lost(seed):
    with staged(calm(seed)) as stage:
        stage.leader()
        stage.acknowledged(20)
        fill(*stage.world.nodes.values())
        steady(stage)
        for _ in range(4):
            old = stage.leader()
            stage.connect(stage.others(old.name))
            stage.until(lambda old=old: stage.leads_now() not in (None, old))
            stage.connect_all()
            # What a vote has freed is gone again.
            fill(*stage.world.nodes.values())
            steady(stage)
        free(stage)
        stage.acknowledged(50)


# -- changes of members ------------------------------------------------------------------------------------


def test_promises_hold_while_members_change():
    """Up to ten machines, of which some die for ever and are replaced."""
    kinds = {"members": 12, "transfer": 3, "kill": 3, "break": 2, "partition": 1, "power loss": 1, "flip": 1}
    totals = Counter()
    for seed in range(6):
        joiners = tuple(f"n{number}" for number in range(4, 11))
        totals += passes(seed, nodes=3, kinds=kinds, joiners=joiners, seconds=6.0)
    assert totals["added"] >= 5
    assert totals["removed"] >= 3
    assert totals["transfers"] >= 3


def test_a_removal_that_is_not_committed_cuts_nobody_off():
    """A node that has a cut-off leader's removal of another in its log still follows that one, when it is elected."""
    with staged(calm(1)) as stage:
        leader = stage.leader()
        stage.same_logs()
        removed, other = stage.others(leader.name)
        stage.connect((removed, other))
        stage.remove_member(removed, leader.name)
        engine = leader.engine
        stage.until(lambda: removed not in engine.membership.current.members)
        assert removed in engine.wanted_peers()
        stage.engine(other)._election.deadline += 5
        stage.until(lambda: stage.engine(removed).leading.ready)
        stage.connect_all()
        stage.until(lambda: engine.leader_id == removed and removed in engine.membership.current.members)
        # Once committed, a removal does.
        stage.remove_member(other, removed)
        now = stage.engine(removed)
        stage.until(
            lambda: len(now.membership.voters) == 2 and not now.leading.changes.pending(now.raft.commit_index())
        )
        stage.until(lambda: len(now.wanted_peers()) == 1)
