"""Snapshots of one node, both ways: joins the transfers to the log, the library and the state.

Owns what surrounds a transfer: who needs one, whether an offer is wanted, the order of an installation (state, log,
commit index, applied index, and only then the answer), and how long the log waits for a follower. While a snapshot
travels, heartbeats go on, so a follower that receives one counts for the quorum and starts no election.
Read next: :mod:`oncegate.consensus.snapshot.snapshot_leader`, :mod:`oncegate.consensus.snapshot.snapshot_receive`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.core.applying import FIRST_APPLIED, Applier, Saving
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.replication import Replication
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.messages import Message, SnapshotAnswer, SnapshotChunk, SnapshotOffer, SnapshotVerdict
from oncegate.consensus.ports import DurableState, SavedPoint
from oncegate.consensus.snapshot.snapshot_leader import SnapshotSender
from oncegate.consensus.snapshot.snapshot_receive import Receiving, is_sound
from oncegate.consensus.snapshot.snapshot_send import Position
from oncegate.consensus.worker import Worker

logger = logging.getLogger(__name__)


class Snapshots:
    """The engine's part that sends and installs snapshots."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LibraryLog,
        raft: Raft,
        replication: Replication,
        applier: Applier,
        saving: Saving,
        state: DurableState,
        worker: Worker,
        wake: Callable[[], None],
        rng: random.Random,
        send: Callable[[str, Message], None],
    ) -> None:
        self._config = config
        self._log = log
        self._raft = raft
        self._replication = replication
        self._applier = applier
        self._saving = saving
        self._state = state
        self._send = send
        self._sender = SnapshotSender(config, state, worker, wake, rng, send)
        self._receiving = Receiving(state, worker, wake)
        self._following: dict[str, tuple[int, float]] = {}
        """Followers that continue behind a snapshot: how far they are, and since when."""
        self._sending = False
        self.deadline = float("inf")
        """When :meth:`lead` has something to do even if nothing happens."""
        self.receiving = False
        """A snapshot is on its way here, or was: :meth:`follow` may have something to do."""

    # -- as a leader -----------------------------------------------------------------------------------

    def begin_term(self) -> None:
        """This node leads."""
        self._following.clear()
        self._sender.begin_term()

    def end_term(self) -> None:
        """It no longer does: its log waits for nobody."""
        self._following.clear()
        self._saving.needed_from = None
        self._saving.wanted_from = 0

    def reconnected(self, peer_id: str) -> None:
        """What was in flight to this peer may be lost."""
        self._sender.reconnected(peer_id)

    def answered(self, peer_id: str, answer: SnapshotAnswer, now: float) -> None:
        """A follower's word about its snapshot, in this term and on this connection."""
        self._replication.heard(peer_id, now)
        self._sender.answered(peer_id, answer, now)
        if answer.verdict in (SnapshotVerdict.HAVE, SnapshotVerdict.INSTALLED):
            logger.info("%s has the state up to entry %d", peer_id, answer.index)
            self._replication.snapshot_over(peer_id, answer.index)
            self._following[peer_id] = (answer.index, now)

    def lead(self, connected: Collection[str], now: float) -> None:
        """Send what is due, and see to it that the log waits for those who will go on behind a snapshot."""
        saved = self._state.saved
        wanting, wanted_from = self._replication.snapshots_wanted(0 if saved is None else saved.index)
        self._saving.wanted_from = wanted_from
        if not wanting and not self._following and not self._sending:
            return
        self._sender.advance(wanting, connected, self._raft.term(), max(self._log.base.index, wanted_from), now)
        self._sending, self.deadline = not self._sender.idle, self._sender.deadline(now)
        self._hold_log(now)

    def _hold_log(self, now: float) -> None:
        saved = self._state.saved
        for peer_id, (index, since) in list(self._following.items()):
            match_index = self._replication.match_index(peer_id)
            if match_index > index:
                self._following[peer_id] = (match_index, now)
            elif now - since > self._config.snapshot_idle_s:
                del self._following[peer_id]
            if saved is None or match_index >= saved.index:
                self._following.pop(peer_id, None)
        held = [index for index, _ in self._following.values()]
        sending = self._sender.held_index(now)
        if sending is not None:
            held.append(sending)
        if self._log.bytes_used > self._config.journal_bytes_max // 2:
            # Room for commands goes before a follower that is too slow: it gets a newer snapshot.
            held.clear()
        self._saving.needed_from = min(held) + 1 if held else None

    # -- as a follower ---------------------------------------------------------------------------------

    @property
    def wanted_from(self) -> int:
        """See :class:`oncegate.consensus.messages.Ack`: the log here must go on behind the snapshot."""
        return max(self._log.base.index, FIRST_APPLIED) if self._state.wants_state else 0

    def offered(self, peer_id: str, epoch: int, offer: SnapshotOffer, now: float) -> None:
        """The leader of this term offers a snapshot."""
        point = offer.manifest.point
        if not is_sound(offer.manifest) or point.term > offer.term:
            logger.error("an offer of a snapshot from %s is ignored: it makes no sense", peer_id)
            return
        self.receiving = True
        answer = self._answer_to(peer_id, epoch, offer.transfer, offer.term)
        if self._is_old(point):
            self._receiving.drop()
            answer(SnapshotVerdict.HAVE, Position(0, 0))
            return
        self._receiving.offered(offer, (peer_id, epoch, offer.term), answer, now)

    def chunk(self, peer_id: str, epoch: int, chunk: SnapshotChunk, now: float) -> None:
        """The leader of this term sends the next bytes."""
        self._receiving.chunk(chunk, (peer_id, epoch, chunk.term), now)

    def follow(self, now: float) -> None:
        """Go on with what is being received; install what is ready."""
        self.receiving = self._receiving.active
        if not self.receiving:
            return
        self._receiving.advance(now, self._config.snapshot_idle_s)
        manifest = self._receiving.ready
        if manifest is None:
            return
        point = manifest.point
        answer = self._receiving.answer
        if self._raft.leads() or self._is_old(point):
            # The log brought this node further meanwhile: an older state never replaces a newer one.
            self._receiving.drop()
            answer(SnapshotVerdict.HAVE, Position(0, 0))
            return
        if not self._log.has_room(RECORD_HEADER_BYTES + len(point.configuration)):
            return
        self._receiving.install()
        self._log.reset_to(point)
        # Behind a damaged state the log was committed further: it is applied again from the snapshot on.
        self._raft.installed(max(point.index, self._raft.commit_index()))
        self._applier.applied_index = point.index
        logger.info("a snapshot up to entry %d of term %d was installed", point.index, point.term)
        answer(SnapshotVerdict.INSTALLED, Position(0, 0))

    def stop(self) -> None:
        """Give up everything; waits for the worker."""
        self._sender.stop()
        self._receiving.stop()

    def _is_old(self, point: SavedPoint) -> bool:
        if self._state.wants_state:
            return point.index < self._log.base.index
        return point.index <= self._raft.commit_index()

    def _answer_to(
        self, peer_id: str, epoch: int, transfer: int, term: int
    ) -> Callable[[SnapshotVerdict, Position], None]:
        def answer(verdict: SnapshotVerdict, place: Position) -> None:
            if self._raft.term() == term:
                index = self._raft.commit_index()
                self._send(peer_id, SnapshotAnswer(term, epoch, transfer, verdict, place.file, place.offset, index))

        return answer
