"""A wall clock for one process that can be stepped while it runs: libfaketime, loaded before everything else.

Only ``CLOCK_REALTIME`` moves; the monotonic clock is the machine's, as after a step by hand or by NTP. The library
comes with the ``dev`` extra, where a wheel with it exists, or with a distribution's ``faketime`` package; elsewhere
:class:`~oncegate.proof.check.errors.Unavailable` says so.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from oncegate.proof.check.errors import Unavailable

DAY_S: Final = 86_400
_PACKAGED: Final = "lib/*/faketime/libfaketime.so.1"


def _library() -> Path:
    found = importlib.util.find_spec("libfaketime")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    for place in sorted(Path("/usr").glob(_PACKAGED)):
        return place
    raise Unavailable("libfaketime is not installed (a wheel for Linux on x86-64, or the package faketime)")


class WallClock:
    """The clock of the processes started with :attr:`prefix`; it stands at the machine's until it is stepped."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.clock"
        self.library = _library()
        self.offset_s, self.rate = 0.0, 1.0
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
        self.offset_s, self.rate = seconds, rate
        aside = self._file.with_suffix(".new")
        # The rate is always said: the library goes on at the last one otherwise.
        aside.write_text(f"{seconds:+.3f} x{rate:g}\n")
        os.replace(aside, self._file)
