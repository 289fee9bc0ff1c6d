"""The simulation with an administrator: members come, go, die and are replaced, leadership is handed around.

Checked beside the promises of :mod:`tests.consensus.simulation`, all the time: one leader a term (election safety); who
leads or campaigns votes in its own configuration; what a leader commits is in the logs of a majority of voters; an
answered addition or removal is committed; configurations on all nodes agree at every index that is committed.
"""

from __future__ import annotations

from pathlib import Path

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import Role
from tests.consensus.simulation import SimNode, Simulation


class MembershipSimulation(Simulation):
    """Three first nodes; up to five vote at a time, and a dozen may have been members in the end."""

    def __init__(self, seed, *, engine_type=Engine, faults=True, voters_max=5, nodes_max=12):
        self.first = ("n1", "n2", "n3")
        self.joiners = {}
        self.leaders = {}
        self.configurations = {}
        self.voters_max, self.nodes_max = voters_max, nodes_max
        self.dead = None
        self.done = {"added": 0, "removed": 0, "transferred": 0, "died": 0}
        self.administered = True
        self.commits = {}
        super().__init__(seed, engine_type=engine_type, names=self.first, faults=faults)

    def config(self, name):
        joining = name in self.joiners
        seeds = self.joiners[name] if joining else [other for other in self.first if other != name]
        return ReplicaConfig(
            node_id=name,
            cluster_id="sim",
            listen=("127.0.0.1", 1),
            peers=dict.fromkeys(seeds, ("127.0.0.1", 1)),
            joining=joining,
            data_dir=Path("unused"),
            command_bytes_max=4096,
            append_bytes_max=300,
            in_flight_bytes_max=1500,
            journal_segment_bytes=1 << 15,
            log_memory_bytes_max=1 << 12,
        )

    # -- the administrator -------------------------------------------------------------------------------

    def administer(self):
        if self.rng.random() > 0.04:
            return
        leaders = [node for node in self.nodes.values() if node.engine and not node.busy and node.engine.ready]
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        engine = leader.engine
        members = engine.membership.current.members
        settled = not engine.change_pending
        if self.dead is not None and settled and self.dead not in members:
            self.dead = None
        voters = sorted(engine.membership.current.voters)
        choice = self.rng.choice(("add", "add", "remove", "remove", "transfer", "die"))
        try:
            if choice == "add" and len(members) < self.voters_max:
                self.add(engine)
            elif choice == "remove" and (len(voters) > 3 or self.dead in members):
                self.remove(engine, self.dead if self.dead in members else self.rng.choice(voters))
            elif choice == "transfer":
                engine.transfer(self.rng.choice((None, *voters)), self.count("transferred"), 1.0)
            elif choice == "die" and settled and self.dead is None and len(voters) >= 3 and self.faults:
                self.die(self.nodes[self.rng.choice(voters)])
        except ConsensusError:
            pass

    def add(self, engine):
        waiting = [name for name in self.joiners if not self.nodes[name].retired and name not in self.ever_members()]
        if not waiting:
            if len(self.nodes) >= self.nodes_max:
                return
            name = f"n{len(self.nodes) + 1:02}"
            self.joiners[name] = [other for other in self.nodes if not self.nodes[other].retired]
            self.nodes[name] = SimNode(self, name)
            self.nodes[name].start()
            waiting = [name]
        name = waiting[0]

        def added(index):
            assert name in engine.membership.current.voters
            assert engine.commit_index >= index
            self.done["added"] += 1

        engine.add_member(name, RaftMember("127.0.0.1", 1), added)

    def remove(self, engine, name):
        if name == engine.config.node_id:
            engine.transfer(None, self.count("transferred"), 1.0)
            return

        def removed(index):
            assert name not in engine.membership.current.members
            assert engine.commit_index >= index
            self.done["removed"] += 1

        engine.remove_member(name, removed)

    def die(self, node):
        """For ever: somebody must replace it."""
        self.dead = node.name
        node.retired = True
        self.done["died"] += 1
        self.kill(node)

    def count(self, what):
        def one(result):
            self.done[what] += 1

        return one

    def ever_members(self):
        return {name for configuration in self.configurations.values() for name in configuration.members}

    # -- checks ------------------------------------------------------------------------------------------

    def check(self):
        for node in self.nodes.values():
            engine = node.engine
            if engine is None or node.busy:
                continue
            membership = engine.membership
            if engine.role is not Role.FOLLOWER:
                assert node.name in membership.current.voters, f"{node.name} is {engine.role} and does not vote"
            if engine.role is Role.LEADER:
                leader = self.leaders.setdefault(engine.term, node.name)
                assert leader == node.name, f"{leader} and {node.name} lead term {engine.term}"
                self.check_commit(node)
            if membership.current.members and membership.current_index <= engine.commit_index:
                index, current = membership.current_index, membership.current
                known = self.configurations.setdefault(index, current)
                assert known == current, f"two committed configurations at index {index}"

    def check_commit(self, leader):
        engine = leader.engine
        commit = engine.commit_index
        if commit <= self.commits.get(leader.name, 0):
            return
        self.commits[leader.name] = commit
        # Decided under the configuration in force then: the one committed with the entry, or one appended later.
        membership = engine.membership
        later = {configuration.voters for index, configuration in membership._later if index > commit}
        candidates = later | {membership.committed(commit).voters}
        enough = any(self.may_hold(voters, engine, commit) > len(voters) // 2 for voters in candidates)
        assert enough, f"entry {commit} is committed by a minority"

    def may_hold(self, voters, leader, index):
        """How many have the entry; one that is down may have it."""
        engines = [self.nodes[name].engine for name in voters]
        return sum(engine is None or engine.log.term_at(index) == leader.log.term_at(index) for engine in engines)

    def step(self):
        super().step()
        if self.administered:
            self.administer()
        self.check()

    def lasting(self):
        """Those that the committed configuration names, once every learner is promoted."""
        self.administered = False

        def settled():
            leader = self.leader()
            return leader and not leader.engine.change_pending and not leader.engine.membership.learners

        self.run_until(settled)
        members = self.leader().engine.membership.current.members
        return [node for node in self.nodes.values() if node.name in members and not node.retired]
