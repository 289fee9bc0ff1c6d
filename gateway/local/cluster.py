"""A whole cluster on this machine: one process a node, on loopback.

Owns: free ports, start, readiness, kill -9 and stop of local node processes. Used by ``oncegate dev``, the demo, the
benches and the tests with real processes; needs only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from oncegate.gateway.cli.ask import get, get_json
from oncegate.gateway.node.settings import MemberAddress

START_S: Final = 30.0
STOP_S: Final = 15.0


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on now, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def spawn(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, with what it says appended to ``log``."""
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
        )


class LocalCluster:
    """Node processes of one cluster. Closing kills what still runs.

    Args:
        directory: data of node ``n`` goes to ``directory/n``, its log to ``directory/n.log``.
        nodes: how many.
        first_port: HTTP ports from here on, peer ports in between; None takes free ones.
        flags: further flags of ``oncegate serve``.
        environment: further environment variables of the nodes.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        first_port: int | None = None,
        flags: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        ports = free_ports(2 * nodes) if first_port is None else list(range(first_port, first_port + 2 * nodes))
        self.directory = directory
        self.members = [MemberAddress(f"n{i + 1}", "127.0.0.1", ports[2 * i], ports[2 * i + 1]) for i in range(nodes)]
        self.flags = flags
        self._environment = {**os.environ, **(environment or {})}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._joining: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ids(self) -> list[str]:
        """Ids of the nodes."""
        return [member.node_id for member in self.members]

    @property
    def endpoints(self) -> list[str]:
        """HTTP addresses of the nodes."""
        return [member.http for member in self.members]

    def endpoint(self, node_id: str) -> str:
        """Return a node's HTTP address."""
        return next(member.http for member in self.members if member.node_id == node_id)

    def ports_in_use(self) -> list[int]:
        """Return the members' ports that somebody listens on now: a stranger there would pass for a node."""
        taken = []
        for member in self.members:
            for port in (member.http_port, member.peer_port):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        probe.bind((member.host, port))
                    except OSError:
                        taken.append(port)
        return taken

    def start(self, *node_ids: str) -> None:
        """Start the given nodes, or all that do not run. Does not wait until they are ready."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for node_id in node_ids or self.ids:
            if self.is_running(node_id):
                continue
            log = self.directory / f"{node_id}.log"
            self._processes[node_id] = spawn(self.command(node_id), log, self._environment)

    def expand(self, node_id: str) -> MemberAddress:
        """Note a node that is to join the running cluster, on free ports; it is started like the others."""
        new = MemberAddress(node_id, "127.0.0.1", *free_ports(2))
        self.members = [*self.members, new]
        self._joining.add(node_id)
        return new

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node."""
        members = [flag for member in self.members for flag in ("--member", str(member))]
        own = ["--node", node_id, "--data-dir", str(self.directory / node_id)]
        if node_id in self._joining:
            own.append("--join")
        return [sys.executable, "-m", "oncegate", "serve", *own, *members, *self.flags]

    def is_running(self, node_id: str) -> bool:
        """Tell whether a node's process lives."""
        process = self._processes.get(node_id)
        return process is not None and process.poll() is None

    def pid(self, node_id: str) -> int:
        """Return the process id of a started node."""
        return self._processes[node_id].pid

    def wait_ready(self, *node_ids: str, timeout_s: float = START_S) -> None:
        """Wait until the given nodes, or all, answer linearizable reads.

        Raises:
            RuntimeError: one has ended, or time is up; the message ends with its log's last lines.
        """
        deadline = time.monotonic() + timeout_s
        for node_id in node_ids or self.ids:
            while not self._ready(node_id):
                if not self.is_running(node_id) or time.monotonic() > deadline:
                    raise RuntimeError(f"node {node_id} is not ready:\n{self.log_tail(node_id)}")
                time.sleep(0.02)

    def _ready(self, node_id: str) -> bool:
        return get(f"{self.endpoint(node_id)}/readyz") is not None

    def log_tail(self, node_id: str, lines: int = 20) -> str:
        """Return the last lines of a node's log."""
        path = self.directory / f"{node_id}.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def state(self, node_id: str) -> dict[str, Any] | None:
        """Return ``/v1/cluster`` of a node, or None while it does not answer."""
        return get_json(f"{self.endpoint(node_id)}/v1/cluster")

    def leader(self, timeout_s: float = START_S) -> str:
        """Return the id of the node that leads now; waits for one. Raises RuntimeError after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for node_id in self.ids:
                if self.is_running(node_id) and (state := self.state(node_id)) and state["role"] == "leader":
                    return node_id
            time.sleep(0.02)
        raise RuntimeError("no leader:\n" + "\n".join(self.log_tail(node_id) for node_id in self.ids))

    def kill(self, *node_ids: str) -> None:
        """Kill nodes with SIGKILL, all at once, and wait until they are gone."""
        for node_id in node_ids or self.ids:
            if self.is_running(node_id):
                self._processes[node_id].send_signal(signal.SIGKILL)
        for node_id in node_ids or self.ids:
            if node_id in self._processes:
                self._processes[node_id].wait()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop all nodes in order with SIGTERM; kill what does not end in time."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Kill what runs. Idempotent."""
        self.kill()


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
