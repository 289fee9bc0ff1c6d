"""Whose connection it is, as the kernel knows it: where TLS hides what the dialler says of itself. Linux only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_SOCKETS: Final = Path("/proc/net/tcp")
_ESTABLISHED: Final = "01"


def owner_of(port: int, processes: Mapping[str, int]) -> str | None:
    """Return which of these processes (name: process id) has the connection that comes from a port of the loopback."""
    inode = _inode(port)
    for name, pid in processes.items():
        # A process may end while it is looked at.
        with contextlib.suppress(OSError):
            for handle in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{handle}") == f"socket:[{inode}]":
                        return name
    return None


def _inode(port: int) -> str:
    for line in _SOCKETS.read_text().splitlines()[1:]:
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        if state == _ESTABLISHED and local.endswith(f":{port:04X}"):
            return inode
    return ""
