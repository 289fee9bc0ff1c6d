"""Feature levels: which commands a cluster may order while its members run different builds.

Owns: what this build knows, and what each command needs. A cluster begins at level 1, the commands of the build in
which levels came; at it, nodes of that build and of this one serve together, in both directions. A command in the log
(:class:`oncegate.gateway.machine.commands.RaiseLevel`) raises the level, once every member can; it never falls. Pure.

A command that came later is named in :data:`NEEDS`: a node refuses to order it below its level, because a member that
does not know it would end at it. A field that a command gets later, and that earlier builds would leave out, makes
another command of it.
"""

from __future__ import annotations

from typing import Final

from oncegate.gateway.machine.commands import (
    DropTable,
    EndRows,
    KeyedMixed,
    KeyedMixed5,
    OperateMixed,
    OperateMixed5,
    OperateRuns,
    SweepTables,
)
from oncegate.rifl.errors import Code, OncegateError

FIRST: Final = 1
"""The level of a cluster that was never raised."""
NEWEST: Final = 5
"""The highest level that this build knows: at 2 the state says its level; 3 brought transactions and rows that end; at
4 the log has runs of puts in columns, and the state their records; at 5 operations may ask to be done in order, rows
are taken and move at their end, and idempotency keys are forgotten by the bucket, and lie on disk."""
BUCKETS: Final = 5
"""The level from which on idempotency keys are forgotten by the bucket (:mod:`oncegate.rifl.key_buckets`)."""
RUNS: Final = 4
"""The level from which on a leader orders :class:`oncegate.gateway.machine.commands.OperateRuns`."""
NEEDS: Final[dict[type, int]] = {
    OperateMixed: 3,
    KeyedMixed: 3,
    EndRows: 3,
    DropTable: 3,
    SweepTables: 3,
    OperateRuns: RUNS,
    OperateMixed5: 5,
    KeyedMixed5: 5,
}
"""The level from which on a command may be ordered, by its class; :data:`FIRST` for those that are not here."""


def check_level(command: object, level: int, *, founded: bool = True) -> None:
    """Refuse a command that some members may not know yet.

    Raises:
        OncegateError: CONFLICT, or NOT_READY where the cluster is about to get its level; nothing was proposed.
    """
    needed = NEEDS.get(type(command), FIRST)
    if needed > level:
        if not founded:
            raise OncegateError(Code.NOT_READY, "the cluster is being founded", retry_after_ms=50)
        detail = f"this needs feature level {needed}, the cluster is at {level}: upgrade every node, then raise it"
        raise OncegateError(Code.CONFLICT, detail)
