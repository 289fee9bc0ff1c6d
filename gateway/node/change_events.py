"""Changes as watches are told them: each encoded once, for all who are told it.

Owns: the form of ``changes`` events, and the encoded changes that are kept. Which changes a watch is told:
:mod:`oncegate.gateway.node.watching`. Pure.

What is kept is the object of one change, without the event around it: a watch of a prefix may be told a part of a
transaction that a watch of the table is told whole, and both take the same bytes for each change.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.answer_values import encoding_of
from oncegate.gateway.machine.rows import RowChange

PIECE_BYTES_MAX: Final = 32 * 1024
"""Of events that are made at once; the last of them may exceed it."""
KEPT_BYTES: Final = 150
"""What an encoded change costs beside its text: an object, and its place among the others."""
_UNTIL: Final = itemgetter(1)


def event(name: str, commit: int, data: bytes) -> bytes:
    """Return an event whose reader resumes at ``commit``."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (commit, name.encode(), data)


def encoded(change: RowChange) -> bytes:
    """Return one change as JSON."""
    commit, _, _, key, _, after, cause = change
    if after is None:
        return msgspec.json.encode(wire.ChangedRow(key, commit, deleted=True, cause=cause))
    value = msgspec.Raw(after.value)
    return msgspec.json.encode(
        wire.ChangedRow(key, commit, value=value, cause=cause, encoding=encoding_of(after.value))
    )


class ChangeEvents:
    """Makes events of changes, and keeps what it has encoded.

    Args:
        bytes_max: memory of the encoded changes; those that were encoded first go first.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[int, bytes] = {}
        """By commit number, in the order in which they were encoded."""
        self.bytes = 0
        """Memory of what is kept, roughly."""

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()
        self.bytes = 0

    def of(self, changes: Iterable[RowChange], reached: int) -> tuple[bytes, int]:
        """Return the events for some changes, and the commit number from which to go on.

        Args:
            changes: in commit order; no more of them are looked at than are told.
            reached: commit number up to which there are no others.

        Returns:
            The events, one for all that took effect together; and ``reached``, or less if these are about
            ``PIECE_BYTES_MAX`` and more follows.
        """
        made, size, last = list[bytes](), 0, 0
        for until, together in groupby(changes, _UNTIL):
            if size >= PIECE_BYTES_MAX:
                return b"".join(made), last
            rows = b",".join([self._encoded(change) for change in together])
            made.append(event("changes", until, b'{"commit":%d,"changes":[%s]}' % (until, rows)))
            size += len(made[-1])
            last = until
        return b"".join(made), reached

    def _encoded(self, change: RowChange) -> bytes:
        text = self._kept.get(change[0])
        if text is None:
            text = encoded(change)
            if len(text) + KEPT_BYTES <= self._bytes_max:
                self._kept[change[0]] = text
                self.bytes += len(text) + KEPT_BYTES
                while self.bytes > self._bytes_max:
                    self.bytes -= len(self._kept.pop(next(iter(self._kept)))) + KEPT_BYTES
        return text


def progress(commit: int) -> bytes:
    """Return the event that says that nothing is left up to ``commit``."""
    data: Any = wire.WatchProgress(commit)
    return event("progress", commit, msgspec.json.encode(data))
