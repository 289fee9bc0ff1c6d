"""etcd: puts, and a transaction that makes a put duplicate-safe."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from bench.peers import packages
from bench.peers.peer import Case, Peer, local
from oncegate.gateway.local.blocking_http import get_json


class Etcd(Peer):
    """Three unmodified etcd processes."""

    name = "etcd"
    title = "etcd"
    version = "3.6.16"
    scheme = "http://"
    settings: ClassVar = {
        "log": "fdatasync before each answer, which is the default",
        "election, heartbeat": "1,000 and 100 ms, the defaults",
        "quota-backend-bytes": "8 GiB",
    }
    duplicates = "put: nothing. Transaction: a record of the key, until somebody deletes it"
    cases = (*(Case("put", n) for n in (1, 64, 512)), *(Case("txn", n) for n in (1, 64, 512)))
    kill_case = Case("txn", 64)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._program = packages.go_program(packages.HERE / "servers" / "etcd")
        self._peers = local(self.ports.peers, "http://")

    def command(self, name: str) -> list[str]:
        """Return the command line of a node."""
        at = self.nodes.index(name)
        flags = {
            "name": name,
            "data-dir": str(self.directory / name),
            "log-level": "error",
            "listen-client-urls": self.addresses[at],
            "advertise-client-urls": self.addresses[at],
            "listen-peer-urls": self._peers[at],
            "initial-advertise-peer-urls": self._peers[at],
            "initial-cluster": ",".join(f"{node}={url}" for node, url in zip(self.nodes, self._peers, strict=True)),
            "quota-backend-bytes": str(8 * 2**30),
        }
        return [str(self._program), *(f"--{flag}={value}" for flag, value in flags.items())]

    def is_ready(self) -> bool:
        """Whether all nodes are healthy."""
        answers = [get_json(f"{url}/health", 1.0) for url in self.addresses]
        return all(answer is not None and answer.get("health") == "true" for answer in answers)
