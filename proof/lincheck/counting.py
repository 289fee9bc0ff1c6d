"""Bounds of a counter that only grows.

Owns: what a counter must have been at least and at most when an operation saw it: all that had been acknowledged before
the operation began, and all that had begun before it ended. What was seen earlier is a lower bound too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from oncegate.proof.lincheck.history import Operation, refused


def seen(op: Operation) -> int | None:
    """Return the value that an operation saw; None if it was told none."""
    if op.status != "ok" or type(op.result) is not int:
        return None
    return op.result


def amount(op: Operation) -> int:
    """Return what an operation adds."""
    if op.f == "read" or refused(op):
        return 0
    return 1 if op.argument is None else int(op.argument)


class Bounds:
    """Lower and upper bounds at any time, of operations that add and never take away."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        known = sorted((op for op in operations if op.returned is not None), key=lambda op: op.returned or 0)
        begun = sorted((op for op in operations if amount(op)), key=lambda op: op.invoked)
        self.returned = [op.returned or 0 for op in known]
        self.acknowledged = [0, *accumulate(amount(op) for op in known)]
        self.invoked = [op.invoked for op in begun]
        self.asked = [0, *accumulate(amount(op) for op in begun)]
        self.known = known
        self.highest: list[int] = []
        """Place in ``known`` of the operation that saw most, so far."""
        top, place = -1, 0
        for number, op in enumerate(known):
            value = seen(op)
            if value is not None and value > top:
                top, place = value, number
            self.highest.append(place)

    def low(self, op: Operation) -> int:
        """Return what had been acknowledged before ``op`` began, and what it adds itself."""
        return self.acknowledged[bisect_left(self.returned, op.invoked)] + amount(op)

    def high(self, op: Operation) -> int:
        """Return what had begun before ``op`` ended."""
        return self.asked[bisect_right(self.invoked, op.returned or 0)]

    def seen_before(self, op: Operation) -> Operation | None:
        """Return the operation that saw most and ended before ``op`` began."""
        count = bisect_left(self.returned, op.invoked)
        return self.known[self.highest[count - 1]] if count else None


def out_of_bounds(operations: Sequence[Operation]) -> list[Operation]:
    """Return the first operation that saw what it cannot have seen, after the one that saw more before, if one did."""
    if any(amount(op) < 0 for op in operations):
        return []
    bounds = Bounds(operations)
    for op in bounds.known:
        value = seen(op)
        if value is None:
            continue
        if not bounds.low(op) <= value <= bounds.high(op):
            return [op]
        before = bounds.seen_before(op)
        if before is not None and (seen(before) or 0) + amount(op) > value:
            return [before, op]
    return []


def reasons(window: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
    """Tell the bounds of the operations in a window that saw something outside them."""
    if any(amount(op) < 0 for op in operations):
        return []
    bounds = Bounds(operations)
    lines: list[str] = []
    for op in window:
        value = seen(op)
        if value is not None and value < bounds.low(op):
            lines.append(f"increments acknowledged before it began make at least {bounds.low(op)}, not {value}")
        elif value is not None and value > bounds.high(op):
            lines.append(f"all increments begun before it ended make at most {bounds.high(op)}, not {value}")
    return lines
