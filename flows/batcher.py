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
    """Tell whether the open segment is to be sealed before it takes another item.

    Args:
        flow: the declaration with the bounds.
        items: number of items in the open segment.
        size_bytes: size of the open segment as :class:`oncegate.flows.open_segment.OpenSegment` counts it.
    """
    return items >= flow.max_items or size_bytes >= flow.max_bytes


def pieces(flow: FlowDeclaration, items: int, count: int) -> list[int]:
    """Split a range so that no batch exceeds ``flow.max_items``.

    Args:
        flow: the declaration with the bound.
        items: items in the open segment, less than ``flow.max_items``.
        count: items of the range, at least 1.

    Returns:
        Lengths of the pieces, in order, summing to ``count``; a seal is due after each that fills the segment.
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
    """Tell whether a seal for age is due.

    Args:
        flow: the declaration with ``linger_ms``.
        opened_ms: cluster time of the first item of the open segment, None if it is empty.
        now_ms: cluster time.
    """
    return opened_ms is not None and now_ms >= due_ms(flow, opened_ms)
