"""Bare replicas as processes, each pair joined through :class:`~oncegate.proof.check.links.Links`.

Owns the processes: start, kill -9, SIGSTOP, SIGTERM, exit status, log. What they say to clients is
:mod:`tests.faults.harness.raw_client`'s business.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from oncegate.gateway.local.cluster import free_ports, spawn
from oncegate.proof.check.links import Links
from oncegate.proof.check.proxy import Address

KIB: Final = 1024
SMALL: Final[dict[str, Any]] = {
    "command_bytes_max": 256 * KIB,
    "append_bytes_max": 64 * KIB,
    "journal_segment_bytes": 1024 * KIB,
}
"""Settings under which segments roll within a test."""
ENDED_S: Final = 30.0


class ReplicaCluster:
    """Processes of one cluster. Closing kills what still runs.

    Args:
        directory: data of node ``n`` goes to ``directory/n``, its log to ``directory/n.log``.
        nodes: how many.
        linked: peers reach each other through proxies; else directly.
        config: settings of :class:`consensus.ReplicaConfig`.
        record: the state machine remembers everything; else nothing.
        module: what to run with ``python -m``.
        environment: further environment variables of the nodes.
        prefix: the words of a command that runs the node's process, before its own words.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        linked: bool = True,
        config: Mapping[str, Any] = SMALL,
        record: bool = True,
        module: str = "tests.faults.harness.replica_process",
        environment: Mapping[str, str] | None = None,
        prefix: Mapping[str, Sequence[str]] | None = None,
        seed: int = 0,
    ) -> None:
        ports = free_ports(2 * nodes)
        self.directory = directory
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.listening: dict[str, Address] = {n: ("127.0.0.1", ports[i]) for i, n in enumerate(self.names)}
        self.clients: dict[str, Address] = {n: ("127.0.0.1", ports[nodes + i]) for i, n in enumerate(self.names)}
        self.links = Links(self.listening, seed=seed) if linked else None
        self.config = dict(config)
        self._record = record
        self._module = module
        self._environment = {**os.environ, **(environment or {})}
        self.prefix = dict(prefix or {})
        self.places: dict[str, Path] = {}
        """Data directories that are elsewhere."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._frozen: set[str] = set()

    def data(self, node: str) -> Path:
        """The node's data directory."""
        return self.places.get(node, self.directory / node)

    def start(self, *names: str) -> None:
        """Start these nodes, or all that do not run. Does not wait for them."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in names or self.names:
            if self.is_running(name):
                continue
            self._processes[name] = spawn(self.command(name), self.directory / f"{name}.log", self._environment)

    def command(self, name: str) -> list[str]:
        """The command line of a node."""
        links = self.links
        peers = {peer: address for peer, address in self.listening.items() if peer != name}
        settings = {
            "name": name,
            "listen": self.listening[name],
            "peers": links.addresses(name, self.listening) if links is not None else peers,
            "client": self.clients[name],
            "directory": str(self.data(name)),
            "config": self.config,
            "record": self._record,
        }
        return [*self.prefix.get(name, ()), sys.executable, "-m", self._module, json.dumps(settings)]

    def is_running(self, name: str) -> bool:
        """Whether the process lives (it may be frozen)."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def pid(self, name: str) -> int:
        """Process id of a started node."""
        return self._processes[name].pid

    def kill(self, *names: str) -> None:
        """SIGKILL, all at once; wait until they are gone."""
        chosen = [self._processes[name] for name in names or self.names if name in self._processes]
        for process in chosen:
            if process.poll() is None:
                # The session: with a prefix the node is a child of what was started.
                os.killpg(process.pid, signal.SIGKILL)
        for process in chosen:
            process.wait(ENDED_S)
        self._frozen.difference_update(names or self.names)

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        os.killpg(self.pid(name), signal.SIGSTOP)
        self._frozen.add(name)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        os.killpg(self.pid(name), signal.SIGCONT)
        self._frozen.discard(name)

    def stop(self, *names: str) -> None:
        """SIGTERM, all at once; wait for the orderly end."""
        chosen = [self._processes[name] for name in names or self.names if self.is_running(name)]
        for process in chosen:
            process.terminate()
        for process in chosen:
            process.wait(ENDED_S)

    def wait_ended(self, name: str) -> tuple[int, str]:
        """Wait until the node has ended by itself; returns its exit status and its log."""
        status = self._processes[name].wait(ENDED_S)
        return status, self.log(name)

    def log(self, name: str) -> str:
        """What the node has said in all its lives."""
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close(self) -> None:
        """Kill what runs, close the links; idempotent."""
        self.kill()
        if self.links is not None:
            self.links.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
