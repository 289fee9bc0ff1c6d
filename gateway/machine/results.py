"""Results of the machine's commands. :mod:`oncegate.gateway.answers` says how they travel."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from oncegate.rifl.ids import ClientId, CommitNumber, Epoch, SequenceNumber
from oncegate.rifl.range_rule import RefusedPart, ReplayPart
from oncegate.rifl.resolve_rule import ResolveVerdict
from oncegate.rifl.rule import OpVerdict


class Operated(NamedTuple):
    """Result of ``Operate`` and ``Keyed``: a verdict per operation, in request order."""

    verdicts: list[OpVerdict]
    memory_ms: int
    keyed: bool = False


class AppliedPart(msgspec.Struct, frozen=True, gc=False):
    """Operations ``first``..``last`` were executed in this entry; ``commit`` is that of the first."""

    first: SequenceNumber
    last: SequenceNumber
    commit: CommitNumber


PartVerdict = AppliedPart | ReplayPart | RefusedPart
"""Verdict on a part of a range."""


class Ranged(NamedTuple):
    """Result of ``Range``: disjoint parts that cover it."""

    parts: list[PartVerdict]
    memory_ms: int


class Resolved(NamedTuple):
    """Result of ``Resolve``; no memory where there is no session."""

    resolution: ResolveVerdict
    memory_ms: int | None


class SessionAnswer(NamedTuple):
    """Result of a session command."""

    client_id: ClientId
    epoch: Epoch
    lease_ms: int
    window: int
    memory_ms: int
    existed: bool
    first_incomplete: SequenceNumber
    highest: SequenceNumber
