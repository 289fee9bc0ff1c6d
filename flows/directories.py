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

    The parent is flushed even if the directory exists: a killed process may have made it without flushing the parent.
    """
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
    # If this process may not list the parent, another user made both.
    with contextlib.suppress(PermissionError):
        flush_directory(directory.parent)
