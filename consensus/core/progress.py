"""How far one follower is, and what may be sent to it next; pure.

Three modes, as in etcd's raft: *probing* (one append in flight until one matches), *streaming* (appends follow
each other without waiting, up to ``in_flight_bytes_max``) and *snapshot* (no entries until a state was installed,
because the next one is gone). Knows neither the log's entries nor the sockets.
Read next: :mod:`oncegate.consensus.core.engine`.
"""

from __future__ import annotations

from collections import deque

from oncegate.consensus.core.repairs import next_index_after_ack


class Progress:
    """The leader's view of one follower."""

    __slots__ = (
        "_in_flight",
        "ack_at",
        "commit_sent",
        "in_flight_bytes",
        "match_index",
        "next_index",
        "paused_until",
        "probe_sent",
        "probing",
        "sent_at",
        "snapshot",
    )

    def __init__(self, next_index: int, now: float) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.probing = True
        self.probe_sent = False
        self.snapshot = False
        self.paused_until = float("-inf")
        """It has no room for entries; only heartbeats go there."""
        self.in_flight_bytes = 0
        self.commit_sent = 0
        self.sent_at = float("-inf")
        self.ack_at = now
        """Start of the term at first, so that a new leader has one time-out to hear from a quorum."""
        self._in_flight: deque[tuple[int, int]] = deque()

    @property
    def streaming(self) -> bool:
        """The follower's log matches ours up to :attr:`match_index`, and entries follow each other."""
        return not self.probing

    def reconnected(self) -> None:
        """What was in flight may be lost: find the place again."""
        self._probe()

    def full(self, until: float) -> None:
        """The follower's disk is full: what was sent is lost, and nothing is sent for a while."""
        self.paused_until = until
        self.next_index = self.match_index + 1
        self._probe()

    def begin_snapshot(self) -> None:
        """The next entry is gone from the log."""
        self.snapshot = True
        self._probe()

    def snapshot_over(self, index: int) -> None:
        """The follower has the state up to ``index``: find the place in the log behind it."""
        self.snapshot = False
        self.next_index = max(self.match_index, index) + 1
        self._probe()

    def sent(self, last_index: int, size_bytes: int, commit: int, now: float) -> None:
        """An append that ends with ``last_index`` went out."""
        self.sent_at = now
        self.commit_sent = commit
        if self.probing:
            self.probe_sent = True
            return
        if size_bytes:
            self.next_index = last_index + 1
            self._in_flight.append((last_index, size_bytes))
            self.in_flight_bytes += size_bytes

    def matched(self, index: int) -> bool:
        """The follower has flushed everything up to ``index``; returns whether that is news."""
        self.probing = False
        self.snapshot = False
        self.next_index = next_index_after_ack(self.next_index, index)
        in_flight = self._in_flight
        while in_flight and in_flight[0][0] <= index:
            self.in_flight_bytes -= in_flight.popleft()[1]
        if index <= self.match_index:
            return False
        self.match_index = index
        return True

    def refused(self, prev_index: int, hint: int) -> None:
        """The follower does not have ``prev_index``; a late refusal of an earlier append changes nothing.

        Nor does a hint of 0: it answers an append of an earlier term, to tell its sender of the later one, which this
        node may lead by the time the answer comes.
        """
        stale = prev_index < self.match_index or (self.probing and prev_index != self.next_index - 1)
        if not hint or self.snapshot or stale:
            return
        self.next_index = max(self.match_index + 1, min(hint, prev_index))
        self._probe()

    def _probe(self) -> None:
        self.probing = True
        self.probe_sent = False
        self._in_flight.clear()
        self.in_flight_bytes = 0
