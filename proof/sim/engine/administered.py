"""The members of a simulated cluster as one node sees them, and what an administrator asks of it.

Owns: whom the node would be connected with, changes of the members and transfers of leadership with their answers, and
the check that nobody acts as a voter who is none. Read next: :mod:`oncegate.proof.sim.engine.engine_node`.
"""

from __future__ import annotations

from itertools import count

from oncegate.consensus.configuration import RaftMember
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import Role
from oncegate.proof.sim.engine.node import SimNode
from oncegate.proof.sim.engine.observe import Violation


class Administered(SimNode):
    """The part of an engine's node that knows members."""

    def __init__(self, world, name, rng):
        super().__init__(world, name, rng)
        self.engine = None
        self._tokens = count(1)
        self.begin_administration()

    def begin_administration(self):
        """A process starts, or is gone: nobody waits for anything here."""
        self._changes = set()
        self._configured = None

    def accepts(self, peer):
        """Whether this node would be connected with that one."""
        engine = self.engine
        return engine is not None and (engine.peers.hears_anyone(engine.raft.leader()) or peer in engine.wanted_peers())

    def dials(self, peer):
        """Whether this node knows that one as somebody to be connected with."""
        return self.engine is not None and peer in self.engine.wanted_peers()

    def _peers_changed(self):
        self.world.scheduler.after(0.0, self._leave_strangers, self.life)

    def _leave_strangers(self, life):
        if life == self.life and self.alive:
            for peer in self.world.nodes:
                if peer != self.name and not self.accepts(peer):
                    self.world.network.cut(self.name, peer)

    def _check_members(self):
        engine = self.engine
        membership = engine.membership
        if engine.raft.role() is not Role.FOLLOWER and self.name not in membership.voters:
            raise Violation("members", f"{self.name} is {engine.raft.role().value} and does not vote")
        saving = engine._saving
        if engine.raft.role() is not Role.LEADER and saving is not None and saving.needed_from is not None:
            raise Violation("saving", f"{self.name} keeps its log for followers that it does not lead")
        index, known = membership.current_index, (membership.version, membership.current_index)
        if known != self._configured and index <= engine.raft.commit_index() and membership.current.members:
            self._configured = known
            self.world.see.configured(self.name, index, membership.at(index))

    @property
    def change_pending(self):
        """A change of the members is under way here."""
        engine = self.engine
        return engine is not None and engine.leading.changes.pending(engine.raft.commit_index())

    @property
    def changes_wait(self):
        """Somebody waits for a change of the members."""
        return bool(self._changes)

    def change_members(self, what, which):
        """Add a machine that was never a member, or remove one; ``which`` in 0..1 chooses."""
        self.handle(self._change_members, what, which)

    def _change_members(self, what, which):
        engine, world = self.engine, self.world
        if engine.raft.role() is not Role.LEADER:
            return
        known = engine.membership.current
        name = world.next_joiner(which) if what == "add" else world.may_remove(known, which)
        if name == self.name:
            self._transfer(None, 1.0)
        elif name is not None:
            self._ask("added" if what == "add" else "removed", name)

    def add_member(self, name):
        """Ask for a member more."""
        self.handle(self._ask, "added", name)

    def remove_member(self, name):
        """Ask for a member less."""
        self.handle(self._ask, "removed", name)

    def _ask(self, what, name):
        engine, world = self.engine, self.world
        token = ("admin", what, (next(self._tokens), name))
        try:
            if what == "added":
                engine.add_member(name, RaftMember("127.0.0.1", 1), token)
            else:
                engine.remove_member(name, token)
        except ConsensusError:
            world.counts["changes refused"] += 1
            return
        world.answers.proposed(self.name, token)
        self._changes.add(token)
        world.scheduler.after(3.0, self.handle, self._give_up, token, self.life)
        self.wake(0.0)

    def _changed(self, what, name, index):
        """An administrator is told that a change is done: it is in force here, and committed."""
        membership = self.engine.membership
        in_force = name in membership.voters if what == "added" else name not in membership.current.members
        if not in_force or self.engine.raft.commit_index() < max(index, membership.current_index):
            raise Violation("members", f"{self.name} says that {name} is {what}, which is not committed")

    def _give_up(self, token, life):
        if life == self.life and token in self._changes:
            self.engine.leading.changes.forget(token)
            self._failure(token, None)

    def transfer(self, target, timeout_s=1.0):
        """Hand leadership over; ``target`` is a node's name, or None for the most up-to-date voter."""
        self.handle(self._transfer, target, timeout_s)

    def _transfer(self, target, timeout_s):
        token = ("admin", "transfers", next(self._tokens))
        try:
            self.engine.transfer(target, token, timeout_s)
        except ConsensusError:
            self.world.counts["transfers refused"] += 1
            return
        self.world.answers.proposed(self.name, token)
        self.wake(0.0)
