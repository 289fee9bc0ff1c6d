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

Whoever waits is told why: :data:`TOLD_AFTER_S` after the first failed attempt a line on stderr names the node and the
reason. The SDK and asyncio are imported when a command runs: the other commands do not pay for them.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

import typer

from oncegate.gateway.cli.output import failed, say
from oncegate.rifl.errors import Code, OncegateError, Outcome

REFUSED: Final = 1
MISUSE: Final = 2
UNREACHED: Final = 3
NOT_FOUND: Final = 4
CONDITION_FAILED: Final = 5
UNKNOWN: Final = 6
STOPPED: Final = 130
TOLD_AFTER_S: Final = 2.0
"""How long after its first failed attempt a command says why it has not ended yet."""
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
        return asyncio.run(_telling(work))
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


async def _telling(work: Coroutine[Any, Any, T]) -> T:
    """Do the work; if attempts of it have failed for a while, say on stderr why it takes so long, once."""
    import asyncio

    loop = asyncio.get_running_loop()
    with _LastFailure.noted() as last:
        timer: asyncio.TimerHandle | None = None

        def tell() -> None:
            say(f"oncegate: still trying; {last.why}", err=True)

        def begin() -> None:
            nonlocal timer
            timer = timer or loop.call_later(TOLD_AFTER_S, tell)

        last.when_first = begin
        try:
            return await work
        finally:
            if timer is not None:
                timer.cancel()


class _LastFailure(logging.Filter):
    """Takes from the SDK's log why its last attempt failed; what is shown of the log stays as it was."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._level = level
        self.why = ""
        self.when_first: Callable[[], None] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        """Note a failed attempt."""
        if record.levelno == logging.DEBUG and isinstance(record.args, tuple) and len(record.args) == 2:
            self.why = f"{record.args[0]}: {record.args[1]}"
            self.when_first()
        return record.levelno >= self._level

    @classmethod
    @contextmanager
    def noted(cls) -> Iterator[Self]:
        """Note failures while the block runs."""
        log = logging.getLogger("oncegate.client")
        level, note = log.level, cls(log.getEffectiveLevel())
        log.setLevel(logging.DEBUG)
        log.addFilter(note)
        try:
            yield note
        finally:
            log.removeFilter(note)
            log.setLevel(level)


def in_doubt(said: str, key: str) -> typer.Exit:
    """Say that a write may have been applied and how to end the doubt; return the exit."""
    way_out = f"the same command with --idempotency-key {key} tells, and does it if it was not"
    return failed(f"{said}; the outcome is unknown: {way_out}", UNKNOWN)
