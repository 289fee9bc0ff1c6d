"""Tells whether a file has changed since it was looked at last: for what a node reads again while it runs.

Owns: what of a file counts. Looks at no content, so that a look once a second costs one system call a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

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
