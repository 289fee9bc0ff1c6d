"""Members come, go, die and are replaced under load and faults: every promise holds, and each planted bug is caught."""

from __future__ import annotations

import contextlib

import pytest

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.errors import ChangePending, ChangeRefused, NotLeader, NotReady, SafetyViolation
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.ports import Role
from tests.consensus.membership_simulation import MembershipSimulation
from tests.consensus.simulation import Simulation


def administered(seed, *, engine_type=Engine, steps=800):
    sim = MembershipSimulation(seed, engine_type=engine_type)
    for _ in range(steps):
        sim.step()
    sim.settle_and_check()
    return sim


@pytest.mark.parametrize("seed", range(20))
def test_promises_hold_while_members_change(seed):
    sim = administered(seed)
    assert len(sim.configurations) >= 3
    assert len(sim.history.acknowledged) > 100


class _Unguarded(Reconfiguration):
    settling = False

    def pending(self, commit_index):
        return self.settling and super().pending(commit_index)

    def settle(self, commit_index):
        self.settling = True
        super().settle(commit_index)
        self.settling = False


class AcceptsOverlappingChanges(Engine):
    """Defect B5: the guard of one change at a time is dead code."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self._leading.changes.__class__ = _Unguarded


class _Late(Membership):
    commit_index = 1

    def _choose(self):
        known = [(self._base_index, self._base), *self._later]
        found = [entry for entry in known if entry[0] <= self.commit_index] or known[:1]
        if found[-1] != (self.current_index, self.current):
            self.current_index, self.current = found[-1]
            self.voters, self.learners = self.current.voters, self.current.learners
            self.version += 1
        self._indexes = frozenset(index for index, _ in self._later)


class FollowsChangesWhenCommitted(Engine):
    """Some nodes go by a configuration only once they know it to be committed."""

    def __init__(self, config, machine, log, **settings):
        if config.node_id != "n1":
            log.membership.__class__ = _Late
        super().__init__(config, machine, log, **settings)

    def tick(self):
        more = super().tick()
        self._membership.commit_index = self.commit_index
        if isinstance(self._membership, _Late):
            self._membership._choose()
            self._configuration_in_force()
        return more


class CountsLearners(Engine):
    """Whoever has the entries counts."""

    def _configuration_in_force(self):
        self._membership.voters = frozenset(self._membership.current.members)
        super()._configuration_in_force()


class CampaignsWhenRemoved(Engine):
    """A node that is no voter asks for votes all the same."""

    def _configuration_in_force(self):
        super()._configuration_in_force()
        self._election.set_voters(self._membership.voters | {self.config.node_id}, self._now)


class ChangesBeforeItsTerm(Engine):
    """A new leader changes members before it has committed an entry of its own term."""

    def remove_member(self, node_id, token):
        self._leading.changes.remove(node_id, token, ready=True, commit_index=self.commit_index)


@pytest.mark.parametrize(
    ("engine_type", "symptom"), [(CountsLearners, "does not vote"), (CampaignsWhenRemoved, "does not vote")]
)
def test_a_planted_bug_is_caught_under_random_changes(engine_type, symptom):
    caught = []
    for seed in range(4):
        try:
            administered(seed, engine_type=engine_type)
        except AssertionError as error:
            caught.append(str(error))
    assert any(symptom in text for text in caught)


# -- the rules that random changes rarely test: each scenario is the one that the rule is for ----------------


def led_by_n1(seed, engine_type, names):
    sim = Simulation(seed, engine_type=engine_type, names=names, faults=False)
    sim.inside_flush = lambda node: None
    sim.run_until(sim.leader)
    sim.settle_and_check()
    if sim.leader().name != "n1":
        sim.leader().engine.transfer("n1", lambda result: None, 1.0)
        sim.run_until(lambda: sim.leader() is not None and sim.leader().name == "n1")
    sim.settle_and_check()
    return sim


def step_for(sim, seconds):
    end = sim.now + seconds
    sim.run_until(lambda: sim.now > end)


def remove(node, name):
    with contextlib.suppress(ChangePending, ChangeRefused, NotReady, NotLeader):
        node.engine.remove_member(name, lambda index: None)


def several_changes_in_a_minority(seed, engine_type):
    """A leader that is cut off with one follower removes all others, one after the other, before it notices."""
    sim = led_by_n1(seed, engine_type, ("n1", "n2", "n3", "n4", "n5"))
    sim.cut = {"n1", "n2"}
    for name in ("n3", "n4", "n5"):
        remove(sim.nodes["n1"], name)
        sim.step()
    step_for(sim, 10)
    return sim


def a_change_whose_commit_a_follower_missed(seed, engine_type):
    """n3 has the removal of n5, not its commit, when it is left with n4 and n5, and n1 and n2 remove n4."""
    sim = led_by_n1(seed, engine_type, ("n1", "n2", "n3", "n4", "n5"))
    sim.cut = {"n4", "n5"}
    sim.step()
    first = sim.nodes["n1"].engine
    remove(sim.nodes["n1"], "n5")
    sim.run_until(lambda: "n5" not in first.membership.current.members and not first.change_pending)
    # The commit goes out with the next message, which is lost.
    sim.cut = {"n1", "n2"}
    sim.step()
    remove(sim.nodes["n1"], "n4")
    step_for(sim, 10)
    return sim


def changes_of_two_terms(seed, engine_type):
    """n1 alone removes n2; n2, elected by the others, removes n1 before n4 has heard anything of the new term.

    Source: the bug of single-server changes, raft-dev mailing list, July 2015.
    """
    sim = led_by_n1(seed, engine_type, ("n1", "n2", "n3", "n4"))
    sim.client = lambda: None
    sim.cut = {"n1"}
    sim.step()
    remove(sim.nodes["n1"], "n2")
    sim.step()
    for name in ("n3", "n4"):
        sim.nodes[name].engine._election.deadline = sim.now + 5
    sim.run_until(lambda: sim.nodes["n2"].engine.role is Role.LEADER)
    sim.cut = {"n1", "n4"}
    remove(sim.nodes["n2"], "n1")
    del sim.client
    step_for(sim, 10)
    return sim


SCENARIOS = [
    (several_changes_in_a_minority, AcceptsOverlappingChanges),
    (a_change_whose_commit_a_follower_missed, FollowsChangesWhenCommitted),
    (changes_of_two_terms, ChangesBeforeItsTerm),
]


@pytest.mark.parametrize(("scenario", "planted"), SCENARIOS)
@pytest.mark.parametrize("seed", range(3))
def test_no_two_majorities_decide_apart(scenario, planted, seed):
    sim = scenario(seed, Engine)
    sim.cut = set()
    step_for(sim, 10)
    members = max(sim.nodes.values(), key=lambda node: node.engine.commit_index).engine.membership.current.members
    sim.lasting = lambda: [node for node in sim.nodes.values() if node.name in members]
    sim.settle_and_check()


@pytest.mark.parametrize(("scenario", "planted"), SCENARIOS)
def test_a_broken_rule_of_membership_makes_two_majorities(scenario, planted):
    caught = []
    for seed in range(5):
        try:
            sim = scenario(seed, planted)
            sim.cut = set()
            step_for(sim, 10)
        except (AssertionError, SafetyViolation) as error:
            caught.append(str(error))
    assert any("index" in text or "committed" in text for text in caught), caught


def test_a_removal_that_is_not_committed_cuts_nobody_off():
    """A node that has a cut-off leader's removal of n3 in its log still follows n3, when the others elect it."""
    sim = led_by_n1(1, Engine, ("n1", "n2", "n3"))
    sim.cut = {"n1"}
    sim.step()
    remove(sim.nodes["n1"], "n3")
    sim.step()
    engine = sim.nodes["n1"].engine
    assert "n3" not in engine.membership.current.members
    assert "n3" in engine.wanted_peers()
    sim.nodes["n2"].engine._election.deadline = sim.now + 5
    sim.run_until(lambda: sim.nodes["n3"].engine.ready)
    sim.cut = set()
    sim.run_until(lambda: engine.leader_id == "n3" and "n3" in engine.membership.current.members)
    sim.settle_and_check()
    # Once committed, a removal does.
    leader = sim.leader()
    remove(leader, next(name for name in ("n1", "n2") if name != leader.name))
    sim.run_until(lambda: len(leader.engine.membership.voters) == 2 and not leader.engine.change_pending)
    sim.run_until(lambda: len(leader.engine.wanted_peers()) == 1)
