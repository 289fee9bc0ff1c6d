"""What a node does with the messages of whoever leads: appends and snapshots.

Owns the order in which an append is judged: its term, its fit to the log, the room for its entries; only then the
library takes it. What is promised to the leader waits for the flush. Read next: :mod:`oncegate.consensus.core.repairs`,
which decides about the fit; :mod:`oncegate.consensus.core.snapshots`; :mod:`oncegate.consensus.core.leading`, the
other end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import is_configuration
from oncegate.consensus.core.election import Election
from oncegate.consensus.core.freshness import Freshness
from oncegate.consensus.core.library import NO_OP_BYTES, Raft
from oncegate.consensus.core.repairs import admit_append, without_entries
from oncegate.consensus.core.snapshots import Snapshots
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import ProtocolError, SafetyViolation
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import records_bytes
from oncegate.consensus.messages import (
    Ack,
    Append,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotOffer,
    SnapshotVerdict,
)

logger = logging.getLogger(__name__)


class Following:
    """One node's side of a leader's replication."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LibraryLog,
        raft: Raft,
        election: Election,
        freshness: Freshness,
        snapshots: Snapshots | None,
        counters: Counters,
        hold: Callable[[str, Message], None],
        on_configuration: Callable[[], None],
    ) -> None:
        """``hold`` sends a message after the next flush; ``on_configuration`` is called when entries may hold one."""
        self._log = log
        self._raft = raft
        self._election = election
        self._freshness = freshness
        self._snapshots = snapshots
        self._counters = counters
        self._hold = hold
        self._on_configuration = on_configuration
        self._reserve_bytes = config.reserve_bytes

    def append(self, peer_id: str, epoch: int, append: Append, now: float) -> None:
        """Take entries, or a heartbeat, and promise what is flushed next.

        Raises:
            SafetyViolation: two leaders in one term, or the append contradicts a committed entry.
        """
        term = self._raft.term()
        self._counters.appends_received += 1
        if append.term < term:
            self._counters.appends_refused += 1
            # Its sender is deposed and must learn it, or it would keep this node from ever catching up.
            self._hold(peer_id, Ack(term, epoch, False, 0, append.prev_index))
            return
        if append.term == term and self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(now)
        self._freshness.heard(append.commit, now)
        try:
            admitted = admit_append(append, self._log)
        except ProtocolError as error:
            logger.error("an append from %s is ignored: %s", peer_id, error)
            return
        if not admitted.success:
            self._counters.appends_refused += 1
        full = not self._has_room(admitted.append.entries)
        if full:
            admitted = without_entries(admitted, self._log)
        self._raft.receive_append(peer_id, admitted.append, success=admitted.success)
        self._on_configuration()
        wanted_from = 0 if self._snapshots is None else self._snapshots.wanted_from
        ack = Ack(append.term, epoch, admitted.success, admitted.index, append.prev_index, full, wanted_from)
        self._hold(peer_id, ack)

    def snapshot(self, peer_id: str, epoch: int, message: SnapshotOffer | SnapshotChunk, now: float) -> None:
        """Take part of a snapshot.

        Raises:
            SafetyViolation: two leaders in one term.
        """
        if self._snapshots is None:
            return
        if message.term > self._raft.term():
            self._raft.adopt_term(peer_id, message.term)
        term = self._raft.term()
        if message.term < term:
            # Its sender is deposed; the term is what it must learn.
            self._hold(peer_id, SnapshotAnswer(term, epoch, message.transfer, SnapshotVerdict.REJECTED))
            return
        if self._raft.leads():
            raise SafetyViolation(f"{peer_id} leads term {term} too")
        self._election.heard_leader(now)
        if isinstance(message, SnapshotOffer):
            self._snapshots.offered(peer_id, epoch, message, now)
        else:
            self._snapshots.chunk(peer_id, epoch, message, now)

    def _has_room(self, entries: list[Entry]) -> bool:
        if not entries:
            return True
        size_bytes = records_bytes(entries)
        if self._log.has_room(size_bytes, reserve_bytes=self._reserve_bytes):
            return True
        # What a leader appends for itself may use what commands leave: or nobody could begin a term on full disks.
        own = all(len(command) <= NO_OP_BYTES or is_configuration(command) for command, _, _ in entries)
        return own and self._log.has_room(size_bytes)
