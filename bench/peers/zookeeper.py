"""ZooKeeper: nodes that are created; the name makes them duplicate-safe."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import ClassVar

from bench.peers import packages
from bench.peers.peer import Case, Peer


class ZooKeeper(Peer):
    """Three ZooKeeper servers."""

    name = "zookeeper"
    title = "ZooKeeper"
    version = "3.9.5"
    file = "{}.cfg"
    settings: ClassVar = {
        "forceSync": "yes, the default: the log is flushed before each answer",
        "tickTime, initLimit, syncLimit": "2,000 ms, 10, 5, as in its sample",
        "heap": "1,000 MB, its default",
    }
    duplicates = "the node's name, until somebody deletes it"
    cases = tuple(Case("create", n) for n in (1, 64, 512))
    prime_s = 6.0
    kill_case = Case("create", 64)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._jars = packages.maven_jars(packages.HERE / "servers" / "zookeeper")

    def configuration(self, name: str) -> list[str]:
        """Return the configuration file of a server."""
        of = self.ports
        servers = [f"server.{at + 1}=127.0.0.1:{of.peers[at]}:{of.third[at]}" for at in range(len(self.nodes))]
        return [
            "tickTime=2000",
            "initLimit=10",
            "syncLimit=5",
            "forceSync=yes",
            f"dataDir={self.directory / name}",
            f"clientPort={of.clients[self.nodes.index(name)]}",
            "clientPortAddress=127.0.0.1",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *servers,
        ]  # fmt: skip

    def configure(self) -> None:
        """Write the configuration files, and each server's number where it looks for it."""
        super().configure()
        for at, name in enumerate(self.nodes):
            (self.directory / name).mkdir()
            (self.directory / name / "myid").write_text(f"{at + 1}\n")

    def command(self, name: str) -> list[str]:
        """Return the command line of a server."""
        program = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", "-Xmx1000m", "-cp", f"{self._jars}/*", program, str(self.file_of(name))]

    def is_ready(self) -> bool:
        """Whether all servers lead or follow."""
        return all(b"Mode: " in _srvr(port) for port in self.ports.clients)


def _srvr(port: int) -> bytes:
    """Return what a server says of itself; nothing while it is down."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return connection.makefile("rb").read()
    except OSError:
        return b""
