"""A small file system for one node: a tmpfs in a mount namespace of its own, as root or as anybody.

A keeper process holds the namespace, so that the node can die and come back to its files; ``prefix`` runs a command in
it. Where neither root nor user namespaces are allowed, :class:`~oncegate.proof.check.errors.Unavailable` says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncegate.gateway.local.closing import Closing
from oncegate.proof.check.errors import Unavailable

_BLOCK: Final = 64 * 1024


class SmallDisk(Closing):
    """``size`` bytes at ``directory``, as seen by commands run with :attr:`prefix`."""

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
        """Take every byte that is left, as a stranger's file would."""
        with (self.path / "stranger").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(_BLOCK))
            except OSError:
                return

    def give_back(self) -> None:
        """Remove the stranger's file."""
        (self.path / "stranger").unlink(missing_ok=True)

    def close(self) -> None:
        """Give the memory back."""
        self._keeper.kill()
        self._keeper.communicate()
