"""How far one follower is, and what may be sent to it next; pure.

Three states, as in etcd's raft (``tracker.StateType``)::

                          begin_snapshot                       snapshot_over
        PROBE, REPLICATE ────────────────▶ SNAPSHOT ──────────────────────────▶ PROBE
        PROBE, SNAPSHOT  ── matched ─────▶ REPLICATE
        REPLICATE ── refused, full, reconnected ──▶ PROBE

PROBE: where the logs part is not known; one append is under way until one matches. REPLICATE: appends follow each other
without waiting, up to ``in_flight_bytes_max``. SNAPSHOT: the next entry is gone from the log; only heartbeats go there
until a state was installed, or until one of them matches after all. Knows neither the log's entries nor the sockets.
Read next: :mod:`oncegate.consensus.core.replication`.
"""

from __future__ import annotations

import enum
from collections import deque

from oncegate.consensus.core.repairs import next_index_after_ack

ProgressState = enum.Enum("ProgressState", ["PROBE", "REPLICATE", "SNAPSHOT"])
"""What the leader knows of a follower's log."""


class Progress:
    """The leader's view of one follower."""

    __slots__ = (
        "_in_flight",
        "ack_at",
        "acked_sent_at",
        "commit_sent",
        "disk_full",
        "in_flight_bytes",
        "match_index",
        "next_index",
        "paused_until",
        "probe_sent",
        "sent_at",
        "state",
        "wanted_from",
    )

    def __init__(self, next_index: int, now: float) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.probe_sent = False
        """In PROBE: the append that is under way; there is no second one before its answer."""
        self.paused_until = float("-inf")
        """It has no room for entries; only heartbeats go there."""
        self.disk_full = False
        """It refused the latest entries that it was sent for want of room."""
        self.in_flight_bytes = 0
        self.commit_sent = 0
        self.sent_at = float("-inf")
        self.ack_at = now
        """Start of the term at first, so that a new leader has one time-out to hear from a quorum."""
        self.wanted_from = 0
        """Its state is damaged: it wants a snapshot at this entry or a later one, while entries go on as before."""
        self.acked_sent_at: float | None = None
        """When the newest append that the latest match covers had left; None: it covers none that was in flight."""
        self._in_flight: deque[tuple[int, int, float]] = deque()

    def reconnected(self) -> None:
        """What was in flight may be lost: find the place again; a snapshot goes on where it was."""
        self._await_match(ProgressState.SNAPSHOT if self.state is ProgressState.SNAPSHOT else ProgressState.PROBE)

    def full(self, until: float) -> None:
        """The follower's disk is full: what was sent is lost, and nothing is sent for a while."""
        self.paused_until = until
        self.disk_full = True
        self.next_index = self.match_index + 1
        self._await_match(ProgressState.PROBE)

    def has_room(self) -> None:
        """It took entries, or lacks none: a heartbeat that it answers says nothing of its disk."""
        self.disk_full = False

    def begin_snapshot(self) -> None:
        """The next entry is gone from the log."""
        self._await_match(ProgressState.SNAPSHOT)

    def snapshot_over(self, index: int) -> None:
        """The follower has the state up to ``index``: find the place in the log behind it."""
        self.next_index = max(self.match_index, index) + 1
        self._await_match(ProgressState.PROBE)

    def sent(self, last_index: int, size_bytes: int, commit: int, now: float) -> None:
        """An append that ends with ``last_index`` went out."""
        self.sent_at = now
        self.commit_sent = commit
        if self.state is not ProgressState.REPLICATE:
            self.probe_sent = True
            return
        if size_bytes:
            self.next_index = last_index + 1
            self._in_flight.append((last_index, size_bytes, now))
            self.in_flight_bytes += size_bytes

    def matched(self, index: int) -> bool:
        """The follower has flushed everything up to ``index``; returns whether that is news."""
        self.state = ProgressState.REPLICATE
        # Forward only: when the answer to entry 5 comes, 6 to 9 are in flight, and must not be sent again.
        self.next_index = next_index_after_ack(self.next_index, index)
        in_flight = self._in_flight
        self.acked_sent_at = None
        while in_flight and in_flight[0][0] <= index:
            _, size_bytes, self.acked_sent_at = in_flight.popleft()
            self.in_flight_bytes -= size_bytes
        if index <= self.match_index:
            return False
        self.match_index = index
        return True

    def refused(self, prev_index: int, hint: int) -> None:
        """The follower does not have ``prev_index``; a late refusal of an earlier append changes nothing.

        Nor does a hint of 0: it answers an append of an earlier term, to tell its sender of the later one, which this
        node may lead by the time the answer comes.
        """
        # A late answer. Two appends were under way when the follower's disk had no room for the first:
        #
        #   append            answer                 what the leader does
        #   6, 7 after 5      full, 5 matches        next_index 6, PROBE, nothing but heartbeats for a while
        #   8, 9 after 7      refused, 7 is missing  nothing: 5 is probed now, and it is known where the logs part
        stale = prev_index < self.match_index
        if self.state is ProgressState.PROBE:
            stale = stale or prev_index != self.next_index - 1
        if not hint or stale or self.state is ProgressState.SNAPSHOT:
            return
        self.next_index = max(self.match_index + 1, min(hint, prev_index))
        self._await_match(ProgressState.PROBE)

    def _await_match(self, state: ProgressState) -> None:
        """Until an append matches, nothing counts as in flight."""
        self.state = state
        self.probe_sent = False
        self._in_flight.clear()
        self.in_flight_bytes = 0
