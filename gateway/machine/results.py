"""Results of the machine's commands. :mod:`oncegate.gateway.answers` says how they travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from oncegate.rifl.ids import ClientId, CommitNumber, Epoch, SequenceNumber
from oncegate.rifl.range_rule import RefusedPart, ReplayPart
from oncegate.rifl.resolve_rule import ResolveVerdict
from oncegate.rifl.rule import OpVerdict


class AppliedPart(msgspec.Struct, frozen=True, gc=False):
    """Operations ``first``..``last`` were executed in this entry; ``commit`` is that of the first."""

    first: SequenceNumber
    last: SequenceNumber
    commit: CommitNumber


class Operated(msgspec.Struct, frozen=True, gc=False):
    """Result of ``Operate`` and ``Keyed``: a verdict per operation, or per run of them, in request order."""

    verdicts: Sequence[OpVerdict | AppliedPart]
    memory_ms: int
    keyed: bool = False


PartVerdict = AppliedPart | ReplayPart | RefusedPart
"""Verdict on a part of a range."""


class Ranged(NamedTuple):
    """Result of ``Range``: disjoint parts that cover it."""

    parts: list[PartVerdict]
    memory_ms: int


class Cascaded(NamedTuple):
    """Result of ``Cascade``: the cursor, and the first commit number of the part's ``operations``.

    ``commit`` is 0 where the part had no operation, or its batch was finished so long ago that nobody remembers.
    """

    cursor: int
    commit: int
    operations: int
    replayed: bool


class Ended(NamedTuple):
    """A row that has ended: its time was over, or its session, ``owner``, has ended.

    ``then``: where it was moved, under the commit number behind ``commit``; empty for a row that was deleted.
    """

    table: str
    key: str
    commit: CommitNumber
    owner: int
    then: str = ""

    @property
    def commits(self) -> int:
        """How many commit numbers its end has taken."""
        return 2 if self.then else 1


class Endings(NamedTuple):
    """Result of ``EndRows``, and of what ends sessions: the rows that ended, in order, and how many sessions."""

    rows: list[Ended]
    sessions: int = 0


class Dropped(NamedTuple):
    """Result of ``DropTable``."""

    table: str
    incarnation: int


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
