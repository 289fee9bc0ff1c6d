"""The access log: one line a request, for who wants to see each. Off by default.

Owns: the form of a line and the file ``access/access.jsonl`` in the data directory, 4 files of 16 MiB at most. A line
names the route, never a key or a value. Lines are written once a second, beside the event loop; what is beyond
``LINES_MAX`` in that second is counted only, so that the log costs a bounded share of the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from oncegate.gateway.observability.rotated_file import RotatedFile

LINES_MAX: Final = 2_000
WRITE_S: Final = 1.0
FILE_BYTES_MAX: Final = 16 * 2**20
FILES: Final = 4
log = logging.getLogger(__name__)


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request, after its answer."""

    time: str
    method: str
    route: str
    status: int
    ms: float
    token: str = ""
    tenant: str = ""
    address: str = ""
    request: str = ""


class AccessLog:
    """The access log of one node; on the loop that runs it.

    Args:
        data_dir: the node's.
        wall: the time of day.
    """

    def __init__(self, data_dir: Path, *, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._file = RotatedFile(data_dir / "access" / "access.jsonl", bytes_max=FILE_BYTES_MAX, files=FILES)
        self._wall = wall
        self._waiting: list[Answered] = []
        self.dropped = 0
        """Requests beyond what a second's lines may be, or that could not be written."""

    def add(
        self,
        route: tuple[str, str],
        status: int,
        seconds: float,
        *,
        who: tuple[str, str] = ("", ""),
        address: str = "",
        request: str = "",
    ) -> None:
        """Note a request: method and path of its route, name and tenant of its token."""
        if len(self._waiting) >= LINES_MAX:
            self.dropped += 1
            return
        at = self._wall().isoformat(timespec="milliseconds")
        self._waiting.append(Answered(at, *route, status, round(seconds * 1000, 3), *who, address, request))

    async def run(self) -> None:
        """Write what was noted, once a second, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_S)
            lines, self._waiting = self._waiting, []
            if lines:
                await asyncio.to_thread(self._write, lines)

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._waiting:
            self._write(self._waiting)
        self._file.close()

    def _write(self, lines: list[Answered]) -> None:
        try:
            self._file.write(b"".join(msgspec.json.encode(one) + b"\n" for one in lines), durable=False)
        except OSError as fault:
            self.dropped += len(lines)
            log.warning("the access log cannot be written: %s", fault)
