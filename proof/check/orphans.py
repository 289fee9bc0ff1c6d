"""Processes that a killed run left behind, found by the folder that they work in.

Owns: that search, and the lock that keeps two runs out of one directory: each would take the other's nodes for left
over. A run that ends in any other way than SIGKILL leaves none.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oncegate.rifl.errors import Code, OncegateError, Outcome

_FLAGS: Final = frozenset({b"--data-dir", b"--checkpoint", b"-Dcassandra.storagedir"})
"""Behind which a process names its directory: a node, a job (whose JVM ends with it), a Cassandra."""


@contextlib.contextmanager
def alone(runs: Path) -> Iterator[None]:
    """Keep ``runs`` for this process; the lock goes with the process, however it ends.

    Raises:
        OncegateError: CONFLICT, another process runs there now.
    """
    with (runs / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            detail = f"another run is under way in {runs}; give another --runs"
            raise OncegateError(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED) from None
        yield


def end_left_over(runs: Path) -> int:
    """Kill every process of this user whose command line names a directory of a run in ``runs``.

    Returns:
        How many were killed.
    """
    mark = f"{runs.resolve()}{os.sep}".encode()
    killed = 0
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = place.joinpath("cmdline").read_bytes().split(b"\0")
            pairs = itertools.chain(itertools.pairwise(words), (word.split(b"=", 1) for word in words if b"=" in word))
            if any(flag in _FLAGS and value.startswith(mark) for flag, value in pairs):
                os.kill(int(place.name), signal.SIGKILL)
                killed += 1
    return killed
