"""Bugs that are planted one at a time, to show that the simulator would find them.

Each switches one repair or rule off in the real engine and must be caught within ``seeds`` seeds (test_planted.py).
Read next: :mod:`oncegate.proof.sim.engine.checkers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import oncegate.consensus.core.election
import oncegate.consensus.core.engine
import oncegate.consensus.core.following
import oncegate.consensus.core.leading
import oncegate.consensus.log.wal_recovery
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.core.leader_reads import LeaderReads
from oncegate.consensus.core.leading import Leading
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.core.repairs import Admitted, admit_append
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.core.transfer import Transfers
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.messages import Append, ReadProbeAck, VoteRequest
from oncegate.consensus.snapshot.saving import begin_at_saved
from oncegate.proof.sim.engine.durable_machine import DurableMachine, Sink
from oncegate.proof.sim.engine.engine_node import EngineNode, ObservedLog


@dataclass(frozen=True)
class Planted:
    """One bug: what is wrong, and the parts that are replaced for it."""

    wrong: str
    patches: tuple = ()
    engine_type: type = Engine
    log_type: type = ObservedLog
    kinds: Mapping[str, int] | None = None
    """Faults other than the usual mix."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    seeds: int = 100

    @contextmanager
    def plant(self):
        """Give the type of a node with the bug."""
        node_type = type("PlantedNode", (EngineNode,), {"engine_type": self.engine_type, "log_type": self.log_type})
        with ExitStack() as stack:
            for target, name, replacement in self.patches:
                stack.enter_context(patch.object(target, name, replacement))
            yield node_type


PLANTED: dict[str, Planted] = {}
_LINKS = {"kill": 6, "partition": 5, "break": 6, "slow link": 3}


def _plant(name: str, wrong: str, *patches, **options) -> None:
    PLANTED[name] = Planted(wrong, patches, **options)


def _planted(name: str, wrong: str, *place, **options):
    """Plant what follows: an engine, a journal, or what stands at a place, given as owner and attribute."""

    def enter(bug):
        if place:
            _plant(name, wrong, (*place, bug), **options)
        else:
            _plant(name, wrong, **{"engine_type" if issubclass(bug, Engine) else "log_type": bug}, **options)
        return bug

    return enter


@_planted("ack-before-flush", "acknowledgements and votes leave before the flush")
class _AcksBeforeFlush(Engine):
    def _flush_and_release(self):
        held, self._held = self._held, []
        for peer_id, message in held:
            self._send(peer_id, message)
        self.log.flush()


@_planted("no-sync", "the journal is written and never flushed")
class _NeverSyncs(ObservedLog):
    def flush(self):
        segment = self._segments[-1] if self._segments else None
        if segment is None or type(segment.file) is _Unsynced:
            super().flush()
            return
        segment.file = _Unsynced(segment.file)
        super().flush()


class _Unsynced:
    def __init__(self, file):
        self._file = file

    def sync(self):
        """Forgotten."""

    def __getattr__(self, name):
        return getattr(self._file, name)


@_planted("leader-counts-unflushed", "a leader counts itself for entries it has not flushed")
class _FlushesLater(Engine):
    _flushed_at = 0.0

    def _flush_and_release(self):
        if self._raft.leads() and not self._held and self._now < self._flushed_at + 0.02:
            return
        self._flushed_at = self._now
        super()._flush_and_release()


@_planted("vote-not-saved", "term and vote are kept in memory only", Ballot, "save")
def _keeps_in_memory(ballot, term, voted_for):
    ballot._term, ballot._voted_for = term, voted_for


_plant(
    "corruption-taken-for-torn",
    "an invalid record in the middle of the journal ends it silently",
    (oncegate.consensus.log.wal_recovery, "proof_of_flush", lambda data, offset, header: None),
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: True),
    kinds={"flip": 8, "kill": 3, "partition": 2},
)
_plant(
    "last-batch-taken-for-torn",
    "an invalid record that no later one proves flushed is taken for torn, whatever it looks like",
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: True),
)
_plant(
    "torn-taken-for-corruption",
    "a torn batch is refused",
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: False),
)


@_planted(
    "b1-no-follower-filter", "an append removes a matching suffix", oncegate.consensus.core.following, "admit_append"
)
def _unfiltered(append, log):
    """B1: the library removes whatever is behind the append, matching or not."""
    admitted = admit_append(append, log)
    if not admitted.success:
        return admitted
    last = append.prev_index + len(append.entries)
    return Admitted(
        Append(append.term, append.prev_index, append.prev_term, min(append.commit, last), append.entries), True, last
    )


@_planted(
    "acks-whole-log",
    "a follower acknowledges its whole log where only a part is known to match",
    oncegate.consensus.core.following,
    "admit_append",
    kinds={**_LINKS, "topology": 6},
    fixed={"nodes": 5},
    seeds=200,
)
def _acks_whole_log(append, log):
    admitted = admit_append(append, log)
    if not admitted.success:
        return admitted
    end = max(admitted.append.prev_index + len(admitted.append.entries), admitted.index)
    return Admitted(admitted.append, True, end)


@_planted(
    "commit-uncapped",
    "a follower takes the leader's commit index for entries that are not known to match",
    oncegate.consensus.core.following,
    "admit_append",
    kinds=_LINKS,
)
def _uncapped(append, log):
    admitted = admit_append(append, log)
    shown = admitted.append
    if not admitted.success:
        return admitted
    return Admitted(
        Append(shown.term, shown.prev_index, shown.prev_term, append.commit, shown.entries), True, admitted.index
    )


_plant(
    "b3-ack-of-any-term",
    "an acknowledgement counts in a later term than its own",
    (oncegate.consensus.core.leading, "ack_counts", lambda ack, term, epoch: True),
    kinds={"script: acks held back": 1},
    fixed={"nodes": 5, "seconds": 12.0, "gap_s": 4.0, "burst": 8, "clients": 3},
)


def _votes_for_anyone(raft, peer_id, request):
    _receive_vote_request(raft, peer_id, VoteRequest(request.term, 1 << 60, 1 << 60 if request.last_term >= 0 else -1))


_receive_vote_request = Raft.receive_vote_request
_plant(
    "votes-for-any-log",
    "a vote does not ask whether the candidate's log is up to date",
    (Raft, "receive_vote_request", _votes_for_anyone),
    (
        oncegate.consensus.core.election.Election,
        "would_vote",
        lambda election, peer_id, request, mine, now: request.term > mine.term,
    ),
)


@_planted("votes-twice", "a vote does not ask whether one was given already", Raft, "receive_vote_request")
def _votes_twice(raft, peer_id, request):
    raft._SyncObj__votedForNodeId = None
    _receive_vote_request(raft, peer_id, request)


@_planted("reads-without-round", "a leader answers reads without asking anybody", LeaderReads, "_start")
def _reads_at_once(reads, now):
    reads.rounds.start(reads._raft.commit_index(), now)
    for peer_id in reads._peers.voters:
        reads.rounds.confirm(peer_id, reads.rounds._number)
    reads._finish()


_plant(
    "reads-before-no-op",
    "a new leader answers reads before an entry of its term is committed",
    (Leading, "ready", property(lambda leading: leading._raft.leads())),
    seeds=200,
)


@_planted(
    "confirms-any-term",
    "a probe is confirmed by a node that knows a later term",
    kinds={"freeze": 4, "slow link": 2, "partition": 4},
    seeds=300,
)
class _ConfirmsAnyTerm(Engine):
    def receive_probe(self, peer_id, probe):
        self._send(peer_id, ReadProbeAck(probe.term, probe.number))


@_planted("applies-uncommitted", "flushed entries are applied before they are committed")
class _AppliesUncommitted(Engine):
    def tick(self):
        more = super().tick()
        return more | self._applier.apply_to(self.log.flushed_index, self._leading.proposals.applied)


@_planted("vote-counted-twice", "one vote is counted twice", Voting, "voted_for_us")
def _counts_twice(voting, peer_id, reply):
    for _ in range(2):
        voting._raft.receive_vote(peer_id, reply)


_plant(
    "forgets-proposals",
    "who waits when leadership is lost is never answered",
    (Leading, "abandon", lambda leading: leading.proposals._appended.clear()),
)


_acknowledged = Leading.acknowledged


@_planted("ignores-refusals", "a refused append is never followed by an earlier one", Leading, "acknowledged")
def _ignores_refusals(leading, peer_id, ack, now):
    if ack.success:
        _acknowledged(leading, peer_id, ack, now)


@_planted(
    "applies-saved-again",
    "entries that the saved state reflects are applied to it again",
    oncegate.consensus.core.engine,
    "begin_at_saved",
)
def _applies_saved_again(machine, log):
    return begin_at_saved(machine, log) - 2


_plant(
    "keeps-truncated-members",
    "a configuration that was truncated with its entry stays in force",
    (Membership, "truncated", lambda membership, index: None),
    kinds={"members": 6, "partition": 6, "kill": 3},
    fixed={"joiners": ("n4", "n5"), "seconds": 8.0},
    seeds=200,
)


@_planted("transfer-not-answered", "a leader that has handed leadership over tells nobody", Transfers, "leader_seen")
def _ends_silently(transfers, leader_id):
    transfers._tokens, transfers.target, transfers.deadline = [], None, float("inf")


_MEMBERS = {"kinds": {"members": 6, "partition": 6, "kill": 2}, "fixed": {"joiners": ("n4", "n5"), "seconds": 8.0}}


@_planted("counts-learners", "whoever has the entries counts", **_MEMBERS)
class _CountsLearners(Engine):
    def _configuration_in_force(self):
        self._membership.voters = frozenset(self._membership.current.members)
        super()._configuration_in_force()


@_planted("campaigns-when-removed", "a node that is no voter asks for votes all the same", **_MEMBERS)
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


@_planted(
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
_plant(
    "overlapping-changes",
    "the members are changed again before the last change is committed (B5)",
    (Reconfiguration, "_want", lambda *change, ready, commit_index: _want(*change, ready=ready, commit_index=1 << 60)),
    kinds={"script: removals in a minority": 1},
    fixed={"nodes": 5, "joiners": (), "seconds": 8.0, "gap_s": 6.0, "save_every": None},
)
_settle = Reconfiguration.settle
_plant(
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


@_planted(
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


_plant(
    "log-kept-at-installation",
    "an installation leaves the log as it was",
    (LibraryLog, "reset_to", lambda log, point: None),
    **_LEFT_BEHIND,
)
_plant(
    "compacts-before-saved",
    "the log is compacted before the save is durable",
    (DurableMachine, "saved", property(lambda machine: machine.writing.point if machine.writing else machine.point)),
    kinds={"kill": 6, "power loss": 3},
    # What a save adds to the one before has to be longer than the tail of the log that is kept anyway.
    fixed={"durable": True, "sizes": (450,), "clients": 4, "burst": 8, "think_s": 0.005},
)
_plant(
    "acks-without-installing",
    "an installation is acknowledged and did not happen",
    (Sink, "install", lambda sink: None),
    **_LEFT_BEHIND,
)
_plant(
    "log-kept-for-followers-of-another",
    "a leader that is deposed keeps its log for followers that it had",
    (Snapshots, "end_term", lambda snapshots: snapshots._following.clear()),
    **_LEFT_BEHIND,
)
