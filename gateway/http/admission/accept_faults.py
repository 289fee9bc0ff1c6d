"""Connections that cannot be accepted, for want of descriptors: one line of the log in ten seconds, whatever comes.

Owns: what the event loop's handler of exceptions does with asyncio's report of a failed ``accept``, which comes with a
traceback for each place of the backlog. asyncio itself pauses for a second before it accepts again, on every listening
socket of the process: of clients and of peers. Everything else goes to the handler that was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any, Final

EVERY_S: Final = 10.0
_ACCEPT: Final = "socket.accept() out of system resource"
log = logging.getLogger(__name__)


class AcceptFaults:
    """Counts connections that could not be accepted, and tells of them now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._next_s = float("-inf")
        self.faults = 0
        """Since the last line."""

    def failed(self, fault: BaseException | None) -> None:
        """Count one, and tell of all since the last line if that is long enough ago."""
        self.faults += 1
        now_s = self._loop.time()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        log.error(
            "%d attempts to accept a connection failed: %s; they go on each second. More descriptors: ulimit -n, or "
            "LimitNOFILE= of systemd; fewer connections: connections_max",
            self.faults,
            fault,
        )
        self.faults = 0


@contextlib.contextmanager
def told_rarely(loop: asyncio.AbstractEventLoop) -> Iterator[AcceptFaults]:
    """Handle failed accepts of this loop for as long as the context lasts."""
    faults, before = AcceptFaults(loop), loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") == _ACCEPT:
            faults.failed(context.get("exception"))
        elif before is None:
            loop.default_exception_handler(context)
        else:
            before(loop, context)

    loop.set_exception_handler(handle)
    try:
        yield faults
    finally:
        loop.set_exception_handler(before)
