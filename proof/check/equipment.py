"""What faults need beyond processes and links, and whether this machine has it.

Owns: small file systems (a tmpfs in a mount namespace of its own) and wall clocks that can be stepped (libfaketime,
loaded before everything else). Flushes: :mod:`oncegate.proof.check.flush_control`. TLS between the nodes:
:mod:`oncegate.proof.check.certificates`. What the machine does not allow raises
:class:`~oncegate.proof.check.errors.Unavailable`.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from oncegate.gateway.local.processes import Closing
from oncegate.proof.check.certificates import look_for_library
from oncegate.proof.check.earlier_build import look_for_history
from oncegate.proof.check.errors import Unavailable
from oncegate.proof.check.flush_control import shim_library

DAY_S: Final = 86_400
_BLOCK: Final = 64 * 1024
_FAKETIME: Final = "lib/*/faketime/libfaketime.so.1"


class Equipment(enum.StrEnum):
    """Names of what a cluster is made with."""

    DISK = "disk"
    CLOCK = "clock"
    FLUSHES = "flushes"
    PEER_TLS = "peer-tls"
    TENANTS = "tenants"
    EARLIER_BUILD = "earlier-build"


class Target(Protocol):
    """A process beside the nodes that may be killed: a Spark job, a Cassandra. The workload registers it."""

    name: str

    def kill(self) -> None:
        """End it at once, as kill -9 does."""

    def start(self) -> None:
        """Start it again; without effect while it runs."""

    def is_running(self) -> bool:
        """Whether it lives."""


class RestoredReads(Protocol):
    """Judges backups: :class:`oncegate.proof.check.restored_reads.RestoredReads`."""

    def begin(self, node: str) -> bool:
        """Begin to read what ``node`` will save; False: there is nothing to read."""

    def end(self, endpoint: str) -> int:
        """Read it at the new cluster; returns how many rows."""

    def give_up(self, why: str) -> None:
        """It cannot be read."""


class SmallDisk(Closing):
    """``size`` bytes at ``directory``, as seen by commands run with :attr:`prefix`.

    A keeper process holds the namespace, so that the node can die and come back to its files.
    """

    def __init__(self, directory: Path, size: int) -> None:
        for tool in ("unshare", "nsenter", "mount"):
            if shutil.which(tool) is None:
                raise Unavailable(f"{tool} is not installed")
        directory.mkdir(parents=True)
        new = ["-m"] if os.geteuid() == 0 else ["-U", "-r", "-m"]
        script = 'mount -t tmpfs -o size="$1" tmpfs "$2" && echo mounted && exec cat'
        self._keeper = subprocess.Popen(
            ["unshare", *new, "sh", "-c", script, "sh", str(size), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if self._keeper.stdout is None or self._keeper.stdout.readline() != b"mounted\n":
            _, said = self._keeper.communicate()
            raise Unavailable(f"no file system can be mounted: {said.decode().strip()}")
        enter = ["-m"] if os.geteuid() == 0 else ["-U", "-m", "--preserve-credentials"]
        self.prefix: Sequence[str] = ["nsenter", "-t", str(self._keeper.pid), *enter, f"--wd={os.getcwd()}"]
        self.path = Path(f"/proc/{self._keeper.pid}/root") / directory.relative_to("/")
        """The directory as this process sees it."""

    @property
    def free_bytes(self) -> int:
        """What is left."""
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self) -> None:
        """Take every byte that is left, as another program's file would."""
        with (self.path / "stranger").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_BLOCK))
            except OSError:
                return

    def give_back(self) -> None:
        """Remove that file."""
        (self.path / "stranger").unlink(missing_ok=True)

    def close(self) -> None:
        """Give the memory back."""
        self._keeper.kill()
        self._keeper.communicate()


class WallClock:
    """The clock of the processes started with :attr:`prefix`; it stands at the machine's until it is stepped.

    Only ``CLOCK_REALTIME`` moves; the monotonic clock is the machine's, as after a step by hand or by NTP.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.clock"
        self.library = _library()
        directory.mkdir(parents=True, exist_ok=True)
        self.step(0)
        self.prefix: Sequence[str] = [
            "env",
            f"LD_PRELOAD={self.library}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_NO_CACHE=1",
            "DONT_FAKE_MONOTONIC=1",
        ]
        self.step(DAY_S)
        asked = [*self.prefix, sys.executable, "-c", "import time; print(time.time())"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode or float(answer.stdout) < time.time() + DAY_S / 2:
            raise Unavailable(f"libfaketime has no effect here: {answer.stderr.strip()}")
        self.step(0)

    def step(self, seconds: float, *, rate: float = 1.0) -> None:
        """Set the clock so far off the machine's, at once; from then on it runs ``rate`` times as fast.

        A rate counts from the start of each process, so one that has run for a while is stepped by it, too.
        """
        aside = self._file.with_suffix(".new")
        # The rate is always said: the library goes on at the last one otherwise.
        aside.write_text(f"{seconds:+.3f} x{rate:g}\n")
        os.replace(aside, self._file)


def _library() -> Path:
    found = importlib.util.find_spec("libfaketime")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    for place in sorted(Path("/usr").glob(_FAKETIME)):
        return place
    raise Unavailable("libfaketime is not installed (a wheel for Linux on x86-64, or the package faketime)")


def missing() -> Mapping[Equipment, str]:
    """Return what this machine lacks, and why: each is tried, which takes a tenth of a second."""
    found: dict[Equipment, str] = {}
    with tempfile.TemporaryDirectory(prefix="oncegate-check-") as directory:
        place = Path(directory)
        tries: dict[Equipment, Callable[[], object]] = {
            Equipment.DISK: lambda: SmallDisk(place / "disk", 2**20).close(),
            Equipment.CLOCK: lambda: WallClock(place, "n1"),
            Equipment.FLUSHES: lambda: shim_library(place),
            Equipment.PEER_TLS: look_for_library,
            Equipment.EARLIER_BUILD: look_for_history,
        }
        for equipment, attempt in tries.items():
            try:
                attempt()
            except Unavailable as reason:
                found[equipment] = str(reason)
    return found
