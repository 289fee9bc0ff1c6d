"""Planted bugs that no seed shows, and the script that does each. Read next:
:mod:`oncegate.proof.sim.gateway.scripts`.
"""

from __future__ import annotations

from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.replica.inbound import Inbound
from oncegate.proof.mutants.mutant import Mutant
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.gateway.scripts import SCRIPTS

_advance_commit = Raft.advance_commit
_reset_to = Journal.reset_to
_want = Reconfiguration._want
_load_ballot = Ballot.load
_BEFORE_NO_OP = PLANTED["reads-before-no-op"]


def _counts_replicas_only(raft):
    _advance_commit(raft)
    if raft.leads():
        peers = [raft._SyncObj__raftMatchIndex[node] for node in raft._SyncObj__otherNodes]
        on_majority = sorted([raft._log.last_index, *peers])[len(peers) // 2]
        if on_majority > raft.commit_index():
            raft.installed(on_majority)


def _forgets_vote(cls, storage):
    ballot = _load_ballot(storage)
    ballot._voted_for = None
    return ballot


def _changes_members_early(changes, node_id, member, *, ready, commit_index):
    _want(changes, node_id, member, ready=True, commit_index=commit_index)


def _resets_if_too_short(log, point):
    if log.term_at(point.index) is None:
        _reset_to(log, point)
        return
    log.commit_index = max(log.commit_index, point.index)
    log.flush()


def _to_whoever_has_the_name(inbound, engine, peer_id, epoch):
    return lambda message: inbound._send(peer_id, message)


SCRIPTED = [
    Mutant(
        "commits-older-term",
        "an entry of an older term is committed because a majority has it",
        patches=((Raft, "advance_commit", _counts_replicas_only),),
        script=SCRIPTS["figure 8"],
        watches=True,
    ),
    Mutant(
        "vote-forgotten",
        "a node that starts again knows its term, and not whom it voted for",
        patches=((Ballot, "load", classmethod(_forgets_vote)),),
        script=SCRIPTS["two votes in a term"],
    ),
    Mutant(
        "reads-before-no-op",
        _BEFORE_NO_OP.wrong,
        patches=_BEFORE_NO_OP.patches,
        script=SCRIPTS["read before the first commit"],
    ),
    Mutant(
        "members-change-before-no-op",
        "a new leader changes the members before an entry of its term is committed",
        patches=((Reconfiguration, "_want", _changes_members_early),),
        script=SCRIPTS["two majorities"],
    ),
    Mutant(
        "snapshot-keeps-other-entries",
        "a node that installs a snapshot keeps its log if that is long enough, whatever its term there",
        patches=((Journal, "reset_to", _resets_if_too_short),),
        script=SCRIPTS["snapshot over other entries"],
    ),
    Mutant(
        "answer-on-any-connection",
        "a node that has started again gets the answers to what its process before had asked",
        patches=((Inbound, "_way_back", _to_whoever_has_the_name),),
        script=SCRIPTS["answer to a process that is gone"],
    ),
]
"""In the order of the report."""
