"""What a node did in the last hour, step by step: rates, latencies and sizes in a ring of fixed size.

Owns: how two readings of counters become a moment, and which moments are kept. Pure: readings and their times are
passed in. :mod:`oncegate.gateway.node.figures` takes the readings and tells the moments to whoever asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from oncegate.consensus.histogram import BOUNDS_S

STEP_MS: Final = 5_000
"""Between two moments."""
MOMENTS_MAX: Final = 3_600_000 // STEP_MS
"""Of one node: an hour, in less than a megabyte."""


class Reading(NamedTuple):
    """Counters and sizes of a process at one time. Counters only rise; buckets are those of ``BOUNDS_S``."""

    at_ms: int
    """Unix time, for whoever looks at it."""
    clock_s: float
    """Of a clock that no one sets: the length of a step."""
    operations: int
    requests: int
    refused: int
    """Of these, answered with a status of 400 to 499."""
    failed: int
    """Of these, answered with a status of 500 or more."""
    request_times: Sequence[int]
    """How many fell into each bucket."""
    entry_times: Sequence[int]
    flush_times: Sequence[int]
    cpu_s: float
    lag: int
    """Entries of the log that are committed and not applied yet."""
    sessions: int
    connections: int
    memory_bytes: int | None
    disk_free_bytes: int
    disk_size_bytes: int
    data_bytes: int
    """Log and state on disk."""


class Moment(msgspec.Struct, array_like=True, frozen=True):
    """One step of a node's last hour. A duration is None where nothing was timed in it.

    ``number`` rises by one from 1 in the life of a process; ``at_ms`` is Unix time at the end of the step. ``entry``:
    from the proposal of a log entry to its result, at the leader. ``cpu``: processors kept busy, 1.0 is one.
    """

    number: int
    at_ms: int
    operations_per_s: float
    requests_per_s: float
    refused_per_s: float
    failed_per_s: float
    request_p50_ms: float | None
    request_p99_ms: float | None
    entry_p99_ms: float | None
    flush_p99_ms: float | None
    lag: int
    sessions: int
    connections: int
    cpu: float
    memory_bytes: int | None
    disk_free_bytes: int
    disk_size_bytes: int
    data_bytes: int


COLUMNS: Final = Moment.__struct_fields__
"""What the numbers of a moment are, in their order."""


class LastHour:
    """The newest ``MOMENTS_MAX`` moments of one process."""

    def __init__(self) -> None:
        self._moments: deque[Moment] = deque(maxlen=MOMENTS_MAX)
        self._number = 0
        self._before: Reading | None = None

    def take(self, reading: Reading) -> None:
        """Add the step since the reading before; the first one begins it, and one without length is left out."""
        before, self._before = self._before, reading
        if before is None:
            return
        if reading.clock_s <= before.clock_s:
            self._before = before
            return
        self._number += 1
        self._moments.append(_moment(self._number, before, reading))

    def after(self, number: int) -> list[Moment]:
        """Return the kept moments above a number, in order."""
        new = max(0, self._number - number)
        return list(islice(self._moments, max(0, len(self._moments) - new), None))


def quantile_ms(times: Sequence[int], share: float) -> float | None:
    """Return the duration within which a share of what the buckets hold lies, to a bucket's width; None of nothing.

    As Prometheus estimates it: evenly spread in its bucket. What lasted longer than the last bound counts as that.
    """
    count = sum(times)
    if not count:
        return None
    rank, low_s = share * count, 0.0
    for bound_s, inside in zip(BOUNDS_S, times, strict=False):
        if inside >= rank:
            return round(1000 * (low_s + (bound_s - low_s) * (rank / inside)), 3)
        rank -= inside
        low_s = bound_s
    return 1000 * BOUNDS_S[-1]


def _moment(number: int, before: Reading, now: Reading) -> Moment:
    lasted_s = now.clock_s - before.clock_s

    def rate(risen: float) -> float:
        # A snapshot may set back what counts operations.
        return round(max(0.0, risen) / lasted_s, 3)

    requests = _between(before.request_times, now.request_times)
    return Moment(
        number=number,
        at_ms=now.at_ms,
        operations_per_s=rate(now.operations - before.operations),
        requests_per_s=rate(now.requests - before.requests),
        refused_per_s=rate(now.refused - before.refused),
        failed_per_s=rate(now.failed - before.failed),
        request_p50_ms=quantile_ms(requests, 0.5),
        request_p99_ms=quantile_ms(requests, 0.99),
        entry_p99_ms=quantile_ms(_between(before.entry_times, now.entry_times), 0.99),
        flush_p99_ms=quantile_ms(_between(before.flush_times, now.flush_times), 0.99),
        lag=now.lag,
        sessions=now.sessions,
        connections=now.connections,
        cpu=rate(now.cpu_s - before.cpu_s),
        memory_bytes=now.memory_bytes,
        disk_free_bytes=now.disk_free_bytes,
        disk_size_bytes=now.disk_size_bytes,
        data_bytes=now.data_bytes,
    )


def _between(before: Sequence[int], now: Sequence[int]) -> list[int]:
    return [max(0, late - early) for early, late in zip(before, now, strict=True)]
