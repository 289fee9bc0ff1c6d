"""Who waits when processors are short: database and workers yield to application and queue, in every data flow.

Parts of a deployment have machines of their own; here they share one, and two hundred threads of a database that are
woken at once would stand before a part that takes a millisecond. Where Linux shares processors between sessions
(*autogroup*), the niceness that counts is that of the session.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

NICE: Final = 10


def yielding(pids: Iterable[int]) -> None:
    """Let processes, each with its session and all of its threads, stand behind others; those that are gone too."""
    for pid in pids:
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):  # gone, or a kernel without sharing between sessions
            (process / "autogroup").write_text(str(NICE))
        with contextlib.suppress(OSError):
            for thread in (process / "task").iterdir():
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
