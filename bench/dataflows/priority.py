"""Who waits when processors are short: database and workers yield to application and queue, in every data flow.

Parts of a deployment have machines of their own; here they share one, and two hundred threads of a database that are
woken at once would stand before a part that takes a millisecond. Where Linux shares processors between sessions
(*autogroup*), the niceness that counts is that of the session.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

NICE: Final = 10
TRIES: Final = 20
PAUSE_S: Final = 0.11
"""The kernel takes one such change in a tenth of a second from who is not root, and refuses others with EAGAIN."""


def yielding(pids: Iterable[int]) -> None:
    """Let processes, each with its session and all of its threads, stand behind others; those that are gone too.

    Raises:
        BlockingIOError: the kernel has refused for two seconds.
    """
    for pid in pids:
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone, or a kernel without such sharing
            _say(process / "autogroup")
            for thread in (process / "task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)


def _say(session: Path) -> None:
    if not session.exists() or session.read_text().split()[-2:] == ["nice", f"{NICE}"]:
        return
    for left in reversed(range(TRIES)):
        try:
            session.write_text(f"{NICE}")
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(PAUSE_S)
