"""Registers of which every value is written once: decided by sorting, without a search.

Owns: the zones of Gibbons & Korach (1997). A write and the reads of its value stand together in every good order. If
one of them ended before another began, the value was there for all the time between (a forward zone); else at some
moment of the time in which all of them were open (a backward zone). An order exists unless two forward zones overlap,
or a backward zone lies inside a forward one.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple

from oncegate.proof.lincheck.history import Operation
from oncegate.proof.lincheck.values import freeze

_BEFORE_ALL: Final = -1


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


def decide(operations: Sequence[Operation]) -> list[Operation] | None:
    """Decide about a register with reads and writes only.

    Returns:
        At most six operations that do not fit together, nothing if all do, or None if a value was written twice: then
        zones cannot tell.
    """
    writes: dict[Hashable, Operation] = {}
    for op in operations:
        if op.f == "write":
            value = freeze(op.argument)
            if value in writes or value is None:
                return None
            writes[value] = op
    reads: dict[Hashable, list[Operation]] = {}
    for op in operations:
        if op.f != "write" and op.status == "ok":
            reads.setdefault(freeze(op.result), []).append(op)
    if clash := _unwritten(writes, reads):
        return clash
    zones = [_zone(writes.get(value), reads.get(value, [])) for value in {**writes, **reads}]
    forward = sorted((zone for zone in zones if zone and zone.low < zone.high), key=lambda zone: zone.low)
    backward = [zone for zone in zones if zone and zone.low >= zone.high]
    return _overlap(forward) or _inside(forward, backward)


def order(operations: Sequence[Operation]) -> list[Operation] | None:
    """Return a good order of a register's operations; None if there is none, or zones cannot tell."""
    if decide(operations) != []:
        return None
    writes = {freeze(op.argument): op for op in operations if op.f == "write"}
    reads: dict[Hashable, list[Operation]] = {}
    for op in operations:
        if op.f != "write" and op.status == "ok":
            reads.setdefault(freeze(op.result), []).append(op)
    zones = {value: _zone(writes.get(value), reads.get(value, [])) for value in {**writes, **reads}}
    forward = sorted((zone for zone in zones.values() if zone and zone.low < zone.high), key=lambda zone: zone.low)
    lows = [zone.low for zone in forward]
    placed: list[tuple[int, int, Hashable]] = []
    for value, zone in zones.items():
        if zone is None:
            continue
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
