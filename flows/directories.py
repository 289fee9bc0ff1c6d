"""Directories whose names survive a power loss. Blocking. Read next: :mod:`oncegate.flows.segment_store`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def flush_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Make a directory and its parents unless they are there; durable on return.

    The parent is flushed even if the directory is there: a process that was killed may have made it and not flushed it.
    """
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
    # A parent that this process may not list was made by somebody else, and so was the directory.
    with contextlib.suppress(PermissionError):
        flush_directory(directory.parent)
