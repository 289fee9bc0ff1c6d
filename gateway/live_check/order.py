"""What must hold of the sampled operations on one row, in the order of their commit numbers.

Owns: the check of a sub-history: between any two operations there may be others that were not seen. Pure; one step an
operation, no search, because commit numbers are the order. Read docs/decisions/0013-live-check.md first.

:class:`oncegate.proof.lincheck.row.RowModel` says what an operation does to a row. If its step says that an operation
cannot come next, an unseen operation may explain it: if there is a commit number for it, and if it does not contradict
the version that was told. Only what nothing can explain is an anomaly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, Final

from oncegate.gateway.answer_values import built
from oncegate.gateway.live_check.recorder import READ, Seen
from oncegate.gateway.machine import commands as c
from oncegate.proof.lincheck import ILLEGAL, Operation
from oncegate.proof.lincheck.history import freeze
from oncegate.proof.lincheck.row import RowModel

_ROW: Final = RowModel()
_ABSENT: Final[Hashable] = _ROW.initial()[2]  # type: ignore[index]
_UNTOLD: Final[Hashable] = ("untold",)
UNKNOWN_VERSION: Final = -1
ITEMS_MAX: Final = 256
"""Of a list or object whose content is followed; of a larger one only versions are."""


class RowOrder:
    """One row on its way through its operations.

    Attributes:
        at: commit number of the newest operation.
        version: of the row as of then; 0 if there was none, ``UNKNOWN_VERSION`` before anything is known.
        newest: the newest version that the row ever had, as far as was seen.
    """

    __slots__ = ("_value", "at", "newest", "version")

    def __init__(self) -> None:
        self.at = 0
        self.version = UNKNOWN_VERSION
        self.newest = 0
        self._value: Hashable = _UNTOLD

    def step(self, seen: Seen, *, unseen: bool = True) -> str | None:
        """Take the next operation, in the order of :func:`in_order`.

        Args:
            seen: the operation; it is skipped if a later one was taken before.
            unseen: other operations may have been applied that are not among those given.

        Returns:
            None, or a sentence about what is wrong.
        """
        if seen.commit < self.at or (seen.commit == self.at and seen.logged):
            return None
        told = _told(seen)
        wrong = self._wrong_version(seen, told)
        known = wrong is None and self.version != UNKNOWN_VERSION
        contradicts = known and told not in (None, self.version)
        after: tuple[int, Hashable] | None = None
        if known and self._value is not _UNTOLD and _is_whole(seen):
            stepped = _ROW.step(
                (self.newest if self.version == 0 else self.version, True, self._value), _operation(seen)
            )
            if stepped is not ILLEGAL:
                after = seen.commit if seen.writes else self.version, stepped[2]  # type: ignore[index]
                if seen.what == "append" and seen.writes and unseen and self._has_room(seen):
                    after = seen.commit, _UNTOLD  # its effect alone depends on the row before and is not told
            contradicts = stepped is ILLEGAL
        if contradicts and not self._explained(seen, told, unseen=unseen):
            there = "no row" if self.version == 0 else f"version {self.version}"
            wrong = f"does not follow from what was there at commit {self.at}: {there}"
        self._go_on(seen, told, after)
        return None if wrong is None else f"row {seen.row}: {_words(seen)} {wrong}"

    def _wrong_version(self, seen: Seen, told: int | None) -> str | None:
        if told is None:
            return None
        if told > seen.commit - seen.logged:
            return f"was told version {told}, which did not exist yet"
        if 0 < told < self.newest:
            return f"was told version {told}, although version {self.newest} was there before"
        return None

    def _explained(self, seen: Seen, told: int | None, *, unseen: bool) -> bool:
        """Tell whether unseen operations can lie between, and lead to the answer that was told."""
        return unseen and self._has_room(seen) and (told is None or told == 0 or told > self.at)

    def _has_room(self, seen: Seen) -> bool:
        """Tell whether there is a commit number between: a read stands behind that of its own, others have one."""
        return seen.commit - seen.logged > self.at

    def _go_on(self, seen: Seen, told: int | None, after: tuple[int, Hashable] | None) -> None:
        self.at = seen.commit
        if after is None:
            after = _left(seen, told, self.version if told == self.version else UNKNOWN_VERSION, self._value)
        version, self._value = after
        if isinstance(self._value, tuple) and len(self._value) > ITEMS_MAX:
            self._value = _UNTOLD
        self.version = 0 if self._value == _ABSENT else version
        self.newest = max(self.newest, self.version, seen.commit if seen.writes else 0)


def in_order(seen: Iterable[Seen]) -> list[Seen]:
    """Return operations in the order of their commit numbers, reads after the write whose number they tell."""
    return sorted(seen, key=lambda one: (one.commit, not one.logged))


class Requests:
    """Checks, for the newest requests, that each request has one commit number and each commit number one request.

    Args:
        size_max: requests that are remembered.
    """

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._commits: dict[str, int] = {}
        self._requests: dict[int, str] = {}

    def add(self, seen: Seen) -> str | None:
        """Return a sentence about what is wrong, or None."""
        if not seen.logged:
            return None
        commit = self._commits.setdefault(seen.request, seen.commit)
        if commit != seen.commit:
            return f"row {seen.row}: request {seen.request} was executed twice, at commits {commit} and {seen.commit}"
        request = self._requests.setdefault(seen.commit, seen.request)
        if request != seen.request:
            return f"row {seen.row}: commit {seen.commit} was given to two requests, {request} and {seen.request}"
        if len(self._commits) > self._size_max:
            oldest = next(iter(self._commits))
            self._requests.pop(self._commits.pop(oldest), None)
        return None


def before_asked(seen: Seen) -> str | None:
    """Return what is wrong if the operation's place is before an answer that was given before it was asked for."""
    if seen.replayed or seen.commit - seen.logged >= seen.floor:
        return None
    return (
        f"row {seen.row}: {_words(seen)} came after an answer with commit {seen.floor} from the same node: "
        f"it is older than what was known"
    )


def _told(seen: Seen) -> int | None:
    """Return the version that the row had before the operation, if its answer tells."""
    if seen.what in (READ, "get") or seen.refusal:
        return seen.version
    if seen.test == c.Test.VERSION and isinstance(seen.operand, int):
        return seen.operand
    return 0 if seen.test == c.Test.ABSENT else None


def _left(seen: Seen, told: int | None, known: int, value: Hashable) -> tuple[int, Hashable]:
    """Return (version, value) of the row after an operation of which the row before is not known."""
    if not seen.writes:
        if told == 0:
            return 0, _ABSENT
        if seen.value is not None:
            return seen.version, freeze(built(seen.value))
        return seen.version, value if known == seen.version else _UNTOLD
    if seen.what == "delete":
        return 0, _ABSENT
    text = seen.argument if seen.what == "put" else seen.value
    return seen.commit, _UNTOLD if text is None else freeze(built(text))


def _is_whole(seen: Seen) -> bool:
    """Tell whether the value that it wrote is known."""
    return seen.argument is not None or not seen.writes or seen.what not in ("put", "append")


def _operation(seen: Seen) -> Operation:
    """Return the operation as :class:`oncegate.proof.lincheck.row.RowModel` takes it."""
    argument: dict[str, Any] = {}
    if seen.what == "put":
        argument["value"] = None if seen.argument is None else built(seen.argument)
    elif seen.what == "append":
        argument["item"] = None if seen.argument is None else built(seen.argument)
    elif seen.what == "increment":
        argument["by"] = seen.by
    if seen.test == c.Test.ABSENT:
        argument["if"] = {"absent": True}
    elif seen.test == c.Test.VERSION:
        argument["if"] = {"version": seen.operand}
    elif seen.test == c.Test.VALUE and isinstance(seen.operand, bytes):
        argument["if"] = {"value": built(seen.operand)}
    result: dict[str, Any] = {"version": seen.version}
    if seen.value is not None:
        result["value"] = built(seen.value)
    if seen.refusal:
        # The model has no condition "the row exists"; a refusal that tells of a row is enough.
        judged = seen.refusal == "CONDITION_FAILED" and "if" in argument
        result["refused"] = seen.refusal if judged else "other"
    name = "get" if seen.what == READ else seen.what
    return Operation(0, 0, name, seen.key, argument, result, "ok", 0, 0)


def _words(seen: Seen) -> str:
    who = f" {seen.request}" if seen.request else ""
    return f"{seen.what}{who} at commit {seen.commit}"
