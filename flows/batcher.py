"""The cutting of a flow's items into batches. Pure.

Cuts by items and by size are decided while a log entry is applied, so each node cuts at the same item. A cut by
age needs time to pass without an entry: the leader asks :func:`due` and proposes a seal; the entry decides.
Must not know how items are stored. Read next: :mod:`oncegate.flows.open_segment`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncegate.flows.flow import FlowDeclaration


def is_full(flow: FlowDeclaration, items: int, size_bytes: int) -> bool:
    """Tell whether the open segment, with so many items and bytes, is to be sealed before it takes another item."""
    return items >= flow.max_items or size_bytes >= flow.max_bytes


def has_room(flow: FlowDeclaration, items: int, count: int) -> bool:
    """Tell whether a group of ``count`` items, which no batch may cut, goes into the open segment with its ``items``.

    Otherwise the segment is sealed before. A group larger than ``flow.max_items`` is a batch by itself.
    """
    return not items or items + count <= flow.max_items


def pieces(flow: FlowDeclaration, items: int, count: int) -> list[int]:
    """Split a range of ``count`` items, at least 1, so that no batch exceeds ``flow.max_items``.

    ``items`` are those in the open segment, fewer than ``flow.max_items``. Returns the lengths of the pieces, in order;
    a seal is due after each that fills the segment.
    """
    room = flow.max_items - items
    if count <= room:
        return [count]
    rest = count - room
    full, last = divmod(rest, flow.max_items)
    return [room] + [flow.max_items] * full + ([last] if last else [])


def due_ms(flow: FlowDeclaration, opened_ms: int) -> int:
    """Return the cluster time at which a segment opened at ``opened_ms`` is to be sealed for its age."""
    return opened_ms + flow.linger_ms


def due(flow: FlowDeclaration, opened_ms: int | None, now_ms: int) -> bool:
    """Tell whether a seal for age is due; ``opened_ms``: cluster time of the first open item, None without items."""
    return opened_ms is not None and now_ms >= due_ms(flow, opened_ms)
