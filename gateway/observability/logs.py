"""Log lines for people and for programs, and the request that they belong to.

Owns: the two formats of ``log_format``, and the id of a request: its sender's ``X-Request-Id``, else the trace id of
its ``traceparent``, else a number of the node's own. Whatever is logged while a request is served carries it.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

REQUEST: Final[ContextVar[str]] = ContextVar("oncegate_request", default="")
"""Id of the request under way, empty outside of one."""
_GIVEN: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}", re.ASCII)
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.ASCII)


def request_id(header: Callable[[str], str | None]) -> str:
    """Return the id of a request; ``header`` returns the first value of one."""
    given = header("X-Request-Id")
    if given is not None and _GIVEN.fullmatch(given):
        return given
    traced = _TRACE.fullmatch(header("traceparent") or "")
    return f"{random.getrandbits(64):016x}" if traced is None else traced[1]


class TextFormatter(logging.Formatter):
    """One line an event: time in UTC, level, message, logger; and the request, if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03dZ [%(levelname)s] %(message)s [%(name)s]", "%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the line without its traceback."""
        line = super().formatMessage(record)
        request = REQUEST.get()
        return f"{line} [request {request}]" if request else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, node, message; request and exception, if there are any."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Format an event."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told: dict[str, Any] = {
            "time": at,
            "level": record.levelname,
            "logger": record.name,
            "node": self._node,
            "message": record.getMessage(),
        }
        if request := REQUEST.get():
            told["request"] = request
        if record.exc_info is not None and record.exc_info[0] is not None:
            told["exception"] = self.formatException(record.exc_info)
        # What a message quotes may be no UTF-8.
        return msgspec.json.encode(_encodable(told)).decode()


def _encodable(told: dict[str, Any]) -> dict[str, str]:
    return {name: str(value).encode("utf-8", "backslashreplace").decode() for name, value in told.items()}


def formatter(log_format: str, node: str) -> logging.Formatter:
    """Return the formatter of a value of the setting ``log_format``."""
    return JsonFormatter(node) if log_format == "json" else TextFormatter()
