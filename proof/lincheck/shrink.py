"""The fewest of some items that still fail: delta debugging, the one of the project.

Pure: whether something fails is asked of the caller. Halves are left out, then quarters, and so on down to single items
(Zeller and Hildebrandt, *Simplifying and isolating failure-inducing input*, 2002, without the step that tries subsets,
which finds little when runs are not deterministic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fewer(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], may_try: Callable[[], bool]) -> tuple[T, ...]:
    """Return a part of ``items`` that still fails, in their order; no single item of it can be left out.

    Args:
        items: fail together; they are not tried themselves.
        fails: tells whether a part, which may be empty, still fails.
        may_try: asked before each try; when it says no, what was found so far is returned, and may be longer.
    """
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    found = True
    while kept and (size > 1 or found):
        place, found = 0, False
        while place < len(kept):
            if not may_try():
                return kept
            less = kept[:place] + kept[place + size :]
            if fails(less):
                kept, found = less, True
            else:
                place += size
        if size > 1:
            size, found = size // 2, True
    return kept
