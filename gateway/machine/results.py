"""What the machine says of each command; how it travels is :mod:`oncegate.gateway.answers`'s."""

from __future__ import annotations

from typing import NamedTuple

from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.range_rule import RangePart
from oncegate.rifl.resolve_rule import Resolution

OpVerdict = tuple[int, Code | None, CompletionRecord | None, bool]
"""Verdict on one operation: sequence number, a refusal's code or None, the record to answer from, replayed?

A refusal is replayed where it comes from a record: the id was sealed.
"""


class Operated(NamedTuple):
    """Result of ``Operate`` and ``Keyed``: a verdict per operation, in request order."""

    verdicts: list[OpVerdict]
    memory_ms: int
    keyed: bool = False


class Ranged(NamedTuple):
    """Result of ``Range``: disjoint parts that cover it, each applied, replayed or refused."""

    parts: list[RangePart]
    memory_ms: int


class Resolved(NamedTuple):
    """Result of ``Resolve``; no memory where there is no session."""

    resolution: Resolution
    memory_ms: int | None


class SessionAnswer(NamedTuple):
    """Result of a session command."""

    client_id: int
    epoch: int
    lease_ms: int
    window: int
    left_ms: int
    existed: bool
    first_incomplete: int
    highest: int
