"""Leases in cluster time, and which of them may have run out (RIFL §4.1).

Owns: expiry arithmetic and the queue of candidates. Time comes in as a value. A lease is extended by every
operation of its session, so the queue is lazy: a renewal touches one integer, and a candidate that was renewed
in the meantime is filed again when its old bucket comes up. Nothing ever scans all sessions.

Invariant: as many sessions are filed as live or are noted as gone; to forget one that was never filed raises
InvariantViolation. A session that is not filed would never be reaped, and its records would stay for ever.

The queue is not part of the replicated state: it only proposes which sessions a log entry might reap. Every node calls
:meth:`ExpiryQueue.due` from time to time: the leader acts on the answer; the other nodes drop sessions that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from oncegate.rifl.errors import InvariantViolation

BUCKET_MS: Final = 1_000
"""Width of a bucket: how late past its end a lease may be noticed. Early is impossible."""
LOOKS_MAX: Final = 5_000
"""Sessions that one call looks at: a few milliseconds, however many leases were granted at once."""
GONE_KEPT: Final = 4_096
"""Sessions that are gone may stay filed up to this number, and beyond it up to half of all that is filed."""


class ExpiryQueue:
    """Finds leases that ended, in amortised O(1) per session and lease.

    A session sits in exactly one bucket, that of an end it had at some time. Ends only grow, so the bucket is never
    later than the true one. At most twice the live sessions, plus ``GONE_KEPT``, are filed.
    """

    __slots__ = ("_buckets", "_filed", "_gone", "_order", "_sweep", "_swept")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        self._order: list[int] = []  # heap of the buckets' numbers
        self._filed = 0
        self._gone = 0
        self._sweep: list[int] = []  # buckets that a sweep has still to look through
        self._swept = 0  # position of the sweep in the last of them

    def __len__(self) -> int:
        """Return how many sessions are filed, including those that are gone."""
        return self._filed

    def file(self, client_id: int, ends_ms: int) -> None:
        """File a session under the end of its lease; call once when it is opened."""
        self._filed += 1
        self._put(ends_ms // BUCKET_MS, client_id)

    def forget(self) -> None:
        """Note that a filed session is gone; its place is freed later, by :meth:`due`."""
        if self._gone >= self._filed:
            raise InvariantViolation(f"{self._gone + 1} of {self._filed} filed sessions are gone")
        self._gone += 1

    def due(self, now_ms: int, ends_ms: Callable[[int], int | None], *, limit: int) -> list[int]:
        """Return up to ``limit`` sessions whose lease ended before ``now_ms``, in ascending order.

        Looks at ``LOOKS_MAX`` sessions at most; what is left over stays filed for the next call.

        Args:
            now_ms: cluster time.
            ends_ms: current end of a session's lease, or None if it is gone.
            limit: bound of the answer.
        """
        found: list[int] = []
        current = now_ms // BUCKET_MS
        order, looks = self._order, LOOKS_MAX
        while order and order[0] < current and looks and len(found) < limit:
            waiting = self._buckets[order[0]]
            while waiting and looks and len(found) < limit:
                looks -= 1
                client_id = waiting.pop()
                end = ends_ms(client_id)
                if end is None:
                    self._filed -= 1
                    self._gone -= 1
                elif end >= now_ms:
                    self._put(end // BUCKET_MS, client_id)
                else:
                    found.append(client_id)
            if not waiting:
                del self._buckets[heappop(order)]
        for client_id in found:  # stays filed until it is reaped: the proposal to reap may be lost
            self._put(current, client_id)
        if looks and self._gone > max(GONE_KEPT, self._filed // 2):
            self._free_gone(ends_ms, looks)
        return sorted(found)

    @property
    def next_ms(self) -> int | None:
        """Cluster time after which a lease may have ended that has not ended yet; None if none is filed."""
        return (self._order[0] + 1) * BUCKET_MS if self._order else None

    def is_behind(self, now_ms: int) -> bool:
        """Tell whether a call of :meth:`due` at ``now_ms`` has left work for another one."""
        order = self._order
        return bool(order and order[0] < now_ms // BUCKET_MS) or self._gone > max(GONE_KEPT, self._filed // 2)

    def _put(self, bucket: int, client_id: int) -> None:
        waiting = self._buckets.get(bucket)
        if waiting is None:
            self._buckets[bucket] = [client_id]
            heappush(self._order, bucket)
        else:
            waiting.append(client_id)

    def _free_gone(self, ends_ms: Callable[[int], int | None], looks: int) -> None:
        """Look through some more buckets and drop sessions that are gone: those with long leases would pile up."""
        while looks > 0:
            if not self._sweep:
                if self._gone <= GONE_KEPT:
                    return
                self._sweep = sorted(self._buckets)
                self._swept = 0
            waiting = self._buckets.get(self._sweep[-1], [])
            part = waiting[self._swept : self._swept + looks]
            kept = [client_id for client_id in part if ends_ms(client_id) is not None]
            waiting[self._swept : self._swept + len(part)] = kept
            self._filed -= len(part) - len(kept)
            self._gone -= len(part) - len(kept)
            self._swept += len(kept)
            looks -= max(1, len(part))
            if self._swept >= len(waiting):
                self._sweep.pop()
                self._swept = 0
