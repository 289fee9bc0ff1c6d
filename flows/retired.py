"""What deleted flows leave behind: numbers that are never given out again.

Owns: one rule. A batch number, a fence and a version of a flow's name each mean one thing for ever, also when the flow
was deleted and its name declared again: files that a node has kept, checkpoints and cursors of a job of the old flow,
and an answer in a cache cannot be taken for the new flow's. Part of the replicated state, pure, bounded: the names of
``NAMES_MAX`` deleted flows, and for all before them one floor above which every new name begins. Read next:
:mod:`oncegate.flows.cursor`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.flows.flow import FLOWS_MAX

NAMES_MAX: Final = FLOWS_MAX


class Used(msgspec.Struct, frozen=True, array_like=True):
    """Numbers up to which a name has been used: batches, fences, versions of the declaration."""

    batches: int = 0
    fences: int = 0
    versions: int = 0


class RetiredState(msgspec.Struct, frozen=True, array_like=True):
    """Snapshot: the names in the order in which they were deleted, and the floor."""

    names: tuple[tuple[str, Used], ...] = ()
    floor: Used = Used()


class RetiredNames:
    """The names of deleted flows that were not declared again."""

    __slots__ = ("_floor", "_names")

    def __init__(self, state: RetiredState = RetiredState()) -> None:  # noqa: B008 - frozen
        self._names = dict(state.names)
        self._floor = state.floor

    def retire(self, name: str, used: Used) -> None:
        """Remember what a deleted flow has used; the oldest name over NAMES_MAX becomes part of the floor."""
        self._names.pop(name, None)
        self._names[name] = used
        if len(self._names) > NAMES_MAX:
            oldest = self._names.pop(next(iter(self._names)))
            floor = self._floor
            self._floor = Used(
                max(floor.batches, oldest.batches),
                max(floor.fences, oldest.fences),
                max(floor.versions, oldest.versions),
            )

    def declared(self, name: str) -> Used:
        """Return what a flow of this name must begin above, and forget the name: the flow is there again."""
        used = self.used(name)
        self._names.pop(name, None)
        return used

    def used(self, name: str) -> Used:
        """Return up to which numbers a name that no flow has may have been used."""
        return self._names.get(name, self._floor)

    def fence_off(self, skipped: int) -> None:
        """Let every name that is declared from now on begin with fences ``skipped`` higher, whether it was used or not:
        another cluster, which goes on with this state, may give the ones before.
        """
        self._names = {name: _fenced(used, skipped) for name, used in self._names.items()}
        self._floor = _fenced(self._floor, skipped)

    def find(self, name: str) -> Used | None:
        """Return what a deleted flow had used; None if no flow of that name is known to have been deleted."""
        return self._names.get(name)

    def names(self) -> list[str]:
        """Return the remembered names, oldest first."""
        return list(self._names)

    def snapshot(self) -> RetiredState:
        """Return the state as plain data."""
        return RetiredState(tuple(self._names.items()), self._floor)


def _fenced(used: Used, skipped: int) -> Used:
    return Used(used.batches, used.fences + skipped, used.versions)
