"""NATS JetStream: messages with an id in a stream of three replicas, flushed always."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from bench.peers import packages
from bench.peers.peer import Case, Peer, local
from oncegate.gateway.local.blocking_http import get


class Nats(Peer):
    """Three nats-server processes with one stream."""

    name = "nats"
    title = "NATS JetStream"
    version = "2.15.2"
    scheme = "nats://"
    file = "{}.conf"
    settings: ClassVar = {
        "sync_interval": "always; the default flushes every two minutes",
        "stream": "file, R3, duplicates are known for two minutes",
    }
    duplicates = "the message id, for two minutes"
    cases = (*(Case("sync", n) for n in (1, 64, 512)), Case("async", 4096))
    kill_case = Case("sync", 64)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._program = packages.go_program(packages.HERE / "servers" / "nats", "github.com/nats-io/nats-server/v2")

    def configuration(self, name: str) -> list[str]:
        """Return the configuration file of a node."""
        at = self.nodes.index(name)
        return [
            f"server_name: {name}",
            f"listen: 127.0.0.1:{self.ports.clients[at]}",
            f"http: 127.0.0.1:{self.ports.third[at]}",
            "jetstream {",
            f"  store_dir: {json.dumps(str(self.directory / name))}",
            "  sync_interval: always",
            "}",
            "cluster {",
            "  name: bench",
            f"  listen: 127.0.0.1:{self.ports.peers[at]}",
            f"  routes: {json.dumps(local(self.ports.peers, 'nats://'))}",
            "}",
        ]  # fmt: skip

    def command(self, name: str) -> list[str]:
        """Return the command line of a node."""
        return [str(self._program), "-c", str(self.file_of(name))]

    def is_ready(self) -> bool:
        """Whether all nodes are healthy, JetStream included."""
        return all(get(f"{url}/healthz", 1.0) is not None for url in local(self.ports.third, "http://"))
