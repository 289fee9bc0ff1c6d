"""Registers, lists and counters decided by sorting, without a search, where a history allows it.

Owns three ways to find operations that do not fit together:

- *registers* of which every value is written once: the zones of Gibbons & Korach (1997). A write and the reads of its
  value stand together in every good order. If one of them ended before another began, the value was there for all the
  time between (a forward zone); else at some moment of the time in which all of them were open (a backward zone). An
  order exists unless two forward zones overlap, or a backward zone lies inside a forward one;
- *lists* of which every item is appended once: reads that differ before they end, items from nowhere, an acknowledged
  item that a later read lacks, a later read that is shorter, items in another order than their appends;
- *counters* that only grow: what a counter must have been at least (all that had been acknowledged before the operation
  began) and at most (all that had begun before it ended). What was seen earlier is a lower bound too.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from oncegate.proof.lincheck.history import Operation, freeze, refused

_BEFORE_ALL: Final = -1
_NEVER: Final = 1 << 62
_Read = tuple[Operation, tuple[Hashable, ...]]


class _Zone(NamedTuple):
    low: int
    high: int
    write: Operation | None
    ends: Operation | None
    """Whose end came first."""
    begins: Operation | None
    """Whose beginning came last."""

    @property
    def operations(self) -> list[Operation]:
        return list({op.index: op for op in (self.write, self.ends, self.begins) if op is not None}.values())


def register_clash(operations: Sequence[Operation]) -> list[Operation] | None:
    """Decide about a register with reads and writes only.

    Returns:
        At most six operations that do not fit together, nothing if all do, or None if a value was written twice: then
        zones cannot tell.
    """
    writes, reads = _by_value(operations)
    if len(writes) < sum(op.f == "write" for op in operations) or None in writes:
        return None
    if clash := _unwritten(writes, reads):
        return clash
    zones = _zones(writes, reads)
    forward = _forward(zones)
    return _overlap(forward) or _inside(forward, [zone for zone in zones.values() if zone.low >= zone.high])


def register_order(operations: Sequence[Operation]) -> list[Operation] | None:
    """Return a good order of a register's operations; None if there is none, or zones cannot tell."""
    if register_clash(operations) != []:
        return None
    writes, reads = _by_value(operations)
    zones = _zones(writes, reads)
    forward = _forward(zones)
    lows = [zone.low for zone in forward]
    placed: list[tuple[int, int, Hashable]] = []
    for value, zone in zones.items():
        if zone.low < zone.high:
            placed.append((zone.low, 1, value))
            continue
        # A backward zone stands where its last operation begins, or right after the forward zone that is there.
        point = zone.high
        before = bisect_left(lows, point) - 1
        if before >= 0 and point < forward[before].high:
            point = forward[before].high
        placed.append((point, 0, value))
    found: list[Operation] = []
    for _, _, value in sorted(placed, key=lambda place: place[:2]):
        if value in writes:
            found.append(writes[value])
        found.extend(sorted(reads.get(value, []), key=lambda op: op.invoked))
    return found


def _by_value(operations: Sequence[Operation]) -> tuple[dict[Hashable, Operation], dict[Hashable, list[Operation]]]:
    """Return the write and the answered reads of each value."""
    writes = {freeze(op.argument): op for op in operations if op.f == "write"}
    reads: dict[Hashable, list[Operation]] = {}
    for op in operations:
        if op.f != "write" and op.status == "ok":
            reads.setdefault(freeze(op.result), []).append(op)
    return writes, reads


def _zones(writes: dict[Hashable, Operation], reads: dict[Hashable, list[Operation]]) -> dict[Hashable, _Zone]:
    """Return the zone of each value that must have been there."""
    zones = {value: _zone(writes.get(value), reads.get(value, [])) for value in {**writes, **reads}}
    return {value: zone for value, zone in zones.items() if zone is not None}


def _forward(zones: dict[Hashable, _Zone]) -> list[_Zone]:
    return sorted((zone for zone in zones.values() if zone.low < zone.high), key=lambda zone: zone.low)


def _unwritten(writes: dict[Hashable, Operation], reads: dict[Hashable, list[Operation]]) -> list[Operation]:
    for value, readers in reads.items():
        if value is None:
            continue
        write = writes.get(value)
        first = min(readers, key=lambda op: op.returned or 0)
        if write is None:
            return [first]
        if (first.returned or 0) < write.invoked:
            return [first, write]
    return []


def _zone(write: Operation | None, readers: list[Operation]) -> _Zone | None:
    """Return the zone of a value; None if it need not have been there at all."""
    known = [op for op in [*readers, write] if op is not None and op.returned is not None]
    if not known:
        return None
    ends = min(known, key=lambda op: op.returned or 0)
    begins = max(known if write is None else [*known, write], key=lambda op: op.invoked)
    low = ends.returned or 0
    if write is None:
        return _Zone(_BEFORE_ALL, begins.invoked, None, None, begins)
    return _Zone(low, begins.invoked, write, ends, begins)


def _overlap(forward: list[_Zone]) -> list[Operation]:
    for earlier, later in itertools.pairwise(forward):
        if later.low < earlier.high:
            return [*earlier.operations, *later.operations]
    return []


def _inside(forward: list[_Zone], backward: list[_Zone]) -> list[Operation]:
    """Find a backward zone inside a forward one; forward zones are sorted and do not overlap."""
    place = 0
    for zone in sorted(backward, key=lambda zone: zone.high):
        while place < len(forward) and forward[place].high <= zone.high:
            place += 1
        if place < len(forward) and forward[place].low < zone.high and zone.low < forward[place].high:
            return [*forward[place].operations, *zone.operations]
    return []


def list_clash(operations: Sequence[Operation]) -> list[Operation] | None:
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
    """Find an item that was never appended, that is there twice, or that was read before it was appended."""
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


def _seen(op: Operation) -> int | None:
    """Return the value that an operation saw; None if its answer has none."""
    return op.result if op.status == "ok" and type(op.result) is int else None


def _amount(op: Operation) -> int:
    """Return what an operation adds."""
    if op.f == "read" or refused(op):
        return 0
    return 1 if op.argument is None else int(op.argument)


class _Bounds:
    """Lower and upper bounds at any time, of operations that add and never take away."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        known = sorted((op for op in operations if op.returned is not None), key=lambda op: op.returned or 0)
        begun = sorted((op for op in operations if _amount(op)), key=lambda op: op.invoked)
        self.returned = [op.returned or 0 for op in known]
        self.acknowledged = [0, *itertools.accumulate(_amount(op) for op in known)]
        self.invoked = [op.invoked for op in begun]
        self.asked = [0, *itertools.accumulate(_amount(op) for op in begun)]
        self.known = known
        self.highest: list[int] = []
        """Place in ``known`` of the operation that saw most, so far."""
        top, place = -1, 0
        for number, op in enumerate(known):
            value = _seen(op)
            if value is not None and value > top:
                top, place = value, number
            self.highest.append(place)

    def low(self, op: Operation) -> int:
        """Return what had been acknowledged before ``op`` began, and what it adds itself."""
        return self.acknowledged[bisect_left(self.returned, op.invoked)] + _amount(op)

    def high(self, op: Operation) -> int:
        """Return what had begun before ``op`` ended."""
        return self.asked[bisect_right(self.invoked, op.returned or 0)]

    def seen_before(self, op: Operation) -> Operation | None:
        """Return the operation that saw most and ended before ``op`` began."""
        count = bisect_left(self.returned, op.invoked)
        return self.known[self.highest[count - 1]] if count else None


def out_of_bounds(operations: Sequence[Operation]) -> list[Operation]:
    """Return the first operation that saw what it cannot have seen, after the one that saw more before, if one did."""
    if any(_amount(op) < 0 for op in operations):
        return []
    bounds = _Bounds(operations)
    for op in bounds.known:
        value = _seen(op)
        if value is None:
            continue
        if not bounds.low(op) <= value <= bounds.high(op):
            return [op]
        before = bounds.seen_before(op)
        if before is not None and (_seen(before) or 0) + _amount(op) > value:
            return [before, op]
    return []


def counter_reasons(window: Sequence[Operation], operations: Sequence[Operation]) -> list[str]:
    """Tell the bounds of the operations in a window that saw something outside them."""
    if any(_amount(op) < 0 for op in operations):
        return []
    bounds = _Bounds(operations)
    lines: list[str] = []
    for op in window:
        value = _seen(op)
        if value is not None and value < bounds.low(op):
            lines.append(f"increments acknowledged before it began make at least {bounds.low(op)}, not {value}")
        elif value is not None and value > bounds.high(op):
            lines.append(f"all increments begun before it ended make at most {bounds.high(op)}, not {value}")
    return lines
