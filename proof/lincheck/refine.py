"""What the results of a history tell about its times, before any search.

Owns: narrower times. Where a value has one possible writer, operations that saw it came after the writer, and those
that did not see it came before; so each must have taken effect earlier or later than its own call says. An unknown
operation whose effect was seen has happened by then; one whose effect no operation saw is left out. Every rule keeps
exactly the good orders, but for unknown operations that none needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final

import msgspec

from oncegate.proof.lincheck.history import Operation, freeze

NEVER: Final = 1 << 62
_ROUNDS_MAX: Final = 6


class Times:
    """Earliest and latest moment at which each operation can have taken effect."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.ops = {op.index: op for op in operations}
        self.first = {op.index: op.invoked for op in self.ops.values()}
        self.last = {op.index: NEVER if op.returned is None else op.returned for op in self.ops.values()}
        self.dropped: set[int] = set()

    def order(self, earlier: Operation, later: Operation) -> None:
        """One takes effect before the other."""
        self.first[later.index] = max(self.first[later.index], self.first[earlier.index])
        self.last[earlier.index] = min(self.last[earlier.index], self.last[later.index])

    def done(self) -> list[Operation]:
        """Return the operations with their narrower times; unknown ones with an end are known now."""
        result: list[Operation] = []
        for index, op in self.ops.items():
            if index in self.dropped:
                continue
            first, last = self.first[index], self.last[index]
            if op.status == "unknown" and last < NEVER:
                result.append(msgspec.structs.replace(op, status="ok", invoked=first, returned=last))
            elif first != op.invoked or (op.returned is not None and last != op.returned):
                result.append(
                    msgspec.structs.replace(op, invoked=first, returned=last if op.returned is not None else None)
                )
            else:
                result.append(op)
        return result


def values(operations: Sequence[Operation], makes: Any, sees: Any, initial: Hashable) -> list[Operation]:
    """Narrow the times of an object that holds one value.

    Args:
        operations: of one object.
        makes: returns the frozen value that an operation leaves, in a tuple; () if it leaves none.
        sees: returns the frozen value that a known operation saw, or an unknown one needs, in a tuple; None if it saw
            only what the value was not.
        initial: the value at first.
    """
    times = Times(operations)
    writers: dict[Hashable, list[Operation]] = defaultdict(list)
    seers: dict[Hashable, list[Operation]] = defaultdict(list)
    needed: set[Hashable] = set()
    blind = False
    for op in operations:
        for value in makes(op):
            writers[value].append(op)
        seen = sees(op)
        if seen is None:
            blind = True
        elif op.status == "ok":
            for value in seen:
                seers[value].append(op)
        else:
            needed.update(seen)
    for value, made in writers.items():
        looked = seers.get(value)
        if looked is None:
            if value not in needed and not blind:
                times.dropped.update(op.index for op in made if op.status == "unknown")
        elif len(made) == 1 and value != initial:
            for op in looked:
                if op is not made[0]:
                    times.order(made[0], op)
    return times.done()


def items(operations: Sequence[Operation]) -> list[Operation]:
    """Tell of the unknown appends to a list, where all items are different, whether they happened."""
    times = Times(operations)
    appended: dict[Hashable, list[Operation]] = defaultdict(list)
    seen: dict[Hashable, Operation] = {}
    for op in operations:
        if op.f == "append":
            appended[freeze(op.argument)].append(op)
    reads = [op for op in operations if op.f == "read" and op.status == "ok"]
    for op in sorted(reads, key=lambda op: op.returned or 0):
        for item in map(freeze, op.result):
            seen.setdefault(item, op)
    for item, made in appended.items():
        if item not in seen:
            times.dropped.update(op.index for op in made if op.status == "unknown")
        elif len(made) == 1:
            times.order(made[0], seen[item])
    return times.done()


def elements(operations: Sequence[Operation]) -> list[Operation]:
    """Narrow the times of a set, for the elements that one operation adds and none removes."""
    times = Times(operations)
    adders: dict[Hashable, list[Operation]] = defaultdict(list)
    removed: set[Hashable] = set()
    reads: list[tuple[Operation, frozenset[Hashable]]] = []
    for op in operations:
        if op.f == "read":
            if op.status == "ok":
                reads.append((op, frozenset(map(freeze, op.result))))
        elif op.f == "add":
            adders[freeze(op.argument)].append(op)
        else:
            removed.add(freeze(op.argument))
    single = {value: made[0] for value, made in adders.items() if len(made) == 1 and value not in removed}
    seen: set[Hashable] = set()
    for op, found in sorted(reads, key=lambda read: read[0].returned or 0):
        for value in found - seen if len(found) > len(seen) else [value for value in found if value not in seen]:
            if value in single:
                times.order(single[value], op)
        seen |= found
        first = max((times.first[single[value].index] for value in found if value in single), default=0)
        times.first[op.index] = max(times.first[op.index], first)
    for value, adder in single.items():
        if adder.status == "unknown" and value not in seen:
            times.dropped.add(adder.index)
    _missing(times, {value: op for value, op in single.items() if op.index not in times.dropped}, reads)
    return times.done()


def _missing(
    times: Times, single: dict[Hashable, Operation], reads: list[tuple[Operation, frozenset[Hashable]]]
) -> None:
    """Order reads before the elements that they lack; bits stand for elements, lowest first to take effect."""
    order = sorted(single, key=lambda value: times.last[single[value].index])
    bit = {value: 1 << place for place, value in enumerate(order)}
    left = (1 << len(order)) - 1
    everything = left
    for op, found in sorted(reads, key=lambda read: -read[0].invoked):
        lacks = everything & ~sum(bit[value] for value in found if value in bit)
        if lacks:
            soonest = single[order[(lacks & -lacks).bit_length() - 1]]
            times.last[op.index] = min(times.last[op.index], times.last[soonest.index])
        fresh = lacks & left
        left &= ~fresh
        while fresh:
            adder = single[order[(fresh & -fresh).bit_length() - 1]]
            times.first[adder.index] = max(times.first[adder.index], times.first[op.index])
            fresh &= fresh - 1


def queue(operations: Sequence[Operation]) -> list[Operation]:
    """Narrow the times of a queue whose items are all different: who came in first went out first."""
    ins: dict[Hashable, list[Operation]] = defaultdict(list)
    outs: dict[Hashable, list[Operation]] = defaultdict(list)
    unknown_out = False
    for op in operations:
        if op.f == "enqueue":
            ins[freeze(op.argument)].append(op)
        elif op.status == "unknown":
            unknown_out = True
        elif op.result is not None:
            outs[freeze(op.result)].append(op)
    times = Times(operations)
    for value, made in ins.items():
        if value not in outs:
            times.dropped.update(op.index for op in made if op.status == "unknown")
    if any(len(made) > 1 for made in ins.values()) or any(len(out) > 1 for out in outs.values()):
        return times.done()
    pairs = [
        (made[0], outs[value][0] if value in outs else None)
        for value, made in ins.items()
        if made[0].index not in times.dropped and (value in outs or not unknown_out)
    ]
    for _ in range(_ROUNDS_MAX):
        before = (dict(times.first), dict(times.last))
        for entered, left in pairs:
            if left is not None:
                times.order(entered, left)
        _alike(times, [(left, entered) for entered, left in pairs])
        _alike(times, [(entered, left) for entered, left in pairs])
        if before == (times.first, times.last):
            break
    return times.done()


def _alike(times: Times, pairs: list[tuple[Operation | None, Operation | None]]) -> None:
    """Where the first operations of two pairs are ordered, the second ones are ordered alike; None is after all."""

    def first(op: Operation | None) -> int:
        return NEVER if op is None else times.first[op.index]

    def last(op: Operation | None) -> int:
        return NEVER if op is None else times.last[op.index]

    by_end = sorted(pairs, key=lambda pair: last(pair[0]))
    by_start = sorted(pairs, key=lambda pair: first(pair[0]))
    place, latest = 0, -1
    for leads, follows in by_start:
        while place < len(by_end) and last(by_end[place][0]) < first(leads):
            latest = max(latest, first(by_end[place][1]))
            place += 1
        if follows is not None:
            times.first[follows.index] = max(times.first[follows.index], latest)
    place, soonest = len(by_start) - 1, NEVER
    for leads, follows in reversed(by_end):
        while place >= 0 and first(by_start[place][0]) > last(leads):
            soonest = min(soonest, last(by_start[place][1]))
            place -= 1
        if follows is not None:
            times.last[follows.index] = min(times.last[follows.index], soonest)
