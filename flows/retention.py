"""Which batches may be dropped, and who keeps the others. Pure.

A batch goes once the consumers have passed it **and** it need not be kept for those to come: its retention time is
over, in cluster time since its seal, or the batches after it are as large as the flow's ``retention_bytes`` (SEMANTICS,
*Flows*). Size never drops what a consumer has not passed: such batches stay, whatever they weigh.

Where a flow names required consumers, those count; else all that have ever attached; a flow that nobody has read yet
drops nothing, since its writes are acknowledged and delivered nowhere. A consumer that has expired does not count. All
conditions hold for a prefix of the batches, so the answer is one number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from oncegate.flows.batch_log import BatchLog
    from oncegate.flows.cursor import Consumers
    from oncegate.flows.flow import FlowDeclaration

TIME: Final = "(time)"
"""Stands for the retention time among holders; no consumer can have this name."""
NAMED_MAX: Final = 3
"""Consumers that a sentence names."""


def droppable_through(flow: FlowDeclaration, batches: BatchLog, consumers: Consumers, now_ms: int) -> int:
    """Return the newest batch that may be dropped at cluster time ``now_ms``; ``batches.first - 1`` if none may."""
    through = min(consumers.watermark(), _over(flow, batches, now_ms))
    if flow.event_time:
        # Whether an event time was dropped has to be known for ever.
        through = min(through, batches.clocked_through)
    return max(batches.first - 1, through)


def _over(flow: FlowDeclaration, batches: BatchLog, now_ms: int) -> int:
    """Return the newest batch that need not be kept for its own sake."""
    by_time = batches.last_sealed_by(now_ms - flow.retention_ms)
    return max(by_time, batches.before_bytes(flow.retention_bytes)) if flow.retention_bytes else by_time


def held_bytes(flow: FlowDeclaration, batches: BatchLog, consumers: Consumers, now_ms: int) -> dict[str, int]:
    """Return the bytes of the sealed batches that each holder keeps: a consumer that retention waits for, :data:`TIME`.

    Holders overlap: a batch goes when the last of them lets it go.
    """
    held = {one.name: batches.bytes_after(one.cursor) for one in consumers.counting()}
    return {**held, TIME: batches.bytes_after(_over(flow, batches, now_ms))}


def why_held(flow: FlowDeclaration, batches: BatchLog, consumers: Consumers, now_ms: int) -> str:
    """Say in words what keeps the oldest batch, with names; empty if no batch is kept."""
    if not len(batches):
        return ""
    what = f"batch {batches.first} of flow {flow.name}"
    if consumers.watermark() >= batches.first:
        if flow.event_time and batches.clocked_through < batches.first:
            return f"{what} is kept until its event times are read"
        size = f", or {flow.retention_bytes} bytes follow it" if flow.retention_bytes else ""
        return f"{what} is kept until its retention_ms is over{size}"
    slowest = consumers.slowest()
    if not slowest:
        return f"{what} waits for a consumer: none has attached"
    named = [
        f"{one.name} ({f'cursor {one.cursor}' if one.attached else 'which has never attached'})"
        for one in slowest[:NAMED_MAX]
    ]
    more = f" and {len(slowest) - NAMED_MAX} more" if len(slowest) > NAMED_MAX else ""
    return f"{what} waits for consumer {', '.join(named)}{more}"
