"""Why a node refuses a saved state: errors below :class:`oncegate.consensus.errors.StorageError`, it must not serve."""

from __future__ import annotations

from pathlib import Path

from oncegate.consensus.errors import StorageError


class StateCorrupt(StorageError):
    """The saved state is not what was written; ``path`` is its file or directory."""

    code = "STATE_CORRUPT"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the saved state in {path} is corrupt: {reason}")
        self.path = path
        self.reason = reason


class StateVersionUnknown(StorageError):
    """A build that knows another format wrote the state in the directory ``path``."""

    code = "STATE_VERSION_UNKNOWN"

    def __init__(self, path: Path, found: int, known: int) -> None:
        super().__init__(f"the saved state in {path} has format {found}; this build reads {known}")
        self.path = path
        self.found = found


class StoreFailed(OSError):
    """The store refused a write: the disk is full or fails. What was durable before still is."""
