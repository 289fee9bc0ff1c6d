"""Durations counted in buckets, as Prometheus' histograms are; pure.

Owns: the bounds, which are the same everywhere, so that histograms of nodes and of routes can be added.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS_S: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""From a flush on a good disk to a request that has waited for an election."""


class Histogram:
    """How many durations fell into each bucket, and their sum; both only rise. An observation allocates no memory."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """By bucket; the last one holds what lasted longer than the last bound."""
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration; one that equals a bound belongs to its bucket."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def add(self, other: Histogram) -> None:
        """Count all that another one has counted."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    @property
    def count(self) -> int:
        """How many durations."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Return how many durations are within each bound, and last how many there are."""
        return list(accumulate(self.counts))
