"""Children that print events as lines of JSON: load generators, workers and Spark drivers of the experiments.

Owns: their start, their end with all that they have started, and what they have said so far.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.peer import with_its_parent
from bench.usage import Usage
from oncegate.gateway.local.processes import end_session, session_members


class Failed(RuntimeError):
    """A part ended without its result; the text is what it said last."""


unwaited_s = 0.0
"""Processor time of children's own children that nobody waits for, as of the JVM that a Spark driver starts: nothing
else counts it once they are gone.
"""


class Talking:
    """A child that prints events as lines of JSON, in a session of its own; leaving the block kills all of it."""

    def __init__(self, module: str, *words: str, log: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._log, self._counted = log, False
        command = with_its_parent([sys.executable, "-m", module, *words])
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, name=module)
        self._reader.start()

    def tell(self, line: str) -> None:
        """Send a line of input."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind so far."""
        return [one for one in list(self.events) if one["event"] == kind]

    def wait(self, kind: str, timeout_s: float) -> dict[str, Any]:
        """Wait for the first event of a kind, and return it.

        Raises:
            Failed: it ended before, or not in time.
        """
        until = time.monotonic() + timeout_s
        while not (found := self.of(kind)):
            over = not self._reader.is_alive()
            if (over and not self.of(kind)) or time.monotonic() > until:
                raise Failed(f"no {kind} ({'ended' if over else 'late'}):\n{self.log_tail()}")
            time.sleep(0.05)
        return found[0]

    def log_tail(self) -> str:
        """Return the end of what it has logged."""
        return self._log.read_text(errors="replace")[-3_000:]

    def finish(self, timeout_s: float) -> int:
        """Close its input and wait for its end; returns the exit status."""
        self._count()
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(timeout_s)

    def pids(self) -> list[int]:
        """Return all processes of its session."""
        return session_members(self.process.pid)

    def close(self) -> None:
        """Kill what is left. Idempotent."""
        self._count()
        end_session(self.process.pid)
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _count(self) -> None:
        """Add what its children have taken, once."""
        global unwaited_s  # noqa: PLW0603 - one bench a process
        if not self._counted:
            self._counted = True
            unwaited_s += Usage.of(pid for pid in self.pids() if pid != self.process.pid).cpu_s

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):  # Spark's start script may print too
                found = json.loads(line)
                if isinstance(found, dict) and "event" in found:
                    self.events.append(found)


@contextlib.contextmanager
def talking(module: str, *words: str, log: Path) -> Iterator[Talking]:
    """Run a child for as long as the block lasts."""
    child = Talking(module, *words, log=log)
    try:
        yield child
    finally:
        child.close()
