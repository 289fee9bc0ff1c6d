"""Planted bugs of reads, flows and consensus. Read next: :mod:`oncegate.proof.mutants.mutant`,
:mod:`oncegate.proof.sim.engine.planted`.
"""

from __future__ import annotations

from itertools import count

import oncegate.consensus.core.following
from oncegate.consensus.errors import LeadershipLost
from oncegate.consensus.replica.replica import Replica
from oncegate.flows import batcher
from oncegate.flows.cursor import Consumers
from oncegate.flows.open_segment import OpenSegment
from oncegate.gateway.node.reads import FoundRow, Reads
from oncegate.proof.mutants.mutant import Mutant
from oncegate.proof.sim.engine.planted import PLANTED

_move = Consumers.move
_append_range = OpenSegment.append_range
_is_full = batcher.is_full


async def _reads_at_once(reads, consistency, min_commit):
    """Answer from what is there."""


async def _waits_for_nothing(replica, index, *, timeout_s):
    """Take the local state for new enough."""


def _moves_anyhow(consumers, name, batch, fence, batches, *, replay=False):
    return _move(consumers, name, batch, consumers.get(name).fence, batches, replay=replay)


def _row_twice(segment, first_commit, items, time_ms, client_id, first_sequence, body, offset, traceparent=""):
    # What begins a batch in the middle of a range begins a row too early.
    if offset and not segment.items:
        offset -= 1
    _append_range(segment, first_commit, items, time_ms, client_id, first_sequence, body, offset, traceparent)


def _all_passed(consumers):
    """The watermark of a flow whose consumers have passed everything."""
    return 2**53


_stream_row = Reads._stream_row


async def _store_first(reads, table, key):
    declaration = reads._machine.flows.of_table(table)[0].declaration
    found = await reads._delivered_row(declaration, table, key)
    if found is None or found.value is None:
        return await _stream_row(reads, table, key)
    return FoundRow(found.commit, found.value)


_asked = count(1)


def _full_now_and_then(flow, items, size_bytes):
    return _is_full(flow, items, size_bytes) or next(_asked) % 7 == 0


def _of(name):
    """A bug of the engine that :mod:`oncegate.proof.sim.engine.planted` knows."""
    planted = PLANTED[name]
    return {
        "breaks": planted.wrong,
        "patches": planted.patches,
        "parts": {"engine_type": planted.engine_type, "log_type": planted.log_type},
    }


def _accepts_any(append, log):
    """Add the entries behind whatever is there."""
    admitted = _admit_append(append, log)
    if admitted.success or append.prev_index > log.last_index:
        return admitted
    return type(admitted)(append, success=True, index=append.prev_index + len(append.entries))


_admit_append = oncegate.consensus.core.following.admit_append
_POWER = {"power loss": 8, "kill several": 4, "kill": 4}
_LINKS = {"kill": 6, "partition": 6, "break": 6, "slow link": 3}
_SPLITS = {"partition": 8, "freeze": 4, "break": 2}

REPLICATION = [
    Mutant(
        "read-without-point",
        "a read is answered from the local state",
        "register",
        ((Reads, "reach", _reads_at_once),),
    ),
    Mutant(
        "read-before-caught-up",
        "a follower answers before it has applied what its read point says",
        "register",
        ((Replica, "wait_applied", _waits_for_nothing),),
    ),
    Mutant("deposed-leader-reads", workload="register", kinds=_SPLITS, **_of("reads-without-round")),
    Mutant(
        "cursor-not-fenced",
        "an instance that was replaced moves the cursor",
        "flow",
        ((Consumers, "move", _moves_anyhow),),
    ),
    Mutant(
        "item-twice-at-the-border",
        "the last row of a batch is the first of the next one, too",
        "flow",
        ((OpenSegment, "append_range", _row_twice),),
    ),
    Mutant(
        "sealed-differently",
        "nodes end batches where each of them likes",
        "flow",
        ((batcher, "is_full", _full_now_and_then),),
    ),
    Mutant(
        "dropped-before-delivered",
        "retention waits for nobody",
        "stream",
        ((Consumers, "watermark", _all_passed),),
    ),
    Mutant(
        "store-before-batches",
        "a row is looked for in the store first",
        "stream",
        ((Reads, "_stream_row", _store_first),),
    ),
    Mutant(
        "unknown-called-not-applied",
        "an operation that may still commit is reported as not applied",
        "counter",
        ((LeadershipLost, "outcome", "not_applied"),),
        kinds=_LINKS,
        runs=40,
        start=8,
    ),
    Mutant("acks-before-flush", workload="counter", kinds=_POWER, watches=True, **_of("ack-before-flush")),
    Mutant("never-flushed", workload="counter", kinds=_POWER, **_of("no-sync")),
    Mutant("applied-before-commit", workload="counter", kinds=_LINKS, **_of("applies-uncommitted")),
    Mutant("matching-suffix-truncated", workload="counter", kinds=_LINKS, runs=60, **_of("b1-no-follower-filter")),
    Mutant(
        "append-without-matching-term",
        "a follower adds entries behind one of another term",
        "counter",
        ((oncegate.consensus.core.following, "admit_append", _accepts_any),),
        kinds=_LINKS,
        runs=60,
        start=10,
    ),
    Mutant("votes-for-any-log", workload="counter", kinds=_LINKS, **_of("votes-for-any-log")),
    Mutant("term-not-saved", workload="counter", kinds=_POWER, runs=60, watches=True, **_of("vote-not-saved")),
    Mutant("votes-twice", workload="counter", kinds=_LINKS, runs=100, watches=True, **_of("votes-twice")),
    Mutant(
        "saved-applied-again", workload="counter", kinds=_POWER, fixed={"save_every": 10}, **_of("applies-saved-again")
    ),
]
"""In the order of the report."""
