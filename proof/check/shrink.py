"""Smaller runs and smaller histories that still fail. Pure: whether something fails is asked of the caller.

Owns: what is tried in which order, and the bound of tries. Both ways rest on
:func:`oncegate.proof.lincheck.shrink.fewer`.

Only what is sound is left out of a history: a prefix of a correct history is correct, so is one key of it, and so is
one without some of its reads or refused operations. Leaving out a write is not: its readers would accuse nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from oncegate.proof.lincheck import Event
from oncegate.proof.lincheck.shrink import fewer

SECONDS_MIN: Final = 2.0
READS: Final = frozenset({"read", "read-own", "get", "sum"})


class Smaller(msgspec.Struct, frozen=True):
    """A run to be tried: which planned faults are left, how many processes, how long."""

    faults: tuple[int, ...]
    processes: int
    seconds: float


class Budget:
    """How many more tries there are."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def spend(self) -> bool:
        """Take one; False if there is none."""
        self.left -= 1
        return self.left >= 0


def smaller_run(first: Smaller, fails: Callable[[Smaller], bool], budget: Budget) -> Smaller:
    """Return a smaller run that fails too: fewer faults, then fewer processes, then a shorter time.

    Args:
        first: a run that failed.
        fails: makes a run, and tells whether it fails; runs of one plan may differ, so it may try more than once.
        budget: of calls of ``fails``.
    """
    found = first

    def with_faults(faults: tuple[int, ...]) -> bool:
        return fails(msgspec.structs.replace(found, faults=faults))

    found = msgspec.structs.replace(found, faults=fewer(found.faults, with_faults, budget.spend))
    while found.processes > 1 and budget.spend():
        candidate = msgspec.structs.replace(found, processes=found.processes // 2)
        if not fails(candidate):
            break
        found = candidate
    while found.seconds > SECONDS_MIN and budget.spend():
        candidate = msgspec.structs.replace(found, seconds=max(SECONDS_MIN, found.seconds / 2))
        if not fails(candidate):
            break
        found = candidate
    return found


def smaller_history(
    history: Sequence[Event], keys: Sequence[Hashable], fails: Callable[[Sequence[Event]], bool], budget: Budget
) -> list[Event]:
    """Return a part of a failing history that still fails, and whose failing is still somebody's fault.

    Args:
        history: a history that failed.
        keys: those that failures name; others are left out if that leaves a failure.
        fails: judges a history.
        budget: of calls of ``fails``.
    """
    kept = list(history)
    named = [event for event in kept if event.key in keys]
    if len(named) < len(kept) and budget.spend() and fails(named):
        kept = named
    kept = kept[: _prefix(kept, fails, budget)]
    units = _removable(kept)

    def without(chosen: tuple[tuple[int, ...], ...]) -> bool:
        return fails(_less(kept, units, chosen))

    return _less(kept, units, fewer(units, without, budget.spend))


def _prefix(history: Sequence[Event], fails: Callable[[Sequence[Event]], bool], budget: Budget) -> int:
    """Return the length of a failing prefix; the shortest, if failing once is failing ever after."""
    low, high = 0, len(history)
    while low < high and budget.spend():
        middle = (low + high) // 2
        if fails(history[:middle]):
            high = middle
        else:
            low = middle + 1
    return high


def _removable(history: Sequence[Event]) -> tuple[tuple[int, ...], ...]:
    """Return, for each read and each refused operation, the places of its events."""
    found: list[tuple[int, ...]] = []
    running: dict[int, int] = {}
    for place, event in enumerate(history):
        if event.type == "invoke":
            running[event.process] = place
            continue
        began = running.pop(event.process, None)
        if began is not None and (event.f in READS or (event.type == "fail" and event.request is None)):
            found.append((began, place))
    return tuple(found)


def _less(history: Sequence[Event], units: Sequence[tuple[int, ...]], kept: Sequence[tuple[int, ...]]) -> list[Event]:
    dropped = {place for unit in set(units) - set(kept) for place in unit}
    return [event for place, event in enumerate(history) if place not in dropped]
