"""Commands of flows and their consumers (:mod:`oncegate.gateway.machine.commands`).

Owns: what they carry and mean. Those that change a flow which is there carry the version that whoever sends them has
seen, and are refused with CONFLICT when it is another by now; sent again, they change nothing and get the same answer.
Read next: :mod:`oncegate.gateway.machine.flow_changes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from oncegate.gateway.machine import flow_changes
from oncegate.gateway.machine.flow_state import declaration_of

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine

Start = Literal["beginning", "now", "cursor", "batch", "time", "ago", "event"]
"""Where a consumer starts: the oldest retained batch; what is sealed from now on; where its cursor stands; a batch's
number; what was applied since a cluster time; what was applied in so many milliseconds before now; where the flow's
event-time clock reached a time."""


class DeclareFlow(msgspec.Struct, frozen=True, array_like=True, tag="fd"):
    """Declare a flow; ``declaration`` is the JSON of ``oncegate.flows.flow.FlowDeclaration``."""

    declaration: bytes

    def apply(self, machine: Machine) -> str:
        """Return the flow's name."""
        return machine.flows.declare(declaration_of(self.declaration), machine.tables, machine.time_ms)


class Seal(msgspec.Struct, frozen=True, array_like=True, tag="fs"):
    """Close the open segment of a flow as batch ``number``, if that is still the next one."""

    flow: str
    number: int

    def apply(self, machine: Machine) -> int:
        """Return the number of the newest batch."""
        return machine.flows.seal(self.flow, self.number, machine.time_ms)


class ClockBatches(msgspec.Struct, frozen=True, array_like=True, tag="fc"):
    """Record the newest event times of a flow's batches from ``first`` on, read from their member ``field``."""

    flow: str
    field: str
    first: int
    newest_ms: list[int]

    def apply(self, machine: Machine) -> int:
        """Return the newest batch of which the event time is known."""
        return machine.flows.clock(self.flow, self.field, self.first, self.newest_ms, machine.time_ms)


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="ca"):
    """Attach an instance of a consumer; fences the older instances."""

    flow: str
    consumer: str
    nonce: str

    def apply(self, machine: Machine) -> tuple[int, int]:
        """Return (fence, cursor)."""
        return machine.flows.attach(self.flow, self.consumer, self.nonce, machine.time_ms)


class MoveCursor(msgspec.Struct, frozen=True, array_like=True, tag="cm"):
    """Say that a consumer has finished everything up to ``batch``."""

    flow: str
    consumer: str
    batch: int
    fence: int
    replay: bool

    def apply(self, machine: Machine) -> int:
        """Return the cursor."""
        return machine.flows.move(
            self.flow, self.consumer, self.batch, self.fence, replay=self.replay, now_ms=machine.time_ms
        )


class AlterFlow(msgspec.Struct, frozen=True, array_like=True, tag="fa"):
    """Change a flow; ``changes`` is a JSON object of those fields of its declaration that change."""

    flow: str
    version: int
    changes: bytes

    def apply(self, machine: Machine) -> str:
        """Return the flow's name."""
        return flow_changes.alter(machine, self.flow, self.version, self.changes)


class DeleteFlow(msgspec.Struct, frozen=True, array_like=True, tag="fx"):
    """Delete a flow with its batches; ``force``: although consumers have attached."""

    flow: str
    version: int
    force: bool

    def apply(self, machine: Machine) -> int:
        """Return the number of the last batch it ever had."""
        return flow_changes.delete(machine, self.flow, self.version, force=self.force)


class StartConsumer(msgspec.Struct, frozen=True, array_like=True, tag="cb"):
    """Attach to a consumer, and begin where ``start`` says; ``number``: of the batch or of milliseconds."""

    flow: str
    consumer: str
    nonce: str
    start: Start
    number: int = 0

    def apply(self, machine: Machine) -> tuple[int, int]:
        """Return (fence, cursor)."""
        return flow_changes.start(machine, self.flow, self.consumer, self.nonce, self.start, self.number)


class RemoveConsumer(msgspec.Struct, frozen=True, array_like=True, tag="cr"):
    """Remove a consumer, also from those that the declaration requires; its job is fenced."""

    flow: str
    consumer: str
    version: int

    def apply(self, machine: Machine) -> str:
        """Return the flow's name."""
        return flow_changes.remove_consumer(machine, self.flow, self.consumer, self.version)


class ExpireConsumers(msgspec.Struct, frozen=True, array_like=True, tag="ce"):
    """Stop waiting for required consumers that have never moved in ``consumer_expiry_ms``; checked when applied."""

    flow: str

    def apply(self, machine: Machine) -> int:
        """Return how many expired."""
        return flow_changes.expire_consumers(machine, self.flow)
