"""Tells whether a file has changed since it was looked at last: for what a node reads again while it runs.

Owns: what of a file counts, and when files that belong together are read again. Looks at no content, so that a look
once a second costs one system call a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)
Stamp = tuple[int, int, int]
"""Modification time in nanoseconds, size in bytes, inode: a file that was written or replaced has another."""


def stamp(path: Path) -> Stamp:
    """Return the stamp of a file; raises OSError."""
    found = os.stat(path)
    return found.st_mtime_ns, found.st_size, found.st_ino


def stamps(paths: Iterable[Path]) -> list[Stamp | None]:
    """Return the stamps of several files, None for each that cannot be looked at now."""
    return [_stamp_if_there(path) for path in paths]


def _stamp_if_there(path: Path) -> Stamp | None:
    try:
        return stamp(path)
    except OSError:
        return None


class FilesTogether:
    """Files that are used together, such as a certificate and its key, and replaced one after the other.

    Args:
        paths: the files.
        load: reads and uses them; raises OSError or ValueError, whose text holds no secret, and has changed nothing.
        what: how the log calls them, in the singular.
    """

    def __init__(self, paths: Iterable[Path], load: Callable[[], None], what: str) -> None:
        self.paths = list(paths)
        self._load = load
        self._what = what
        self._seen = stamps(self.paths)
        self._fault: OSError | ValueError | None = None

    def look(self) -> bool:
        """Load them if one has changed; returns whether they are used now.

        What cannot be used is told by the next look, unless one has changed again: this one may have come between two.
        """
        if stamps(self.paths) != self._seen:
            return self.load()
        if self._fault is not None:
            log.error("%s stays as it was: %s", self._what, self._fault)
            self._fault = None
        return False

    def load(self) -> bool:
        """Load them, changed or not; as :meth:`look`."""
        self._seen, self._fault = stamps(self.paths), None
        try:
            self._load()
        except (OSError, ValueError) as fault:
            self._fault = fault
            return False
        return True
