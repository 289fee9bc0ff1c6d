"""Planted bugs of reads, flows and consensus: under random faults, and, where no seed shows one, by a script.

Read next: :mod:`oncegate.proof.mutants.mutant`, :mod:`oncegate.proof.sim.engine.planted`,
:mod:`oncegate.proof.sim.gateway.scripts`.
"""

from __future__ import annotations

from itertools import count

from oncegate.consensus.core import following
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.errors import LeadershipLost
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.replica.inbound import Inbound
from oncegate.consensus.replica.replica import Replica
from oncegate.flows import batcher
from oncegate.flows.cursor import Consumers
from oncegate.flows.open_segment import OpenSegment
from oncegate.flows.parts import NO_PARTS
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.node.reads import Reads
from oncegate.proof.mutants.mutant import Mutant, enter, plants
from oncegate.proof.sim.engine.planted import PLANTED
from oncegate.proof.sim.gateway.scripts import SCRIPTS

_POWER = {"power loss": 8, "kill several": 4, "kill": 4}
_LINKS = {"kill": 6, "partition": 6, "break": 6, "slow link": 3}
_SPLITS = {"partition": 8, "freeze": 4, "break": 2}
_admit_append = following.admit_append
_move = Consumers.move
_append_range = OpenSegment.append_range
_is_full = batcher.is_full


@plants("read-without-point", "register", (Reads, "reach"))
async def _reads_at_once(reads, consistency, min_commit, timeout_s=None):
    """A read is answered from the local state."""


@plants("read-before-caught-up", "register", (Replica, "wait_applied"))
async def _waits_for_nothing(replica, index, *, timeout_s):
    """A follower answers before it has applied what its read point says."""


@plants("cursor-not-fenced", "flow", (Consumers, "move"))
def _moves_anyhow(consumers, name, batch, fence, batches, *, replay=False, now_ms=0):
    """An instance that was replaced moves the cursor."""
    return _move(consumers, name, batch, consumers.get(name).fence, batches, replay=replay, now_ms=now_ms)


_attach = Consumers.attach
_part = Consumers.part


@plants("parts-of-their-instance", "chain", (Consumers, "attach"))
def _forgets_parts(consumers, name, nonce, batches, now_ms=0, *, cursor=None):
    """What an instance has written of a batch is written again by the next one."""
    attachment = _attach(consumers, name, nonce, batches, now_ms, cursor=cursor)
    consumers._get(name).parts = NO_PARTS
    return attachment


@plants("cascade-not-fenced", "chain", (Consumers, "part"))
def _writes_anyhow(consumers, name, batch, part, fence, fingerprint, batches, *, last):
    """An instance that was replaced writes a part."""
    return _part(consumers, name, batch, part, consumers.get(name).fence, fingerprint, batches, last=last)


_wrote = Consumers.wrote


@plants("cursor-behind-its-writes", "chain", (Consumers, "wrote"))
def _moves_later(consumers, name, batch, fingerprint, commit, now_ms, *, last):
    """The last part of a batch is written, and the cursor moves with an entry of its own, which may never come."""
    if not last:
        return _wrote(consumers, name, batch, fingerprint, commit, now_ms, last=False)
    return consumers.get(name).cursor


@plants("item-twice-at-the-border", "flow", (OpenSegment, "append_range"))
def _row_twice(segment, first_commit, items, time_ms, client_id, first_sequence, body, offset, traceparent=""):
    """The last row of a batch is the first of the next one, too."""
    # What begins a batch in the middle of a range begins a row too early.
    if offset and not segment.items:
        offset -= 1
    _append_range(segment, first_commit, items, time_ms, client_id, first_sequence, body, offset, traceparent)


@plants("dropped-before-delivered", "stream", (Consumers, "watermark"))
def _all_passed(consumers):
    """Retention waits for nobody."""
    return 2**53


_stream_row = Reads._stream_row


@plants("store-before-batches", "stream", (Reads, "_stream_row"))
async def _store_first(reads, table, key):
    """A row is looked for in the store first."""
    declaration = reads._machine.flows.of_table(table)[0].declaration
    found = await reads._delivered_row(declaration, table, key)
    if found is None or found.value is None:
        return await _stream_row(reads, table, key)
    return StoredRow(found.commit, found.value)


_asked = count(1)


@plants("sealed-differently", "flow", (batcher, "is_full"))
def _full_now_and_then(flow, items, size_bytes):
    """Nodes end batches where each of them likes."""
    return _is_full(flow, items, size_bytes) or next(_asked) % 7 == 0


@plants("append-without-matching-term", "counter", (following, "admit_append"), kinds=_LINKS, runs=60, start=10)
def _accepts_any(append, log):
    """A follower adds entries behind one of another term."""
    admitted = _admit_append(append, log)
    if admitted.success or append.prev_index > log.last_index:
        return admitted
    return type(admitted)(append, success=True, index=append.prev_index + len(append.entries))


_advance_commit = Raft.advance_commit
_reset_to = Journal.reset_to
_want = Reconfiguration._want
_load_ballot = Ballot.load


@plants("commits-older-term", "", (Raft, "advance_commit"), script=SCRIPTS["figure 8"], watches=True)
def _counts_replicas_only(raft):
    """An entry of an older term is committed because a majority has it."""
    _advance_commit(raft)
    if raft.leads():
        peers = [raft._SyncObj__raftMatchIndex[node] for node in raft._SyncObj__otherNodes]
        on_majority = sorted([raft._log.last_index, *peers])[len(peers) // 2]
        if on_majority > raft.commit_index():
            raft.installed(on_majority)


@plants("vote-forgotten", "", (Ballot, "load"), script=SCRIPTS["two votes in a term"])
@classmethod
def _forgets_vote(cls, storage):
    """A node that starts again knows its term, and not whom it voted for."""
    ballot = _load_ballot(storage)
    ballot._voted_for = None
    return ballot


@plants("members-change-before-no-op", "", (Reconfiguration, "_want"), script=SCRIPTS["two majorities"])
def _changes_members_early(changes, node_id, member, *, ready, commit_index):
    """A new leader changes the members before an entry of its term is committed."""
    _want(changes, node_id, member, ready=True, commit_index=commit_index)


@plants("snapshot-keeps-other-entries", "", (Journal, "reset_to"), script=SCRIPTS["snapshot over other entries"])
def _resets_if_too_short(log, point):
    """A node that installs a snapshot keeps its log if that is long enough, whatever its term there."""
    if log.term_at(point.index) is None:
        _reset_to(log, point)
        return
    log.commit_index = max(log.commit_index, point.index)
    log.flush()


@plants("answer-on-any-connection", "", (Inbound, "_way_back"), script=SCRIPTS["answer to a process that is gone"])
def _to_whoever_has_the_name(inbound, engine, peer_id, epoch):
    """A node that has started again gets the answers to what its process before had asked."""
    return lambda message: inbound._send(peer_id, message)


def _of_engine(name, known_as, workload="counter", **options):
    """Enter a bug that :mod:`oncegate.proof.sim.engine.planted` knows, under clients."""
    bug = PLANTED[known_as]
    parts = {"engine_type": bug.engine_type, "log_type": bug.log_type}
    enter(Mutant(name, bug.wrong, workload, bug.patches, parts, **options))


_of_engine("deposed-leader-reads", "reads-without-round", "register", kinds=_SPLITS)
_of_engine("acks-before-flush", "ack-before-flush", kinds=_POWER, watches=True)
_of_engine("never-flushed", "no-sync", kinds=_POWER)
_of_engine("applied-before-commit", "applies-uncommitted", kinds=_LINKS)
_of_engine("matching-suffix-truncated", "b1-no-follower-filter", kinds=_LINKS, runs=60)
_of_engine("votes-for-any-log", "votes-for-any-log", kinds=_LINKS)
_of_engine("term-not-saved", "vote-not-saved", kinds=_POWER, runs=60, watches=True)
_of_engine("votes-twice", "votes-twice", kinds=_LINKS, runs=100, watches=True)
_of_engine("saved-applied-again", "applies-saved-again", kinds=_POWER, fixed={"save_every": 10})
_of_engine("reads-before-no-op", "reads-before-no-op", "", script=SCRIPTS["read before the first commit"])
_OUTCOME = (LeadershipLost, "outcome", "not_applied")
_WORDS = "an operation that may still commit is reported as not applied"
_DEPOSED = SCRIPTS["deposed with a write under way"]
enter(Mutant("unknown-called-not-applied", _WORDS, "", (_OUTCOME,), script=_DEPOSED))
