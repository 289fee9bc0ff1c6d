"""Bugs that are planted one at a time, to show that the simulator would find them.

Each switches one repair or rule off in the real engine and must be caught within ``seeds`` seeds, by the check that
:mod:`oncegate.proof.mutants.checks` names. Read next: :mod:`oncegate.proof.sim.engine.checkers`.
"""

from __future__ import annotations

import oncegate.consensus.core.election
import oncegate.consensus.core.engine
import oncegate.consensus.core.following
import oncegate.consensus.core.leading
import oncegate.consensus.log.wal_recovery
import oncegate.proof.sim.engine.planted_members  # enters its bugs
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.core.leader_reads import LeaderReads
from oncegate.consensus.core.leading import Leading
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.repairs import Admitted, admit_append
from oncegate.consensus.core.transfer import Transfers
from oncegate.consensus.core.voting import Voting
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.messages import Append, ReadProbeAck, VoteRequest
from oncegate.consensus.snapshot.saving import begin_at_saved
from oncegate.proof.sim.engine.observed import ObservedLog
from oncegate.proof.sim.engine.planting import PLANTED, plant, planted

_LINKS = {"kill": 6, "partition": 5, "break": 6, "slow link": 3}


@planted("ack-before-flush", "acknowledgements and votes leave before the flush")
class _AcksBeforeFlush(Engine):
    def _flush_and_release(self):
        held, self._held = self._held, []
        for peer_id, message in held:
            self._send(peer_id, message)
        self.log.flush()


@planted("no-sync", "the journal is written and never flushed")
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


@planted("leader-counts-unflushed", "a leader counts itself for entries it has not flushed")
class _FlushesLater(Engine):
    _flushed_at = 0.0

    def _flush_and_release(self):
        if self._raft.leads() and not self._held and self._now < self._flushed_at + 0.02:
            return
        self._flushed_at = self._now
        super()._flush_and_release()


@planted("vote-not-saved", "term and vote are kept in memory only", Ballot, "save")
def _keeps_in_memory(ballot, term, voted_for):
    ballot._term, ballot._voted_for = term, voted_for


plant(
    "corruption-taken-for-torn",
    "an invalid record in the middle of the journal ends it silently",
    (oncegate.consensus.log.wal_recovery, "proof_of_flush", lambda data, offset, header: None),
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: True),
    kinds={"flip": 8, "kill": 3, "partition": 2},
)
plant(
    "last-batch-taken-for-torn",
    "an invalid record that no later one proves flushed is taken for torn, whatever it looks like",
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: True),
)
plant(
    "torn-taken-for-corruption",
    "a torn batch is refused",
    (oncegate.consensus.log.wal_recovery, "is_torn", lambda data, offset, seed: False),
)


@planted(
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


@planted(
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


@planted(
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


plant(
    "b3-ack-of-any-term",
    "an acknowledgement counts in a later term than its own",
    (oncegate.consensus.core.leading, "ack_counts", lambda ack, term, epoch: True),
    kinds={"script: acks held back": 1},
    fixed={"nodes": 5, "seconds": 12.0, "gap_s": 4.0, "burst": 8, "clients": 3},
)


def _votes_for_anyone(raft, peer_id, request):
    _receive_vote_request(raft, peer_id, VoteRequest(request.term, 1 << 60, 1 << 60 if request.last_term >= 0 else -1))


_receive_vote_request = Raft.receive_vote_request
plant(
    "votes-for-any-log",
    "a vote does not ask whether the candidate's log is up to date",
    (Raft, "receive_vote_request", _votes_for_anyone),
    (
        oncegate.consensus.core.election.Election,
        "would_vote",
        lambda election, peer_id, request, mine, now: request.term > mine.term,
    ),
)


@planted("votes-twice", "a vote does not ask whether one was given already", Raft, "receive_vote_request")
def _votes_twice(raft, peer_id, request):
    raft._SyncObj__votedForNodeId = None
    _receive_vote_request(raft, peer_id, request)


@planted("reads-without-round", "a leader answers reads without asking anybody", LeaderReads, "_start")
def _reads_at_once(reads, now):
    reads.rounds.start(reads._raft.commit_index(), now)
    for peer_id in reads._peers.voters:
        reads.rounds.confirm(peer_id, reads.rounds._number)
    reads._finish()


plant(
    "reads-before-no-op",
    "a new leader answers reads before an entry of its term is committed",
    (Leading, "ready", property(lambda leading: leading._raft.leads())),
    seeds=200,
)


@planted(
    "confirms-any-term",
    "a probe is confirmed by a node that knows a later term",
    kinds={"freeze": 4, "slow link": 2, "partition": 4},
    seeds=300,
)
class _ConfirmsAnyTerm(Engine):
    def receive_probe(self, peer_id, probe):
        self._send(peer_id, ReadProbeAck(probe.term, probe.number))


@planted("applies-uncommitted", "flushed entries are applied before they are committed")
class _AppliesUncommitted(Engine):
    def tick(self):
        more = super().tick()
        return more | self._applier.apply_to(self.log.flushed_index, self._leading.proposals.applied)


@planted("vote-counted-twice", "one vote is counted twice", Voting, "voted_for_us")
def _counts_twice(voting, peer_id, reply):
    for _ in range(2):
        voting._raft.receive_vote(peer_id, reply)


plant(
    "forgets-proposals",
    "who waits when leadership is lost is never answered",
    (Leading, "abandon", lambda leading: leading.proposals._appended.clear()),
)


_acknowledged = Leading.acknowledged


@planted("ignores-refusals", "a refused append is never followed by an earlier one", Leading, "acknowledged")
def _ignores_refusals(leading, peer_id, ack, now):
    if ack.success:
        _acknowledged(leading, peer_id, ack, now)


@planted(
    "applies-saved-again",
    "entries that the saved state reflects are applied to it again",
    oncegate.consensus.core.engine,
    "begin_at_saved",
)
def _applies_saved_again(machine, log):
    return begin_at_saved(machine, log) - 2


plant(
    "keeps-truncated-members",
    "a configuration that was truncated with its entry stays in force",
    (Membership, "truncated", lambda membership, index: None),
    kinds={"members": 6, "partition": 6, "kill": 3},
    fixed={"joiners": ("n4", "n5"), "seconds": 8.0},
    seeds=200,
)


@planted("transfer-not-answered", "a leader that has handed leadership over tells nobody", Transfers, "leader_seen")
def _ends_silently(transfers, leader_id):
    transfers._tokens, transfers.target, transfers.deadline = [], None, float("inf")


__all__ = ["PLANTED"]
