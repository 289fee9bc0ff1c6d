"""A leader that commits nothing though entries wait: since when, and because of whom, by name.

Owns the sentence that ``/readyz``, ``oncegate status``, the dashboard and every refusal tell. A leader goes on leading
as long as a majority answers its heartbeats, also when none of it can store an entry::

    n1 leads; the disk of n2 is full, n3 is off    n2 answers, so n1 goes on; no entry has a majority
    n1 leads; the disks of n2 and n3 are full      the same, and nobody is better placed to lead

Without a word each write would wait for its deadline, and nobody would know for what. What is in the log already is
tried again all the while, so the first disk with room, or the first node that comes back, ends the stall: no further
write is needed for that, and none is proposed. Pure but for the log. Read next: :mod:`oncegate.gateway.node.proposer`.
"""

from __future__ import annotations

import logging
from typing import Final

from oncegate.consensus.ports import ReplicaStatus

STALLED_S: Final = 3.0
"""From when on a leader whose commit index rests while entries wait says so, and takes no more: an election, a save or
a disk that is busy takes less."""
SILENT_S: Final = 1.0
"""From when on a voter that has not answered is named: ten heartbeats."""
log = logging.getLogger(__name__)


def is_stalled(stalled_s: float) -> bool:
    """A leader that has committed nothing for so long while entries wait takes no more of them."""
    return stalled_s >= STALLED_S


def stall_of(status: ReplicaStatus) -> str:
    """Say in a sentence why a leader commits nothing; empty while it does, or does not lead."""
    if not is_stalled(status.stalled_s):
        return ""
    voters = {name: peer for name, peer in status.peers.items() if peer.voter}
    full = sorted(name for name, peer in voters.items() if peer.disk_full)
    if status.disk_full:
        full.insert(0, status.node_id)
    causes = []
    if full:
        causes.append(f"the disk{'s' * (len(full) > 1)} of {', '.join(full)} {'are' if len(full) > 1 else 'is'} full")
    for name, peer in sorted(voters.items()):
        if name in full:
            continue
        if not peer.connected:
            causes.append(f"{name} is not connected")
        elif peer.silent_s >= SILENT_S:
            causes.append(f"{name} has not answered for {peer.silent_s:.0f} s")
        elif peer.lag:
            causes.append(f"{name} lacks {peer.lag} of its entries")
    why = "; ".join(causes) or "no majority has stored its entries"
    return f"{status.node_id} leads and has committed nothing for {status.stalled_s:.0f} s: {why}"


class CommitStall:
    """Tells the log of one node when a stall begins, why, and when it ends."""

    def __init__(self) -> None:
        self._told = False

    def told(self, stall: str) -> None:
        """Take what :func:`stall_of` says now."""
        if bool(stall) == self._told:
            return
        self._told = bool(stall)
        if stall:
            log.warning("%s; no further write is taken", stall)
        else:
            log.warning("entries are committed again, or another node leads: writes are taken")
