"""Feature levels: which commands a cluster may order while its members run different builds.

Owns: what this build knows, and what each command needs. A cluster begins at level 1, the commands of the
first build of these formats (docs/decisions/0072-formats-begin-anew.md). A command in the log
(:class:`oncegate.gateway.machine.commands.RaiseLevel`) raises the level, once every member can; it never falls. Pure.

A command that came later is named in :data:`NEEDS`: a node refuses to order it below its level, because a member that
does not know it would end at it. A field that a command gets later, and that earlier builds would leave out, makes
another command of it.
"""

from __future__ import annotations

from typing import Final

from oncegate.rifl.errors import Code, OncegateError

FIRST: Final = 1
"""The level of a cluster that was never raised."""
NEWEST: Final = 1
"""The highest level that this build knows."""
NEEDS: Final[dict[type, int]] = {}
"""The level from which on a command may be ordered, by its class; :data:`FIRST` for those that are not here."""


LAST_BEFORE: Final = "726b833"
"""The last commit that reads what was written before formats began anew (docs/decisions/0072-formats-begin-anew.md)."""


def too_old(what: str) -> str:
    """Say what to do about data of before."""
    return f"{what} was written before 0.1.0, and commit {LAST_BEFORE} is the last that reads it: export it with that"


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
