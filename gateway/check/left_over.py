"""Node processes that a killed run left behind, found by the folder that they work in.

Owns: that search. A run that ends in any other way than SIGKILL leaves none.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from pathlib import Path


def end_left_over(runs: Path) -> int:
    """Kill every process of this user whose command line names a data directory of a run in ``runs``.

    Returns:
        How many were killed.
    """
    mark = f"{runs.resolve()}{os.sep}".encode()
    killed = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = place.joinpath("cmdline").read_bytes().split(b"\0")
            pairs = itertools.pairwise(words)
            if any(flag == b"--data-dir" and value.startswith(mark) for flag, value in pairs):
                os.kill(int(place.name), signal.SIGKILL)
                killed += 1
    return killed
