"""The user's cache directory: jars of the development Cassandra, the class-data archive of Spark's JVM."""

from __future__ import annotations

import os
from pathlib import Path


def directory() -> Path:
    """Return the user's cache directory of this project; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oncegate"
