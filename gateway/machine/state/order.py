"""Merging many sorted runs in short steps.

One sort of two hundred thousand keys keeps the interpreter for a tenth of a second, and a merge in Python costs more
than a microsecond a key. So this module cuts the runs at common pivots and sorts what lies between two pivots in one
step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, TypeVar

K = TypeVar("K", str, int)

RUN_KEYS: Final = 4096
"""Sorting so many takes less than a millisecond."""
SAMPLE: Final = 256
"""Each run gives every so many-th key as a candidate for a pivot."""
BLOCK_SAMPLES: Final = 16
"""A block holds about ``SAMPLE * BLOCK_SAMPLES`` keys; sorting that many takes about a millisecond."""


def in_order(runs: list[list[K]]) -> Iterator[K]:
    """Yield the keys of sorted runs, all different, in ascending order."""
    return chain.from_iterable(in_blocks(runs))


def sorted_in_runs(keys: Iterable[K]) -> Iterator[K]:
    """Yield keys, all different, in ascending order."""
    left = iter(keys)
    runs: list[list[K]] = []
    while run := sorted(islice(left, RUN_KEYS)):
        runs.append(run)
    return in_order(runs)


def in_blocks(runs: list[list[K]]) -> Iterator[list[K]]:
    """Yield what :func:`in_order` yields by the block, some thousand keys each."""
    candidates: list[Any] = sorted(chain.from_iterable(run[::SAMPLE] for run in runs))
    starts = [0] * len(runs)
    for pivot in candidates[BLOCK_SAMPLES::BLOCK_SAMPLES]:
        block: list[K] = []
        for number, run in enumerate(runs):
            stop = bisect_left(run, pivot, starts[number])
            block += run[starts[number] : stop]
            starts[number] = stop
        block.sort()
        yield block
    last = list(chain.from_iterable(run[start:] for run, start in zip(runs, starts, strict=True)))
    last.sort()
    yield last
