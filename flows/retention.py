"""Which batches may be dropped. Pure.

A batch goes once the consumers have passed it **and** its retention time is over, in cluster time since its seal
(SEMANTICS, *Flows*). Where a flow names required consumers, those count; else all that have ever attached; a flow
that nobody has read yet drops nothing, since its writes are acknowledged and delivered nowhere. Both conditions hold
for a prefix of the batches, so the answer is one number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oncegate.flows.batch_log import BatchLog
    from oncegate.flows.cursor import Consumers
    from oncegate.flows.flow import FlowDeclaration


def droppable_through(flow: FlowDeclaration, batches: BatchLog, consumers: Consumers, now_ms: int) -> int:
    """Return the newest batch that may be dropped at cluster time ``now_ms``; ``batches.first - 1`` if none may."""
    passed = consumers.watermark()
    over = batches.last_sealed_by(now_ms - flow.retention_ms)
    return max(batches.first - 1, min(passed, over))
