"""Planted bugs of members and of snapshots. Read next: :mod:`oncegate.proof.sim.engine.planted`."""

from __future__ import annotations

from oncegate.consensus.core.engine import Engine
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.membership import Membership
from oncegate.proof.sim.engine.durable_machine import DurableMachine, Sink
from oncegate.proof.sim.engine.planting import plant, planted

_MEMBERS = {"kinds": {"members": 6, "partition": 6, "kill": 2}, "fixed": {"joiners": ("n4", "n5"), "seconds": 8.0}}


@planted("counts-learners", "whoever has the entries counts", **_MEMBERS)
class _CountsLearners(Engine):
    def _configuration_in_force(self):
        self._membership.voters = frozenset(self._membership.current.members)
        super()._configuration_in_force()


@planted("campaigns-when-removed", "a node that is no voter asks for votes all the same", **_MEMBERS)
class _CampaignsWhenRemoved(Engine):
    def _configuration_in_force(self):
        super()._configuration_in_force()
        self._election.set_voters(self._membership.voters | {self.config.node_id}, self._now)


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


@planted(
    "members-when-committed", "some nodes go by a configuration only once they know it to be committed", **_MEMBERS
)
class _FollowsChangesWhenCommitted(Engine):
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


_want = Reconfiguration._want
plant(
    "overlapping-changes",
    "the members are changed again before the last change is committed (B5)",
    (Reconfiguration, "_want", lambda *change, ready, commit_index: _want(*change, ready=ready, commit_index=1 << 60)),
    kinds={"script: removals in a minority": 1},
    fixed={"nodes": 5, "joiners": (), "seconds": 8.0, "gap_s": 6.0, "save_every": None},
)
_settle = Reconfiguration.settle
plant(
    "change-answered-early",
    "who waits for a change of members is told before it is committed",
    (Reconfiguration, "settle", lambda changes, commit_index: _settle(changes, 1 << 60)),
    **_MEMBERS,
)

_LEFT_BEHIND = {
    "kinds": {"script: left behind": 5, "transfer": 5, "kill": 2},
    "fixed": {"durable": True, "seconds": 8.0, "gap_s": 0.6},
}
_chunk = Snapshots.chunk


@planted(
    "commits-at-the-first-chunk",
    "the commit index moves when a snapshot begins to come",
    Snapshots,
    "chunk",
    **_LEFT_BEHIND,
)
def _commits_at_the_first_chunk(snapshots, peer_id, epoch, chunk, now):
    """B2: over whatever the follower has behind its commit index."""
    _chunk(snapshots, peer_id, epoch, chunk, now)
    if snapshots._receiving._offer is not None:
        point = snapshots._receiving._offer.manifest.point
        snapshots._raft.installed(min(point.index, snapshots._log.last_index))


plant(
    "log-kept-at-installation",
    "an installation leaves the log as it was",
    (LibraryLog, "reset_to", lambda log, point: None),
    **_LEFT_BEHIND,
)
plant(
    "compacts-before-saved",
    "the log is compacted before the save is durable",
    (DurableMachine, "saved", property(lambda machine: machine.writing.point if machine.writing else machine.point)),
    kinds={"kill": 6, "power loss": 3},
    # What a save adds to the one before has to be longer than the tail of the log that is kept anyway.
    fixed={"durable": True, "sizes": (450,), "clients": 4, "burst": 8, "think_s": 0.005},
)
plant(
    "acks-without-installing",
    "an installation is acknowledged and did not happen",
    (Sink, "install", lambda sink: None),
    **_LEFT_BEHIND,
)
plant(
    "log-kept-for-followers-of-another",
    "a leader that is deposed keeps its log for followers that it had",
    (Snapshots, "end_term", lambda snapshots: snapshots._following.clear()),
    **_LEFT_BEHIND,
)
