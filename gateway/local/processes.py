"""Processes of one cluster: start, kill -9, freeze, orderly stop, exit status and log. Must not know what they do.

:class:`ProcessCluster` is the one class that holds such processes. A subclass says which there are and how one is
started: :class:`oncegate.gateway.local.cluster.LocalCluster` for gateway nodes, others for bare replicas and for etcd.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from oncegate.gateway.local.waiting import wait_for

STOP_S: Final = 15.0
ENDED_S: Final = 30.0


def spawn(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process in its own session; append its output to ``log``."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )


class Closing(abc.ABC):
    """A context manager that is itself the resource; leaving it closes it, whatever happened inside."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ProcessCluster(Closing):
    """Named processes, each with a log and a session of its own. Closing kills what still runs.

    Args:
        directory: the log of process ``n`` is ``directory/n.log``, its data is below ``directory/n``.
        environment: further environment variables of the processes.
    """

    def __init__(self, directory: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        self.frozen: set[str] = set()
        """Processes that stand still."""
        self._environment = {**os.environ, **(environment or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    @abc.abstractmethod
    def ids(self) -> list[str]:
        """Names of the processes."""

    @abc.abstractmethod
    def command(self, name: str) -> list[str]:
        """Return the command line of a process."""

    def start(self, *names: str) -> None:
        """Start these, or all; those that run are left alone. Does not wait until they are ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in names or self.ids:
            if not self.is_running(name):
                self._processes[name] = spawn(self.command(name), self._log_file(name), self._environment)

    def is_running(self, name: str) -> bool:
        """Tell whether a process lives; a frozen one does."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        """Return the process id of one that was started."""
        return self._processes[name].pid

    def returncode(self, name: str) -> int | None:
        """Return how a process ended last, negative for a signal; None while it runs."""
        return self._processes[name].poll()

    def kill(self, *names: str) -> None:
        """Kill these, or all, with SIGKILL, all at once, and wait until they are gone."""
        chosen = [name for name in names or self.ids if name in self._processes]
        for name in chosen:
            self._signal(name, signal.SIGKILL)
        for name in chosen:
            self._processes[name].wait(ENDED_S)
        self.frozen.difference_update(chosen)

    def freeze(self, *names: str) -> None:
        """SIGSTOP; without effect on what does not run."""
        for name in names:
            if self._signal(name, signal.SIGSTOP):
                self.frozen.add(name)

    def thaw(self, *names: str) -> None:
        """SIGCONT."""
        for name in names:
            self._signal(name, signal.SIGCONT)
            self.frozen.discard(name)

    def stop(self, *names: str, timeout_s: float = STOP_S) -> bool:
        """Stop these, or all, in order with SIGTERM, all at once; kill what does not end in time.

        Returns:
            Whether each of them ended by itself; one that is frozen cannot.
        """
        asked = [(name, self._processes[name]) for name in names or self.ids if self.is_running(name)]
        for _, process in asked:
            process.terminate()
        deadline = time.monotonic() + timeout_s
        orderly = True
        for name, process in asked:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                orderly = False
                self.kill(name)
        return orderly

    def wait_ended(self, name: str) -> tuple[int, str]:
        """Wait until a process has ended by itself; returns its exit status and its whole log."""
        return self._processes[name].wait(ENDED_S), self.log(name)

    def log(self, name: str) -> str:
        """Return the output of a process over all its starts."""
        path = self._log_file(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def log_tail(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a process's log."""
        return "\n".join(self.log(name).splitlines()[-lines:])

    def close(self) -> None:
        """Kill what runs. Idempotent."""
        self.kill()

    def _log_file(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _signal(self, name: str, number: signal.Signals) -> bool:
        """Signal a process with all that it started (behind a tracer, it is a child itself); False: it does not run."""
        if not self.is_running(name):
            return False
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            os.killpg(self.pid(name), number)
        return True


def session_members(session: int) -> list[int]:
    """Return the processes of a session that are no zombies.

    A session and not a process group: each of Spark's Python daemons makes a group of its own.
    """
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            # The name, in parentheses, may hold anything; behind it: state, parent, group, session.
            state, _, _, of, *_ = stat.read_text().rpartition(")")[2].split()
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found


def end_session(session: int, *, grace_s: float = 0.0) -> None:
    """Kill every process of a session, after ``grace_s`` in which they may end by themselves.

    Raises:
        TimeoutError: some stay.
    """
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not session_members(session), grace_s, "the session ends by itself")

    def gone() -> bool:
        members = session_members(session)
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not members

    wait_for(gone, ENDED_S, f"session {session} ends", state=lambda: f"{session_members(session)} run")
