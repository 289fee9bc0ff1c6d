"""Histories in one line an operation, for tests of what workloads find."""

from __future__ import annotations

from typing import Any

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.lincheck import Event

FINAL = PROCESSES_MAX
"""The process of final reads."""


class Book:
    """Writes a history; every operation takes one unit of time after the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now = 0

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def did(
        self,
        f: str,
        key: Any,
        argument: Any = None,
        result: Any = None,
        *,
        process: int = 0,
        end: str = "ok",
        request: str | None = None,
        error: str | None = None,
        node: str | None = None,
    ) -> Book:
        """Add an operation that begins and ends before the next one begins."""
        self.events.append(Event(process, "invoke", f, key, argument, self._tick(), node, request))
        self.events.append(Event(process, end, f, key, result, self._tick(), node, request, error))  # type: ignore[arg-type]
        return self

    def began(self, f: str, key: Any, argument: Any = None, *, process: int) -> Book:
        """Begin an operation that others overlap."""
        self.events.append(Event(process, "invoke", f, key, argument, self._tick()))
        return self

    def ended(self, f: str, key: Any, result: Any = None, *, process: int) -> Book:
        """End it."""
        self.events.append(Event(process, "ok", f, key, result, self._tick()))
        return self

    def read(self, key: Any, result: Any, f: str = "read") -> Book:
        """Add a final read."""
        return self.did(f, key, None, result, process=FINAL)
