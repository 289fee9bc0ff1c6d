"""Why a node refuses a saved state: errors below :class:`oncegate.consensus.errors.StorageError`, it must not serve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from oncegate.consensus.errors import StorageError
from oncegate.gateway.machine.levels import too_old

_TABLE_FILE: Final = re.compile(r"\b([0-9]+\.sst)\b", re.ASCII)


class StateCorrupt(StorageError):
    """The saved state is not what was written; ``path`` is its file or directory."""

    code = "STATE_CORRUPT"

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the saved state in {path} is corrupt: {reason}")
        self.path = path
        self.reason = reason

    @property
    def file(self) -> Path:
        """The file that is damaged; where the store did not say which, ``path``."""
        named = _TABLE_FILE.search(self.reason)
        return self.path if named is None else self.path / named.group(1)


class StateVersionUnknown(StorageError):
    """A build that knows another format, or a higher feature level, wrote the state in the directory ``path``."""

    code = "STATE_VERSION_UNKNOWN"

    def __init__(self, path: Path, found: int, known: int, what: str = "format") -> None:
        way = "start the build that wrote it, or a newer one" if found > known else too_old("it")
        super().__init__(f"the saved state in {path} has {what} {found}; this build reads {known}: {way}")
        self.path = path
        self.found = found


class StoreFailed(OSError):
    """The store refused a write: the disk is full or fails. What was durable before still is."""
