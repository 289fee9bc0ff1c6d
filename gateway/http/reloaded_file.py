"""A file that is read again when it has changed, while the node runs.

Owns: noticing the change, and that a file which became unreadable or wrong changes nothing and is told of once. What is
in it belongs to the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from oncegate.gateway.node.file_stamps import Stamp, stamp

T = TypeVar("T")
log = logging.getLogger(__name__)


class ReloadedFile(Generic[T]):
    """What a file says, as of the last time that it could be read.

    Args:
        path: the file.
        read: makes the value; raises OSError or ValueError, whose text holds no secret.
        what: how the log calls the value, in the plural.

    Raises OSError, ValueError: it cannot be read now.
    """

    def __init__(self, path: Path, read: Callable[[Path], T], what: str) -> None:
        self._path = path
        self._read = read
        self._what = what
        self._seen: Stamp | None = stamp(path)
        self.value = read(path)

    def refresh(self, *, anyway: bool = False) -> bool:
        """Read the file again if it has changed (or ``anyway``); returns whether the value was replaced."""
        try:
            now = stamp(self._path)
            if now == self._seen and not anyway:
                return False
            self._seen = now
            self.value = self._read(self._path)
        except OSError as fault:
            if self._seen is not None:  # logged once, until the file can be read again
                log.error("%s stay as they were: %s", self._what, fault)
            self._seen = None
            return False
        except ValueError as fault:
            log.error("%s stay as they were: %s", self._what, fault)
            return False
        return True
