"""What is sent, how it is cut, and what is sent more than once: decided before the run, from the seed alone.

Owns: the slices of work and the choice of deliberate copies. Pure. Must not know how anything travels. Read next:
:mod:`examples.demo.ingest`, which carries it out.

Messages go out in slices of neighbouring lines. A slice is either one range (``put_many``) or a few single puts that
are outstanding together. Every eighth slice of each kind is copied on purpose, at three moments in turn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import cycle
from typing import Final, NamedTuple

RANGE_ROWS: Final = (64, 192)
SINGLES: Final = (1, 6)
"""Bounds of a slice. Fewer singles than the SDK joins to a range by itself, so that they stay single operations."""
RANGED_SHARE: Final = 0.7
"""Share of the messages that travel in ranges."""
COPY_EVERY: Final = 8


class When(StrEnum):
    """When a copy is sent, relative to the original."""

    AT_ONCE = "at the same time"
    LATER = "after the answer"
    ACKNOWLEDGED = "after the acknowledgement"


class Copy(NamedTuple):
    """A deliberate duplicate of part of a slice: ``length`` operations from the slice's ``offset``."""

    when: When
    offset: int
    length: int


class Slice(NamedTuple):
    """``length`` messages from line ``first`` on, as a range or one by one."""

    first: int
    length: int
    ranged: bool
    copy: Copy | None


def plan(messages: int, seed: int) -> list[Slice]:
    """Return the slices of lines 1 .. ``messages``, in order, each line in exactly one."""
    dice = random.Random(seed)
    moments = {True: _moments(dice), False: _moments(dice)}
    # Chance of a range such that ranges carry their share of the messages.
    single, ranged = sum(SINGLES) / 2, sum(RANGE_ROWS) / 2
    chance = single * RANGED_SHARE / (single * RANGED_SHARE + ranged * (1 - RANGED_SHARE))
    slices: list[Slice] = []
    first = 1
    while first <= messages:
        # The first slice is a range and the second are singles, so that the shortest run has both.
        is_range = first == 1 or (len(slices) != 1 and dice.random() < chance)
        length = min(dice.randint(*(RANGE_ROWS if is_range else SINGLES)), messages - first + 1)
        slices.append(Slice(first, length, is_range, _copy(next(moments[is_range]), is_range, length, dice)))
        first += length
    return slices


def copies(slices: Sequence[Slice]) -> dict[When, int]:
    """Return how many operations are copied at each moment."""
    found = dict.fromkeys(When, 0)
    for item in slices:
        if item.copy is not None:
            found[item.copy.when] += item.copy.length
    return found


def _moments(dice: random.Random) -> Iterator[When | None]:
    """Yield for each slice of one kind when its copy is sent; the first slice has one."""
    order = list(When)
    dice.shuffle(order)
    for when in cycle(order):
        yield when
        for _ in range(COPY_EVERY - 1):
            yield None


def _copy(when: When | None, is_range: bool, total: int, dice: random.Random) -> Copy | None:
    if when is None:
        return None
    if not is_range or total < 2 or dice.random() < 0.5:
        return Copy(when, 0, total)
    # Cut differently from the original: part of a range, under the same request ids.
    length = dice.randint(max(1, total // 2), total - 1)
    return Copy(when, dice.randint(0, total - length), length)
