"""The newest lines of the log, kept in memory for whoever asks for them."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

from oncegate.gateway.observability.logs import TextFormatter

LINES_MAX: Final = 2_000
CHARACTERS_MAX: Final = 2_000
"""Of a line; a traceback is one."""


class RecentLines(logging.Handler):
    """Keeps the newest ``LINES_MAX`` events."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(TextFormatter())
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep an event."""
        self._lines.append(self.format(record)[:CHARACTERS_MAX])

    @property
    def lines(self) -> list[str]:
        """The lines, oldest first."""
        return list(self._lines)


RECENT: Final = RecentLines()
"""Of this process; ``oncegate serve`` adds it to the handlers of its log."""
