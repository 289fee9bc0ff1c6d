"""What became of one fault: written by the nemesis, kept in a run's folder, drawn on its page."""

from __future__ import annotations

import msgspec


class FaultNote(msgspec.Struct, frozen=True):
    """One fault: nanoseconds on the clock of the history; ``end`` None: it did not end before the run did."""

    start: int
    end: int | None
    fault: str
    target: list[str] = []
    detail: str = ""
