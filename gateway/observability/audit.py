"""The audit log: who changed what on this node, when, and what became of it.

Owns: the form of a line, and its file ``audit/audit.jsonl`` in the data directory, 8 files of 8 MiB at most. A line is
JSON with ``v`` 1; it is on the disk before the act is answered. A node writes down what it was asked itself, not what
others forwarded to it. Read next: :mod:`oncegate.gateway.http.observing`, which calls it for each route with an
``act``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec

from oncegate.gateway.observability.rotated_file import RotatedFile

VERSION: Final = 1
DONE: Final = "done"
NOT_APPLIED: Final = "not_applied"
FILE_BYTES_MAX: Final = 8 * 2**20
FILES: Final = 8
ASKED_BYTES_MAX: Final = 4096
"""A longer body is named by its length only."""
REFUSED_PER_MINUTE: Final = 60
"""Refused acts that are written down: whoever may do nothing must not push out what others have done."""
log = logging.getLogger(__name__)


class Who(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who asked: a token and its tenant, both empty on a node without tokens, or a user of the machine."""

    token: str = ""
    tenant: str = ""
    address: str = ""
    user: str = ""


class Act(msgspec.Struct, frozen=True, omit_defaults=True):
    """One act.

    Attributes:
        act: what kind, ``table.drop`` say.
        outcome: :data:`DONE`, :data:`NOT_APPLIED` or ``unknown``, as the answer says.
        who: who asked; empty: the node itself.
        what: the parts of the path: table, flow, consumer, member.
        asked: the body of the request.
        code: of the refusal.
        status: of the HTTP answer, 0 if there was none to give.
        request: id of the request, as in the log.
    """

    act: str
    outcome: str
    who: Who = Who()
    what: Mapping[str, str] = {}
    asked: Any = None
    code: str = ""
    status: int = 0
    request: str = ""


class AuditLog:
    """The audit log of one node.

    Args:
        data_dir: the node's.
        node: its id.
        wall: the time of day.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        data_dir: Path,
        node: str,
        *,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._file = RotatedFile(data_dir / "audit" / "audit.jsonl", bytes_max=FILE_BYTES_MAX, files=FILES)
        self._node = node
        self._wall = wall
        self._clock = clock
        self._minute_began_s = clock()
        self._refused = 0
        self.unwritten = 0
        """Refused acts beyond those of a minute that are written down."""
        self.lines = 0
        self.failures = 0
        """Acts that could not be written down; the log of the node has them."""

    @property
    def path(self) -> Path:
        """The newest file."""
        return self._file.path

    async def record(self, act: Act) -> None:
        """Write down an act, durably; never raises: what has been done cannot be taken back."""
        if self._is_written(act):
            await asyncio.to_thread(self._write, act)

    def record_now(self, act: Act) -> None:
        """Do as :meth:`record`, and block for a flush."""
        if self._is_written(act):
            self._write(act)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _is_written(self, act: Act) -> bool:
        if act.outcome != NOT_APPLIED:
            return True
        now_s = self._clock()
        if now_s - self._minute_began_s >= 60:
            self._minute_began_s, self._refused = now_s, 0
        self._refused += 1
        if self._refused <= REFUSED_PER_MINUTE:
            return True
        self.unwritten += 1
        return False

    def _write(self, act: Act) -> None:
        told = {"v": VERSION, "time": self._wall().isoformat(timespec="milliseconds"), "node": self._node}
        line = msgspec.json.encode({**told, **msgspec.to_builtins(act)}) + b"\n"
        try:
            self._file.write(line, durable=True)
            self.lines += 1
        except OSError as fault:
            self.failures += 1
            log.error("the audit log cannot be written: %s: %s", fault, line.decode().rstrip())


def asked(body: bytes, *, packed: bool) -> Any:
    """Return the body of a request as it is written down; None for one that is empty or no object."""
    if len(body) > ASKED_BYTES_MAX:
        return {"bytes": len(body)}
    try:
        found = msgspec.msgpack.decode(body) if packed else msgspec.json.decode(body)
        msgspec.json.encode(found)
    except (msgspec.DecodeError, TypeError, ValueError):
        return None
    return found if isinstance(found, dict) else None
