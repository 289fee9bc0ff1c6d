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


def put_durably(path: Path, draft: Path, *parts: bytes) -> None:
    """Write a file that appears whole or not at all, in a directory that is made; durable on return.

    Args:
        path: what is written; a file of this name is replaced.
        draft: name in the same directory under which it is written first; gone on return.
        parts: of the content, in order.

    Raises:
        OSError: the disk refused; neither is visible.
    """
    make_directory(path.parent)
    replace_durably(path, draft, *parts)


def replace_durably(path: Path, draft: Path, *parts: bytes) -> None:
    """As :func:`put_durably`, in a directory that :func:`make_directory` has made; spares its flush."""
    try:
        with draft.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    flush_directory(path.parent)


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
