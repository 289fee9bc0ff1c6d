"""Commands of flows and their consumers (:mod:`oncegate.gateway.machine.commands`).

Owns: what they carry and mean. Those that change a flow which is there carry the version that whoever sends them has
seen, and are refused with CONFLICT when it is another by now; sent again, they change nothing and get the same answer.
Read next: :mod:`oncegate.gateway.machine.flow_handlers`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Start = Literal["beginning", "now", "cursor", "batch", "time", "ago", "event"]
"""Where a consumer starts: the oldest retained batch; what is sealed from now on; where its cursor stands; a batch's
number; what was applied since a cluster time; what was applied in so many milliseconds before now; where the flow's
event-time clock reached a time."""


class DeclareFlow(msgspec.Struct, frozen=True, array_like=True, tag="fd"):
    """Declare a flow; ``declaration`` is the JSON of ``oncegate.flows.flow.FlowDeclaration``."""

    declaration: bytes


class Seal(msgspec.Struct, frozen=True, array_like=True, tag="fs"):
    """Close the open segment of a flow as batch ``number``, if that is still the next one."""

    flow: str
    number: int


class ClockBatches(msgspec.Struct, frozen=True, array_like=True, tag="fc"):
    """Record the newest event times of a flow's batches from ``first`` on, read from their member ``field``."""

    flow: str
    field: str
    first: int
    newest_ms: list[int]


class Attach(msgspec.Struct, frozen=True, array_like=True, tag="ca"):
    """Attach an instance of a consumer; fences the older instances."""

    flow: str
    consumer: str
    nonce: str


class MoveCursor(msgspec.Struct, frozen=True, array_like=True, tag="cm"):
    """Say that a consumer has finished everything up to ``batch``."""

    flow: str
    consumer: str
    batch: int
    fence: int
    replay: bool


class AlterFlow(msgspec.Struct, frozen=True, array_like=True, tag="fa"):
    """Change a flow; ``changes`` is a JSON object of those fields of its declaration that change."""

    flow: str
    version: int
    changes: bytes


class DeleteFlow(msgspec.Struct, frozen=True, array_like=True, tag="fx"):
    """Delete a flow with its batches; ``force``: although consumers have attached."""

    flow: str
    version: int
    force: bool


class StartConsumer(msgspec.Struct, frozen=True, array_like=True, tag="cb"):
    """Attach to a consumer, and begin where ``start`` says; ``number``: of the batch or of milliseconds."""

    flow: str
    consumer: str
    nonce: str
    start: Start
    number: int = 0


class RemoveConsumer(msgspec.Struct, frozen=True, array_like=True, tag="cr"):
    """Remove a consumer, also from those that the declaration requires; its job is fenced."""

    flow: str
    consumer: str
    version: int


class ExpireConsumers(msgspec.Struct, frozen=True, array_like=True, tag="ce"):
    """Stop waiting for required consumers that have never moved in ``consumer_expiry_ms``; checked when applied."""

    flow: str
