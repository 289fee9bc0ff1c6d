"""How a command runs a call of the SDK, and with which code it exits.

| code | |
|---|---|
| 0 | done |
| 1 | the cluster refuses it, for a reason that has no code of its own; it was not applied |
| 2 | misuse: an argument, a value, a size; nothing was sent, or it was refused as malformed |
| 3 | no node could be reached that serves it; it was not applied |
| 4 | there is no such row, or no such table |
| 5 | a condition failed, of the write or of its table: it was not applied, and the same write later is another one |
| 6 | a write's outcome is unknown: it may have been applied; again with the same idempotency key it is done once |
| 130 | Ctrl-C |

The SDK and asyncio are imported when a command runs: the other commands do not pay for them.
"""

from __future__ import annotations

import shlex
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import typer

from oncegate.gateway.cli.output import failed
from oncegate.rifl.errors import Code, OncegateError, Outcome

REFUSED: Final = 1
MISUSE: Final = 2
UNREACHED: Final = 3
NOT_FOUND: Final = 4
CONDITION_FAILED: Final = 5
UNKNOWN: Final = 6
STOPPED: Final = 130
_CODES: Final = {
    Code.BAD_REQUEST: MISUSE,
    Code.PAYLOAD_TOO_LARGE: MISUSE,
    Code.NOT_FOUND: NOT_FOUND,
    Code.STALE: UNKNOWN,
    Code.SESSION_EXPIRED: UNKNOWN,
    Code.TIMEOUT: UNREACHED,
    Code.NOT_READY: UNREACHED,
    Code.NO_LEADER: UNREACHED,
    Code.NOT_LEADER: UNREACHED,
}
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], *, key: str | None = None, table: str | None = None) -> T:
    """Run a call and return its result; an error ends the command with a line on stderr and its code.

    Args:
        work: the call, which opens its client itself.
        key: of a write: its idempotency key, with which whoever reads of a doubt can end it.
        table: of a call on one table: its name; the line says how to declare it if the cluster has none.
    """
    import asyncio

    try:
        return asyncio.run(work)
    except OncegateError as fault:
        said = f"{fault.code}: {fault.detail or fault.title}"
        if key is not None and fault.outcome is Outcome.UNKNOWN:
            raise in_doubt(said, key) from None
        if table is not None and fault.code is Code.NOT_FOUND:
            said += f"; `oncegate table declare {shlex.quote(table)}` declares it"
        raise failed(said, _CODES.get(fault.code, REFUSED)) from None
    except KeyboardInterrupt:
        if key is not None:
            raise in_doubt("stopped", key) from None
        raise typer.Exit(STOPPED) from None


def in_doubt(said: str, key: str) -> typer.Exit:
    """Say that a write may have been applied and how to end the doubt; return the exit."""
    way_out = f"the same command with --idempotency-key {key} tells, and does it if it was not"
    return failed(f"{said}; the outcome is unknown: {way_out}", UNKNOWN)
