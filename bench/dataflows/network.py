"""Bytes that processes have sent over TCP, by what ``ss`` says of their connections.

The kernel counts bytes for connections, not for processes; a connection that opens and closes between two looks is not
seen. The parts of these experiments keep theirs, and a look each second loses next to nothing. Bytes on loopback: what
would cross a network if each process had a machine of its own; what processes of one machine by nature tell each other
(Spark's JVM and its Python workers) is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_HEAD: Final = re.compile(r"^\S+\s+\d+\s+\d+\s+(?P<local>\S+)\s+(?P<peer>\S+)\s+users:\((?P<users>.*)\)\s*$")
_PID: Final = re.compile(r"pid=(\d+)")
_MAPPED: Final = re.compile(r"^\[::ffff:(\d+\.\d+\.\d+\.\d+)\](?=:\d+$)")
"""An IPv4 address as a socket of IPv6 tells it: a JVM has such ones, and the other end calls it by its IPv4 one."""
_SENT: Final = re.compile(r"\bbytes_sent:(\d+)")
LOOK_S: Final = 10.0


class Connection(NamedTuple):
    """One end of a connection."""

    pid: int
    local: str
    peer: str


def parse(text: str) -> dict[Connection, int]:
    """Return the bytes sent by each connection, by the output of ``ss -tinpH``; without any it is left out."""
    found: dict[Connection, int] = {}
    head: Connection | None = None
    for line in text.splitlines():
        named = _HEAD.match(line)
        if named is not None:
            pids = _PID.findall(named["users"])
            ends = (_MAPPED.sub(r"\1", named[end]) for end in ("local", "peer"))
            head = Connection(int(pids[0]), *ends) if pids else None
        elif head is not None and (sent := _SENT.search(line)) is not None:
            found[head] = int(sent[1])
            head = None
        elif not line[:1].isspace():
            head = None
    return found


def is_seen() -> bool:
    """Whether bytes can be counted here."""
    return shutil.which("ss") is not None


def look() -> dict[Connection, int]:
    """Ask ``ss``; nothing where it is not installed (see `is_seen`), or gives no answer."""
    try:
        asked = subprocess.run(["ss", "-tinpH"], capture_output=True, text=True, check=False, timeout=LOOK_S)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    return parse(asked.stdout)


class Sent:
    """Bytes by part, from the first look on. ``add`` each look."""

    def __init__(self, first: Mapping[Connection, int]) -> None:
        self._before = dict(first)
        self._newest = dict(first)

    def add(self, looked: Mapping[Connection, int]) -> None:
        """Note a look; connections that are gone keep their last figure."""
        self._newest.update(looked)

    def of(self, pids: Iterable[int], *, together: bool = False) -> int:
        """Return the bytes that processes have sent since the first look; ``together``: not those to each other."""
        wanted = {*pids}
        own = {one: sent for one, sent in self._newest.items() if one.pid in wanted}
        ends = {(one.local, one.peer) for one in own} if together else set[tuple[str, str]]()
        return sum(
            max(0, sent - self._before.get(one, 0)) for one, sent in own.items() if (one.peer, one.local) not in ends
        )
