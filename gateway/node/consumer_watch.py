"""Looks at a node's consumers every few seconds: how they keep up, which hold what should be gone, which have expired.

Owns: the samples behind a trend, and the log lines that name who holds a flow. It decides nothing: a consumer expires
by a log entry. Read next: :mod:`oncegate.flows.lag_trend`, :mod:`oncegate.flows.retention`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from oncegate.flows import retention
from oncegate.flows.lag_trend import SAMPLE_MS, LagTrends, Sample
from oncegate.gateway import wire
from oncegate.gateway.answers import flow_state
from oncegate.gateway.machine.flow_handlers import overdue_consumers
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine

OVER_MS: Final = 600_000
"""A batch that somebody holds for so long beyond its retention time is worth a line."""
FULL_SHARE: Final = 0.8
"""So is a stream table of which a flow holds this share of the quota."""
REPEAT_MS: Final = 3_600_000
log = logging.getLogger(__name__)


class ConsumerWatch:
    """The consumers of all flows as one node sees them; event loop's thread.

    Args:
        machine: holds the flows.
        now_ms: cluster time, as exactly as the node knows it.
    """

    def __init__(self, machine: Machine, now_ms: Callable[[], int]) -> None:
        self._machine = machine
        self._now_ms = now_ms
        self._trends = LagTrends()
        self._looked_ms = -SAMPLE_MS
        self._warned: dict[str, tuple[tuple[str, ...], int]] = {}

    def state(self, flow: str) -> wire.FlowState:
        """Describe a flow with the trend of its consumers; raises NOT_FOUND."""
        state, at_ms = flow_state(self._machine, flow, self._now_ms()), self._at_ms()
        for name, one in state.consumers.items():
            now = Sample(at_ms, one.cursor, one.lag_items)
            one.trend = self._trends.verdict(flow, name, now, attached=one.attached)
        return state

    def held_bytes(self) -> dict[tuple[str, ...], float]:
        """Return the bytes that each holder keeps, by flow and holder."""
        now_ms = self._now_ms()
        return {
            (flow.declaration.name, holder): held
            for flow in self._machine.flows.all()
            for holder, held in retention.held_bytes(flow.declaration, flow.batches, flow.consumers, now_ms).items()
        }

    def look(self, *, leads: bool) -> str | None:
        """Take samples when it is time. Where this node ``leads``, also warn of who holds batches.

        Returns:
            A flow with consumers that are to expire, one at a time; None if there is none or this node does not lead.
        """
        at_ms = self._at_ms()
        if at_ms - self._looked_ms < SAMPLE_MS:
            return None
        self._looked_ms = at_ms
        known: set[tuple[str, str]] = set()
        for flow in self._machine.flows.all():
            name = flow.declaration.name
            for one in flow.consumers.all():
                known.add((name, one.name))
                sample = Sample(at_ms, one.cursor, flow.batches.items_after(one.cursor))
                self._trends.add(name, one.name, sample)
        self._trends.keep(known)
        return self._led(at_ms) if leads else None

    def _led(self, at_ms: int) -> str | None:
        now_ms = self._now_ms()
        flows = list(self._machine.flows.all())
        self._warned = {one.declaration.name: w for one in flows if (w := self._warned.get(one.declaration.name))}
        for flow in flows:
            self._warn(flow, now_ms, at_ms)
        for flow in flows:
            if names := overdue_consumers(self._machine, flow, now_ms):
                log.warning(
                    "flow %s: no batch waits any longer for consumer %s, which has never moved in %d ms",
                    flow.declaration.name,
                    ", ".join(names),
                    flow.declaration.consumer_expiry_ms,
                )
                return flow.declaration.name
        return None

    def _warn(self, flow: Flow, now_ms: int, at_ms: int) -> None:
        declaration, batches = flow.declaration, flow.batches
        table = self._machine.tables[declaration.source]
        held = flow.retained_bytes + flow.segment.size_bytes
        over = batches.last_sealed_by(now_ms - declaration.retention_ms - OVER_MS)
        waits = over >= batches.first and flow.consumers.watermark() < batches.first
        fills = table.kind == "stream" and held >= FULL_SHARE * table.quota_bytes
        if not waits and not fills:
            self._warned.pop(declaration.name, None)
            return
        holders = tuple(one.name for one in flow.consumers.slowest())
        before = self._warned.get(declaration.name)
        if before is not None and before[0] == holders and at_ms - before[1] < REPEAT_MS:
            return
        self._warned[declaration.name] = holders, at_ms
        why = retention.why_held(declaration, batches, flow.consumers, now_ms) or "none of it is sealed"
        share = f", {100 * held // table.quota_bytes} % of the quota of table {table.name}" if fills else ""
        log.warning("flow %s holds %d bytes%s: %s", declaration.name, held, share, why)

    def _at_ms(self) -> int:
        return int(time.monotonic() * 1000)
