"""Children of benches: servers that print an address, processes that print a figure, and those that print events.

Owns: their start, their end with all that they have started, and what they have said so far. Events are lines of JSON:
so speak load generators, workers and Spark drivers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.usage import Usage
from oncegate.gateway.local.processes import end_session, session_members

# A parent that died before the kernel was told is one that this process never had.
_ENDS_WITH_PARENT: Final = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def with_its_parent(command: list[str]) -> list[str]:
    """Let a process be killed when its parent, this one, dies: a bench that is killed leaves nothing behind."""
    return [sys.executable, "-I", "-S", "-c", _ENDS_WITH_PARENT, str(os.getpid()), *command]


def answer_of(module: str, *words: str) -> Any:
    """Run a module to its end, and return what it has printed as JSON."""
    return json.loads(subprocess.run([sys.executable, "-m", module, *words], check=True, stdout=subprocess.PIPE).stdout)


@contextlib.contextmanager
def serving(module: str, *words: str) -> Iterator[str]:
    """Run a server for as long as the block lasts; yields the address, which it prints first.

    Raises:
        Failed: it ended before.
    """
    command, pipe = with_its_parent([sys.executable, "-m", module, *words]), subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        try:
            assert server.stdout is not None
            if not (address := server.stdout.readline().strip()):
                raise Failed(f"{module} did not start")
            yield address
        finally:
            server.terminate()


def say(event: str, **fields: Any) -> None:
    """Print one event: what a child says."""
    print(json.dumps({"event": event, **fields}), flush=True)


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
