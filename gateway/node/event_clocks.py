"""Reads the event times of sealed batches and has them ordered, at the node that leads.

Owns: which batches are read next, a few at a time, in a worker thread. Decides nothing: the log says what a flow's
clock is. A batch that this node does not have yet, or finds damaged, is left for later. Read next:
:mod:`oncegate.flows.event_clock`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from oncegate.flows.errors import FlowError
from oncegate.flows.event_clock import newest_ms
from oncegate.flows.publisher import Publisher
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine

AT_ONCE: Final = 64
log = logging.getLogger(__name__)


class EventClocks:
    """One a node; event loop's thread.

    Args:
        machine: holds the flows.
        publisher: has their batches.
        propose: orders a command, unless one of that name is under way.
    """

    def __init__(self, machine: Machine, publisher: Publisher, propose: Callable[[str, c.Command], None]) -> None:
        self._machine = machine
        self._publisher = publisher
        self._propose = propose
        self._reading: asyncio.Task[None] | None = None
        self._last = ""

    def look(self) -> None:
        """Begin to read batches whose event times are not in the log, unless that is under way."""
        if self._reading is not None and not self._reading.done():
            return
        due = [
            flow
            for flow in self._machine.flows.all()
            if flow.declaration.event_time and flow.batches.clocked_through < flow.batches.last
        ]
        if not due:
            return
        # By turns: a flow whose batches cannot be read keeps no other from being read.
        flow = min(due, key=lambda one: (one.declaration.name <= self._last, one.declaration.name))
        self._last = flow.declaration.name
        first = flow.batches.clocked_through + 1
        numbers = range(first, min(first + AT_ONCE, flow.batches.last + 1))
        reading = self._read(flow.declaration.name, flow.declaration.event_time, numbers)
        self._reading = asyncio.get_running_loop().create_task(reading)

    async def close(self) -> None:
        """Wait for the read that is under way."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))

    async def _read(self, flow: str, field: str, numbers: range) -> None:
        found = await asyncio.to_thread(self._newest, flow, field, numbers)
        if found:
            self._propose(f"clock of {flow}", c.ClockBatches(flow, field, numbers.start, found))

    def _newest(self, flow: str, field: str, numbers: range) -> list[int]:
        """Return the event times of the first of these batches, up to one that cannot be read; worker thread."""
        found: list[int] = []
        for number in numbers:
            try:
                found.append(newest_ms(self._publisher.get(flow, number), field))
            except (FlowError, OSError) as fault:
                log.debug("event time of batch %d of %s: %s", number, flow, fault)
                break
        return found
