"""A wall clock for one process that can be stepped while it runs: libfaketime, loaded before everything else.

Only ``CLOCK_REALTIME`` moves; the monotonic clock is the machine's, as after a step by hand or by NTP. The library
comes with the ``dev`` extra, where a wheel with it exists; elsewhere :class:`Unavailable` says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

DAY_S = 86_400


class Unavailable(Exception):
    """The library is not here, or the loader does not take it."""


def _library() -> Path:
    found = importlib.util.find_spec("libfaketime")
    if found is None or found.origin is None:
        raise Unavailable("libfaketime is not installed (dev extra, Linux on x86-64)")
    return Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


class WallClock:
    """The clock of the processes started with :attr:`prefix`; it stands at the machine's until it is stepped."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.clock"
        directory.mkdir(parents=True, exist_ok=True)
        self.step(0)
        self.prefix: Sequence[str] = [
            "env",
            f"LD_PRELOAD={_library()}",
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

    def step(self, seconds: int) -> None:
        """Set the clock so far off the machine's; it takes effect at once."""
        aside = self._file.with_suffix(".new")
        aside.write_text(f"{seconds:+d}\n")
        os.replace(aside, self._file)
