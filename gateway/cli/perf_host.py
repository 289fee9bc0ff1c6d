"""What ``oncegate perf`` measures of a machine: flushes, pauses, clock, cores, memory, disk, round trips.

Owns: how each figure is taken. Blocking; needs nothing of the server. A file of 2 MiB has no name from its first moment
on, so nothing is left behind, whatever ends the command.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

BLOCK_BYTES: Final = 4096
FLUSHES: Final = 500
ROUND_TRIPS: Final = 1_000
PEER_ROUND_TRIPS: Final = 100
_PAYLOAD: Final = b"x" * 200
_SLEEP_S: Final = 0.002
_PEER_S: Final = 3.0
_GIB: Final = 2**30


class Spread(NamedTuple):
    """Percentiles of durations in milliseconds."""

    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Return those of some durations: nearest rank. Raises ValueError for none."""
        if not seconds:
            raise ValueError("no durations")
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(*(1000 * ordered[min(last, round(last * share))] for share in (0.5, 0.99, 1.0)))


def existing(directory: Path) -> Path:
    """Return a directory, or the nearest above it that is there: on what file system it would be."""
    whole = directory.absolute()
    return next(one for one in (whole, *whole.parents) if one.is_dir())


def flushes(directory: Path, samples: int = FLUSHES, clock: Callable[[], float] = time.perf_counter) -> Spread:
    """Time overwrites of 4 KiB, each followed by ``fdatasync``, in a file whose blocks are written already.

    Raises:
        OSError: the directory cannot be written to, or its file system is full.
    """
    block = os.urandom(BLOCK_BYTES)
    times: list[float] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        number = file.fileno()
        os.pwrite(number, bytes(samples * BLOCK_BYTES), 0)
        os.fsync(number)
        for at in range(samples):
            began = clock()
            os.pwrite(number, block, at * BLOCK_BYTES)
            os.fdatasync(number)
            times.append(clock() - began)
    return Spread.of(times)


class Clocks(NamedTuple):
    """Worst of a while, in milliseconds."""

    step_ms: float
    """By how much the wall clock moved more, or less, than the monotonic one between two looks."""
    pause_ms: float
    """By how much a sleep of 2 ms lasted longer."""


def clocks(
    seconds: float,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Clocks:
    """Watch both clocks while this process does nothing else."""
    step = pause = 0.0
    began = before = monotonic()
    # By how much the wall clock is ahead of the monotonic one, at least and at most: it is read between two looks at
    # the other, and a pause between these must not look like a step.
    least, most = -math.inf, math.inf
    while before - began < seconds:
        sleep(_SLEEP_S)
        early, at, late = monotonic(), wall(), monotonic()
        pause = max(pause, late - before - _SLEEP_S)
        step = max(step, (at - late) - most, least - (at - early))
        least, most, before = at - late, at - early, late
    return Clocks(1000 * max(0.0, step), 1000 * max(0.0, pause))


def cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_gib(proc: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the memory that is available, within the bound of this process's container; None where none says."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = proc.read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")))
    with contextlib.suppress(OSError, ValueError):  # "max" is no bound
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return min(found) / _GIB if found else None


def disk_free_gib(directory: Path) -> float:
    """Return what is free on a directory's file system, for who is not root."""
    system = os.statvfs(directory)
    return system.f_bavail * system.f_frsize / _GIB


def loopback(samples: int = ROUND_TRIPS) -> Spread:
    """Time messages of 200 bytes to a thread of this process and back, over TCP on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        echoing = threading.Thread(target=_echo, args=(listening,), daemon=True)
        echoing.start()
        with socket.create_connection(listening.getsockname()) as near:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = []
            for _ in range(samples):
                began = time.perf_counter()
                near.sendall(_PAYLOAD)
                _whole(near)
                times.append(time.perf_counter() - began)
        echoing.join()
    return Spread.of(times)


def _echo(listening: socket.socket) -> None:
    far, _ = listening.accept()
    with far, contextlib.suppress(OSError):
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _whole(far):
            far.sendall(_PAYLOAD)


def _whole(connection: socket.socket) -> bool:
    missing = len(_PAYLOAD)
    while missing:
        piece = connection.recv(missing)
        if not piece:
            return False
        missing -= len(piece)
    return True


def round_trips(endpoint: str, context: ssl.SSLContext | None = None, samples: int = PEER_ROUND_TRIPS) -> Spread:
    """Time requests to a node that it answers at once, on one connection.

    Args:
        endpoint: the node's HTTP address.
        context: whom to trust for https; the system's authorities by default.
        samples: how many requests.

    Raises:
        OSError: no connection, or it ended; HTTPException: what answers is no node.
    """
    place = urlsplit(endpoint)
    host = place.hostname or ""
    connection: http.client.HTTPConnection = (
        http.client.HTTPSConnection(host, place.port or 443, timeout=_PEER_S, context=context)
        if place.scheme == "https"
        else http.client.HTTPConnection(host, place.port or 80, timeout=_PEER_S)
    )
    times = []
    with contextlib.closing(connection):
        for _ in range(samples + 1):
            began = time.perf_counter()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            times.append(time.perf_counter() - began)
    return Spread.of(times[1:])  # the first one made the connection
