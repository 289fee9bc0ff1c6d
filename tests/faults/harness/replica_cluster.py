"""Bare replicas as processes, each pair joined through :class:`~oncegate.proof.check.links.Links`.

Owns: their addresses and settings. Processes are :mod:`oncegate.gateway.local.processes`'s business, what they say to
clients is :mod:`tests.faults.harness.raw_client`'s.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import ProcessCluster
from oncegate.proof.check.links import Links
from oncegate.proof.check.proxy import Address

KIB: Final = 1024
SMALL: Final[dict[str, Any]] = {
    "command_bytes_max": 256 * KIB,
    "append_bytes_max": 64 * KIB,
    "journal_segment_bytes": 1024 * KIB,
}
"""Settings under which segments roll within a test."""


class ReplicaCluster(ProcessCluster):
    """Processes of one cluster. Closing kills what still runs.

    Args:
        directory: data of node ``n`` goes to ``directory/n``, its log to ``directory/n.log``.
        nodes: how many.
        linked: peers reach each other through proxies; else directly.
        config: settings of :class:`oncegate.consensus.ReplicaConfig`.
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
        super().__init__(directory, environment=environment)
        ports = free_ports(2 * nodes)
        names = [f"n{number + 1}" for number in range(nodes)]
        self.listening: dict[str, Address] = {n: ("127.0.0.1", ports[i]) for i, n in enumerate(names)}
        self.clients: dict[str, Address] = {n: ("127.0.0.1", ports[nodes + i]) for i, n in enumerate(names)}
        self.links = Links(self.listening, seed=seed) if linked else None
        self.config = dict(config)
        self._record = record
        self._module = module
        self.prefix = dict(prefix or {})
        self.places: dict[str, Path] = {}
        """Data directories that are elsewhere."""

    @property
    def ids(self) -> list[str]:
        """Names of the nodes."""
        return list(self.listening)

    def data(self, node: str) -> Path:
        """The node's data directory."""
        return self.places.get(node, self.directory / node)

    def command(self, name: str) -> list[str]:
        """The command line of a node."""
        peers = {peer: address for peer, address in self.listening.items() if peer != name}
        if self.links is not None:
            peers = {peer: ("127.0.0.1", self.links.port(peer)) for peer in peers}
        settings = {
            "name": name,
            "listen": self.listening[name],
            "peers": peers,
            "client": self.clients[name],
            "directory": str(self.data(name)),
            "config": self.config,
            "record": self._record,
        }
        return [*self.prefix.get(name, ()), sys.executable, "-m", self._module, json.dumps(settings)]

    def close(self) -> None:
        """Kill what runs, close the links; idempotent."""
        super().close()
        if self.links is not None:
            self.links.close()
