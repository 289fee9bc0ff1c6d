"""Flows that may leave items out when their consumers are far behind: how much, and which. Pure, deterministic.

Owns: the rule. A flow that declares ``shed_lag_bytes`` keeps every item while its consumers have less than that to
read, half of the items from there on, a quarter from twice as much, an eighth from four times as much, down to one of
``2 ** LEVEL_MAX``. Which item is kept follows from its key and commit number, so all replicas keep the same ones. A
range is kept or left out whole, by its first commit number, since nobody looks into it; so are a transaction's writes
on the flow's table. What is left out is counted. A flow that declares nothing sheds nothing, and no write is lost: its
row is there, only this flow's readers miss it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from oncegate.flows.open_segment import GroupItem, OpenSegment, OpenSegmentState

if TYPE_CHECKING:
    from oncegate.flows.flow import FlowDeclaration

LEVEL_MAX: Final = 10


def level(flow: FlowDeclaration, unread_bytes: int) -> int:
    """Return how often the share of items that a flow keeps is halved: 0 = it keeps all."""
    if not flow.shed_lag_bytes:
        return 0
    return min(LEVEL_MAX, (unread_bytes // flow.shed_lag_bytes).bit_length())


def keeps(level: int, key: str, commit: int) -> bool:
    """Tell whether an item is kept at a level."""
    return not zlib.crc32(b"%d" % commit, zlib.crc32(key.encode())) & ((1 << level) - 1)


class SheddingSegment(OpenSegment):
    """The open segment of a flow that may shed; another class, so that all others pay nothing for it.

    Attributes:
        level: as :func:`level`; whoever holds the flow keeps it up.
        shed_items: left out so far.
    """

    __slots__ = ("_left_out", "level", "shed_items")

    def __init__(self, flow: str, table: str) -> None:
        super().__init__(flow, table)
        self.level = 0
        self.shed_items = 0
        self._left_out = False

    def append_one(
        self, commit: int, key: str, value: bytes | None, time_ms: int, client_id: int, sequence: int
    ) -> None:
        """Add one write, or leave it out."""
        self._left_out = self.level > 0 and not keeps(self.level, key, commit)
        if self._left_out:
            self.shed_items += 1
        else:
            super().append_one(commit, key, value, time_ms, client_id, sequence)

    def trace_last(self, traceparent: str) -> None:
        """Add the trace context of the write just added, unless it was left out."""
        if not self._left_out:
            super().trace_last(traceparent)

    def append_group(
        self, items: Sequence[GroupItem], time_ms: int, client_id: int, sequence: int, traceparent: str
    ) -> None:
        """Add the writes of one transaction, or leave all of them out, as a range."""
        if not self.leaves_out(items[0].commit, len(items)):
            super().append_group(items, time_ms, client_id, sequence, traceparent)

    def leaves_out(self, first_commit: int, count: int) -> bool:
        """Tell whether a range or a transaction is left out, and count it; to be asked once, before it is added."""
        if not self.level or keeps(self.level, "", first_commit):
            return False
        self.shed_items += count
        return True


def segment_of(flow: FlowDeclaration, state: OpenSegmentState | None = None, shed_items: int = 0) -> OpenSegment:
    """Return the open segment for a declaration, with the items of ``state``.

    A flow that has shed keeps the count, also when it sheds no more.
    """
    kind = SheddingSegment if flow.shed_lag_bytes or shed_items else OpenSegment
    segment = kind(flow.name, flow.source) if state is None else kind.restore(state)
    if isinstance(segment, SheddingSegment):
        segment.shed_items = shed_items
    return segment
