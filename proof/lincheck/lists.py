"""Appended lists of which every item is appended once: clashes found by sorting.

Owns: that search for two or three operations that do not fit together: reads that differ before they end, items from
nowhere, an acknowledged item that a later read lacks, a later read that is shorter, items in another order than their
appends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Final

from oncegate.proof.lincheck.history import Operation, refused
from oncegate.proof.lincheck.values import freeze

_NEVER: Final = 1 << 62
_Read = tuple[Operation, tuple[Hashable, ...]]


def clash(operations: Sequence[Operation]) -> list[Operation] | None:
    """Return operations that do not fit together; None if there are none, or items are not all different."""
    reads: list[_Read] = [
        (op, tuple(map(freeze, op.result))) for op in operations if op.f == "read" and op.status == "ok"
    ]
    if not reads:
        return None
    longest = max(reads, key=lambda read: len(read[1]))
    for op, items in reads:
        if longest[1][: len(items)] != items:
            return [op, longest[0]]
    appends: dict[Hashable, Operation] = {}
    for op in operations:
        if op.f == "append" and not refused(op):
            item = freeze(op.argument)
            if item in appends:
                return None
            appends[item] = op
    return _nowhere(reads, longest, appends) or _shrunk(reads, longest, appends) or _reordered(longest, appends)


def _nowhere(reads: Sequence[_Read], longest: _Read, appends: dict[Hashable, Operation]) -> list[Operation] | None:
    """Find an item that nobody appended, that is there twice, or that was read before it was appended."""
    # For each place of the longest read, the append up to there that began last.
    latest: list[Operation] = []
    found: set[Hashable] = set()
    for item in longest[1]:
        append = appends.get(item)
        if append is None:
            return [longest[0]]
        if item in found:
            return [append, longest[0]]
        found.add(item)
        latest.append(append if not latest or append.invoked > latest[-1].invoked else latest[-1])
    for op, items in reads:
        if items and latest[len(items) - 1].invoked > (op.returned or 0):
            return [latest[len(items) - 1], op]
    return None


def _shrunk(reads: Sequence[_Read], longest: _Read, appends: dict[Hashable, Operation]) -> list[Operation] | None:
    """Find a read that lacks what was there, or acknowledged, before it began."""
    order = sorted(reads, key=lambda read: read[0].invoked)
    invoked = [op.invoked for op, _ in order]
    shortest = list(order)
    for place in range(len(order) - 2, -1, -1):
        if len(shortest[place + 1][1]) < len(shortest[place][1]):
            shortest[place] = shortest[place + 1]
    places = {item: place for place, item in enumerate(longest[1])}
    needs = [(op, len(items)) for op, items in reads]
    needs += [(op, places.get(item, _NEVER) + 1) for item, op in appends.items() if op.status == "ok"]
    for op, length in needs:
        after = bisect_right(invoked, op.returned or 0)
        if after < len(order) and len(shortest[after][1]) < length:
            return [op, shortest[after][0]]
    return None


def _reordered(longest: _Read, appends: dict[Hashable, Operation]) -> list[Operation] | None:
    """Find two items in another order than their appends; items that were never read come after all others."""
    latest: Operation | None = None
    seen = set(longest[1])
    for item in [*longest[1], *(item for item in appends if item not in seen)]:
        op = appends[item]
        if latest is not None and op.returned is not None and op.returned < latest.invoked:
            return [op, latest, longest[0]]
        if item in seen and (latest is None or op.invoked > latest.invoked):
            latest = op
    return None
