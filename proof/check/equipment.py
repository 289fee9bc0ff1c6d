"""What faults need beyond processes and links, whether this machine has it, and what else a workload lets be killed."""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from oncegate.proof.check.errors import Unavailable
from oncegate.proof.check.flush_control import shim_library
from oncegate.proof.check.small_disk import SmallDisk
from oncegate.proof.check.wall_clock import WallClock


class Equipment(enum.StrEnum):
    """What faults need beyond processes and links."""

    DISK = "disk"
    CLOCK = "clock"
    FLUSHES = "flushes"


class Target(Protocol):
    """A process beside the nodes that may be killed: a Spark job, a Cassandra. The workload registers it."""

    name: str

    def kill(self) -> None:
        """End it at once, as kill -9 does."""

    def start(self) -> None:
        """Start it again; without effect while it runs."""

    def is_running(self) -> bool:
        """Whether it lives."""


def missing() -> Mapping[Equipment, str]:
    """What this machine lacks, and why: each is tried, which takes a tenth of a second."""
    found: dict[Equipment, str] = {}
    with tempfile.TemporaryDirectory(prefix="oncegate-check-") as directory:
        place = Path(directory)
        try:
            SmallDisk(place / "disk", 2**20).close()
        except Unavailable as reason:
            found[Equipment.DISK] = str(reason)
        try:
            WallClock(place, "n1")
        except Unavailable as reason:
            found[Equipment.CLOCK] = str(reason)
        try:
            shim_library(place)
        except Unavailable as reason:
            found[Equipment.FLUSHES] = str(reason)
    return found
