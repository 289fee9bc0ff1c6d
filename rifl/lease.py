"""Leases in cluster time, and which of them may have run out (RIFL §4.1).

Owns: expiry arithmetic and the queue of candidates. Time comes in as a value. A lease is extended by every
operation of its session, so the queue is lazy: a renewal touches one integer, and a candidate that was renewed
in the meantime is filed again when its old bucket comes up. Nothing ever scans all sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

BUCKET_MS: Final = 1_000
"""Width of a bucket: how late past its end a lease may be noticed. Early is impossible."""


class ExpiryQueue:
    """Finds leases that ended, in amortised O(1) per session and lease.

    A session sits in exactly one bucket, that of an end it had at some time: ends only grow, so the bucket is
    never later than the true one.
    """

    __slots__ = ("_buckets", "_next")

    def __init__(self) -> None:
        self._buckets: dict[int, list[int]] = {}
        self._next = 0

    def file(self, client_id: int, ends_ms: int) -> None:
        """File a session under the end of its lease; call once when it is opened."""
        bucket = max(ends_ms // BUCKET_MS, self._next)
        self._buckets.setdefault(bucket, []).append(client_id)

    def due(self, now_ms: int, ends_ms: Callable[[int], int | None], *, limit: int) -> list[int]:
        """Return up to ``limit`` sessions whose lease ended before ``now_ms``, in ascending order.

        Args:
            now_ms: cluster time.
            ends_ms: current end of a session's lease, or None if it is gone.
            limit: bound of the answer; the rest stays filed for the next call.
        """
        found: list[int] = []
        current = now_ms // BUCKET_MS
        for bucket in sorted(b for b in self._buckets if b < current):
            waiting = self._buckets[bucket]
            while waiting and len(found) < limit:
                client_id = waiting.pop()
                end = ends_ms(client_id)
                if end is None:
                    continue
                if end >= now_ms:
                    self.file(client_id, end)
                else:
                    found.append(client_id)
            if not waiting:
                del self._buckets[bucket]
            if len(found) >= limit:
                break
        if found:  # filed until really reaped: the proposal to reap may be lost
            self._buckets.setdefault(current, []).extend(found)
        self._next = min(self._buckets, default=current)
        return sorted(found)
