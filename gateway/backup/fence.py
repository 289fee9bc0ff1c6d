"""What separates a new cluster from the one whose state it begins with. Pure.

Owns: what is forgotten, what is kept, and which numbers are skipped, so that nothing the old cluster gave out after its
state was copied means anything here (docs/decisions/0030-a-restored-cluster-is-a-new-one.md).

| of the old cluster | in the new one |
|---|---|
| identity | a new one: stores, archives and checkpoints of the old one are refused until they are adopted |
| sessions and their completion records | gone: ``SESSION_EXPIRED``, outcome unknown; ids go on far above |
| idempotency keys in the copy | kept: answered from their records; new ones get numbers far above |
| keys that name a time and are not in the copy | ``SESSION_EXPIRED``, outcome unknown: cluster time is beyond |
| stores of derived rows | what was written up to the copy's commit number is theirs once they are adopted |
| fences of consumers | ``FENCED``: they go on far above, also under names of flows that are declared later |
| commit numbers, which are versions of rows | go on far above: a version of a row that is lost is no row's here |
| rows bound to a session | end as soon as the new cluster has a leader, by its log as any row does |
| rows that end at a time | keep the time that they had left |
| batches | keep their numbers and their age |
"""

from __future__ import annotations

from typing import Final, NamedTuple

from oncegate.gateway.machine import ending
from oncegate.gateway.machine.machine import Machine, Origin
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ID_MAX, ClusterTimeMs, CommitNumber
from oncegate.stores.write_times import COMMIT_MAX

CLOCK_MARGIN_MS: Final = 600_000
"""By how much the wall clocks of the node that made a copy and of the machine that restores it may differ."""
SESSIONS_SKIPPED: Final = 2**32
"""Client ids in a block: more than a cluster gives out after the copy. A new cluster begins with a block of its own."""
BLOCKS_DRAWN: Final = 2**14
"""Out of so many blocks the next one is drawn: two clusters restored from one copy begin with different ones."""
COMMITS_SKIPPED: Final = 2**36
"""Eight days of a hundred thousand writes a second."""
NUMBERS_SKIPPED: Final = 2**32
"""Of fences and of idempotency keys."""


class Fenced(NamedTuple):
    """What was forgotten."""

    sessions: int
    keys: int
    """Idempotency keys that are kept."""


def fence(machine: Machine, *, identity: str, age_ms: int, block: int) -> Fenced:
    """Make a machine the first state of a new cluster; what follows it in the old one's log never was.

    Args:
        machine: as it was copied; changed in place.
        identity: the new cluster's.
        age_ms: at least how long the old cluster may have run on after the copy.
        block: which of the next BLOCKS_DRAWN blocks of client ids is the new cluster's, from 0.

    Raises:
        OncegateError: QUOTA, when numbers are used up, after some hundred restores one of the other.
    """
    slept_ms = max(0, age_ms) + CLOCK_MARGIN_MS
    next_id = (machine.sessions.next_id // SESSIONS_SKIPPED + 1 + block) * SESSIONS_SKIPPED
    commit = machine.commit + COMMITS_SKIPPED
    if next_id > ID_MAX - SESSIONS_SKIPPED or commit > COMMIT_MAX - COMMITS_SKIPPED:
        raise OncegateError(Code.QUOTA, "client ids or commit numbers are used up by so many restores")
    gone = [session.client_id for session in machine.sessions]
    for client_id in gone:
        machine.touch_first(client_id)
        machine.sessions.close(client_id)
        del machine.trackers[client_id]
    machine.sessions.skip_to(next_id)
    machine.sessions.sleep(slept_ms)
    machine.origin, machine.identity = Origin(machine.identity, machine.commit), identity
    machine.commit = CommitNumber(commit)
    machine.time_ms = ClusterTimeMs(machine.time_ms + slept_ms)
    ending.begin_anew(machine, slept_ms)
    machine.keys.fence(machine.time_ms, slept_ms, NUMBERS_SKIPPED)
    machine.flows.retired.fence_off(NUMBERS_SKIPPED)
    for flow in machine.flows.all():
        flow.consumers.fence_off(NUMBERS_SKIPPED, slept_ms)
        flow.batches.sleep(slept_ms)
        flow.altered_ms += slept_ms
        flow.moves += 1
    return Fenced(len(gone), len(machine.keys))
