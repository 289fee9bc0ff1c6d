"""The leader's work on its followers: what to send to whom, when, and who still answers.

Owns one :class:`~oncegate.consensus.core.progress.Progress` a follower for the length of one term. Sends through a
function, reads the time as a value. Read next: :mod:`oncegate.consensus.core.progress`,
:mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.progress import Progress, ProgressState
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.segment import RECORD_HEADER_BYTES
from oncegate.consensus.messages import Ack, Append, Message
from oncegate.consensus.ports import PeerStatus
from oncegate.consensus.snapshot.throttle import Growth, TokenBucket

FULL_PAUSE_S = 0.5
"""How long a follower whose disk is full gets no entries."""

_LAG_ENTRIES_MAX = 1024

_NEVER = float("inf")

_PROBE, _REPLICATE, _SNAPSHOT = ProgressState.PROBE, ProgressState.REPLICATE, ProgressState.SNAPSHOT

_Sized: TypeAlias = tuple[Append, int]
"""An append and the bytes of its commands."""


class Replication:
    """Followers of one leader, learners among them; empty while this node does not lead."""

    def __init__(
        self,
        config: ReplicaConfig,
        log: LibraryLog,
        raft: Raft,
        send: Callable[[str, Message], None],
        counters: Counters,
    ) -> None:
        self._config = config
        self._log = log
        self._raft = raft
        self._send = send
        self._progress: dict[str, Progress] = {}
        self._catch_up: dict[str, TokenBucket] = {}
        self._growth = Growth()
        self._commit_seen: int
        self._commit_seen_at: float
        self._moved_at: float | None = None
        """When the commit index last moved, or nothing waited for it to; None while this node does not lead."""
        self._heartbeat_s = config.heartbeat_ms / 1000
        self._notice_s = config.commit_notice_ms / 1000
        self._leaving: dict[str, tuple[int, float]] = {}
        self.counters = counters
        self.deadline: float
        """When :meth:`replicate` has something to send even if nothing happens; only a leader has one."""
        self._append_bytes = config.append_bytes
        self._in_flight_bytes_max = config.in_flight_bytes_max

    def begin(self, now: float) -> None:
        """A term as a leader begins (Raft figure 2, volatile state on leaders)."""
        self.deadline = self._moved_at = self._commit_seen_at = now
        self._commit_seen = self._raft.commit_index()
        self._progress = {peer_id: Progress(self._log.last_index + 1, now) for peer_id in sorted(self._members())}

    def end(self) -> None:
        """It is over."""
        self._moved_at = None
        self._progress = {}
        self._leaving = {}

    def members_changed(self, now: float) -> None:
        """Another configuration is in force: begin with new members; those removed are told so before they go."""
        if self._moved_at is None:
            return
        members = self._members()
        for peer_id in sorted(members - self._progress.keys()):
            self._progress[peer_id] = Progress(self._log.last_index + 1, now)
        for peer_id in members & self._leaving.keys():
            del self._leaving[peer_id]
        for peer_id in sorted(self._progress.keys() - members - self._leaving.keys()):
            until = now + self._config.election_ms_max / 1000
            self._leaving[peer_id] = (self._log.membership.current_index, until)

    @property
    def leaving(self) -> Collection[str]:
        """Removed members that are still told about it."""
        return self._leaving

    def dismiss(self, peer_ids: Collection[str], now: float) -> bool:
        """Let removed members go that know it, are not connected, or had their time; returns whether any went."""
        gone = [
            peer_id
            for peer_id, (index, until) in self._leaving.items()
            if peer_id not in peer_ids or now >= until or self._knows(self._progress[peer_id], index)
        ]
        for peer_id in gone:
            del self._leaving[peer_id], self._progress[peer_id]
        return bool(gone)

    @staticmethod
    def _knows(progress: Progress, index: int) -> bool:
        return min(progress.match_index, progress.commit_sent) >= index

    def _members(self) -> set[str]:
        return set(self._log.membership.current.members) - {self._config.node_id}

    def matches(self) -> dict[str, int]:
        """How far each follower is known to be."""
        return {peer_id: progress.match_index for peer_id, progress in self._progress.items()}

    def caught_up(self, peer_id: str) -> bool:
        """The follower streams, and what it lacks is what is on its way to it anyway."""
        progress = self._progress.get(peer_id)
        return (
            progress is not None
            and progress.state is _REPLICATE
            and self._log.last_index - progress.match_index <= _LAG_ENTRIES_MAX
            and self._log.bytes_after(progress.match_index) <= self._config.in_flight_bytes_max
        )

    def reconnected(self, peer_id: str) -> None:
        """What was in flight to this peer may be lost."""
        if peer_id in self._progress:
            self._progress[peer_id].reconnected()

    def acknowledged(self, peer_id: str, ack: Ack, now: float) -> bool:
        """Take an acknowledgement that counts; returns whether the commit index may move by it.

        Raises:
            SafetyViolation: the follower claims entries that the leader does not have.
        """
        progress = self._progress.get(peer_id)
        if progress is None:
            return False
        progress.ack_at = now
        progress.wanted_from = ack.wanted_from
        if not ack.success:
            progress.refused(ack.prev_index, ack.index)
            return False
        if ack.index > self._log.last_index:
            raise SafetyViolation(f"{peer_id} acknowledges entry {ack.index} of {self._log.last_index}")
        news = progress.matched(ack.index)
        if ack.full:
            progress.full(now + FULL_PAUSE_S)
        elif progress.disk_full and (news or ack.index == self._log.last_index):
            progress.has_room()
        if not news or ack.index <= self._raft.commit_index() or peer_id not in self._log.membership.voters:
            # The library hears only what may move the commit index. A learner's match counts from its promotion on: see
            # Raft.set_voters.
            return False
        if progress.acked_sent_at is not None:
            self.counters.replication.observe(now - progress.acked_sent_at)
        self._raft.receive_match(peer_id, ack.index)
        return True

    def brings_nothing(self, peer_id: str, ack: Ack) -> bool:
        """Nothing follows from this acknowledgement but numbers: it may be taken whenever the next tick comes.

        So it is with the one of the slower follower: the entry is committed, and nothing waits to be sent.
        """
        progress = self._progress.get(peer_id)
        return (
            progress is not None
            and ack.success
            and ack.index <= self._raft.commit_index()
            and not ack.full
            and progress.state is _REPLICATE
            and progress.next_index > self._log.last_index
        )

    def heard(self, peer_id: str, now: float) -> None:
        """A follower said something else than an acknowledgement: it is alive."""
        progress = self._progress.get(peer_id)
        if progress is not None:
            progress.ack_at = now

    def match_index(self, peer_id: str) -> int:
        """Last entry that a follower is known to have, 0 if nothing is known."""
        progress = self._progress.get(peer_id)
        return progress.match_index if progress else 0

    def snapshots_wanted(self, saved_index: int) -> tuple[list[str], int]:
        """Who wants a snapshot, and from which entry on one would mend every damaged state; 0 if none is damaged.

        Those are the followers whose next entry is gone from the log, and the damaged ones that one at ``saved_index``
        would mend.
        """
        wanting, mends_from = [], 0
        for peer_id, progress in self._progress.items():
            if progress.state is _SNAPSHOT or 0 < progress.wanted_from <= saved_index:
                wanting.append(peer_id)
            mends_from = max(mends_from, progress.wanted_from)
        return wanting, mends_from

    def snapshot_over(self, peer_id: str, index: int) -> None:
        """A follower has the state up to ``index``."""
        progress = self._progress.get(peer_id)
        if progress is not None:
            progress.wanted_from = 0
            progress.snapshot_over(min(index, self._log.last_index))

    def excuse(self, slept_s: float) -> None:
        """This node was off the processor: time in which it listened to nobody is not held against the followers."""
        if self._moved_at is not None:
            self._moved_at += slept_s
        for progress in self._progress.values():
            progress.ack_at += slept_s

    def has_quorum(self, voters: frozenset[str], now: float) -> bool:
        """A majority of ``voters``, this node being one, answered within one election time-out (Raft thesis §6.2)."""
        return self.quorum_until(voters) > now

    def quorum_until(self, voters: frozenset[str]) -> float:
        """How long :meth:`has_quorum` stays true even if nobody answers any more; answers only make it longer."""
        missing = len(voters) // 2
        if not missing:
            return float("inf")
        answers = sorted((progress.ack_at for peer_id, progress in self._progress.items() if peer_id in voters))
        if len(answers) < missing:
            return float("-inf")
        return answers[-missing] + self._config.election_ms_max / 1000

    def replicate(self, peer_ids: Collection[str], now: float) -> bool:
        """Send to every connected follower what it lacks, within its bounds, or a heartbeat when one is due.

        Returns:
            Whether a follower could take more at once. When it is to be called again if nothing happens is
            :attr:`deadline` then.
        """
        commit = self._raft.commit_index()
        if commit != self._commit_seen:
            self._commit_seen = commit
            self._commit_seen_at = self._moved_at = now
        notice_at = self._commit_seen_at + self._notice_s
        heartbeat_s = self._heartbeat_s
        last_index = self._log.last_index
        if commit == last_index:
            self._moved_at = now
        due = now + heartbeat_s
        built: dict[int, _Sized] = {}
        more = False
        for peer_id in peer_ids:
            progress = self._progress.get(peer_id)
            if progress is None:
                continue
            if progress.state is not _REPLICATE or progress.next_index <= last_index:
                again_at = self._send_entries(peer_id, progress, built, now)
                if again_at <= now:
                    more = True
                elif again_at < due:
                    due = again_at
            if now - progress.sent_at >= heartbeat_s or (progress.commit_sent < commit and now >= notice_at):
                self._send_append(peer_id, progress, self._heartbeat(progress), now)
            if progress.sent_at + heartbeat_s < due:
                due = progress.sent_at + heartbeat_s
            if progress.commit_sent < commit and notice_at < due:
                due = notice_at
        self.deadline = due
        return more

    def show_commit(self, peer_id: str, now: float) -> None:
        """Let one follower know the commit index now: a read waits for it there."""
        progress = self._progress.get(peer_id)
        if progress is not None and progress.commit_sent < self._raft.commit_index():
            self._send_append(peer_id, progress, self._heartbeat(progress), now)

    def stalled_s(self, now: float) -> float:
        """For how long entries have waited while the commit index has not moved; 0 while none waits.

        Too long by a heartbeat at most: it begins with the last look that found nothing waiting.
        """
        if self._moved_at is None or self._log.last_index == self._raft.commit_index():
            return 0.0
        return max(0.0, now - self._moved_at)

    def status(self, peer_id: str, now: float, *, connected: bool) -> PeerStatus:
        """What is known of one member."""
        progress = self._progress.get(peer_id)
        return PeerStatus(
            connected=connected,
            voter=peer_id in self._log.membership.voters,
            match_index=progress.match_index if progress else 0,
            next_index=progress.next_index if progress else 0,
            lag=self._log.last_index - progress.match_index if progress else 0,
            in_flight_bytes=progress.in_flight_bytes if progress else 0,
            silent_s=max(0.0, now - progress.ack_at) if progress else 0.0,
            disk_full=progress.disk_full if progress else False,
        )

    def _send_entries(self, peer_id: str, progress: Progress, built: dict[int, _Sized], now: float) -> float:
        """Send what fits; ``built`` shares a message, and so its encoding, between followers.

        Returns:
            When more may be sent even if nothing happens until then; ``now`` if at once.
        """
        log = self._log
        while True:
            next_index = progress.next_index
            if progress.state is _SNAPSHOT:
                return _NEVER
            if next_index <= log.base.index:
                progress.begin_snapshot()
                return _NEVER
            if progress.paused_until > now:
                return _NEVER
            if progress.state is _PROBE:
                if progress.probe_sent:
                    return _NEVER
            elif next_index > log.last_index or progress.in_flight_bytes >= self._in_flight_bytes_max:
                return _NEVER
            old = not log.in_memory(next_index)
            if old and (open_at := self._open_at(peer_id, now)) > now:
                return open_at
            shared = built.get(next_index)
            if shared is None:
                entries: list[Entry] = []
                if next_index <= log.last_index:
                    entries = log.entries(next_index, log.last_index, bytes_max=self._append_bytes)
                shared = self._append_after(next_index - 1, entries), sum([len(entry[0]) for entry in entries])
                built[next_index] = shared
            self._send_append(peer_id, progress, shared, now)
            if old:
                append, size_bytes = shared
                self._catch_up[peer_id].take(size_bytes + len(append.entries) * RECORD_HEADER_BYTES)
                # A follower far behind gets one block a tick, so that the others do not wait for it.
                return now if progress.state is _REPLICATE else _NEVER

    def _open_at(self, peer_id: str, now: float) -> float:
        """When this follower may get old entries: reading, encoding and sending them leaves time for new ones."""
        rate = self._config.catch_up_bytes_per_s
        bucket = self._catch_up.get(peer_id)
        if bucket is None:
            bucket = self._catch_up[peer_id] = TokenBucket(rate, self._config.append_bytes_max)
        self._growth.observe(self._log.end, now)
        if rate:
            bucket.set_rate(rate + self._growth.per_s)
        return bucket.open_at(now)

    def _heartbeat(self, progress: Progress) -> _Sized:
        """An append without entries; a follower before the log's beginning is shown that beginning."""
        return self._append_after(max(progress.next_index - 1, self._log.base.index), []), 0

    def _append_after(self, prev_index: int, entries: list[Entry]) -> Append:
        prev_term = self._log.term_at(prev_index)
        if prev_term is None:
            raise SafetyViolation(f"entry {prev_index} is not in the log")
        return Append(self._raft.term(), prev_index, prev_term, self._raft.commit_index(), entries)

    def _send_append(self, peer_id: str, progress: Progress, sized: _Sized, now: float) -> None:
        append, size_bytes = sized
        self.counters.appends_sent += 1
        progress.sent(append.prev_index + len(append.entries), size_bytes, append.commit, now)
        self._send(peer_id, append)
