"""A cluster of one to three nodes in one directory: start, stop, kill, and a context manager for tests.

Owns: the directory, and what the nodes must agree on before the cluster counts as up. Read next: `node`.
"""

from __future__ import annotations

import json
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from oncegate.stores.devcassandra.jars import cache_directory
from oncegate.stores.devcassandra.node import CassandraNode, Config, Probe
from oncegate.stores.errors import StoreCode, StoreError

_POLL_S: Final = 0.1
_SETTLE_S_MAX: Final = 120.0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The present state of one node; ``version`` is None when it does not answer."""

    number: int
    address: str
    pid: int | None
    version: str | None
    resident_mib: float


class DevCluster:
    """The cluster in a directory, which holds data, logs and `config.json`; ``config`` None: the one kept there.

    Raises BAD_OPTION when the directory holds a cluster of another number of nodes, or none and no config is given.
    """

    def __init__(self, home: Path, config: Config | None = None) -> None:
        self.home = home.absolute()
        kept = self.home / "config.json"
        known = Config(**json.loads(kept.read_text())) if kept.exists() else None
        if config is not None and known is not None and config.nodes != known.nodes:
            raise StoreError(StoreCode.BAD_OPTION, f"{self.home} holds a cluster of {known.nodes} nodes: wipe it first")
        chosen = config or known
        if chosen is None:
            raise StoreError(StoreCode.BAD_OPTION, f"{self.home} holds no cluster: bring one up first")
        self.config = chosen
        self.nodes = [CassandraNode(self.home, number, chosen) for number in range(1, chosen.nodes + 1)]

    def up(self, answered: Callable[[float], None] = lambda _: None) -> None:
        """Start all nodes and wait until each answers and all know each other; idempotent; raises CLUSTER_FAILED.

        ``answered`` is called with 1 for each node that answers.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "config.json").write_text(json.dumps(asdict(self.config), indent=1) + "\n")
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_ready()
            answered(1)
        self._wait_settled()

    def start(self, number: int) -> None:
        """Start one node and wait until it answers."""
        self._node(number).spawn()
        self._node(number).wait_ready()

    def stop(self, number: int) -> bool:
        """Stop one node cleanly; False when it was not running."""
        return self._node(number).stop()

    def kill(self, number: int) -> bool:
        """Kill one node with SIGKILL and wait until it is gone; False when it was not running."""
        return self._node(number).stop(signal.SIGKILL)

    def down(self) -> None:
        """Stop all nodes cleanly."""
        for node in self.nodes:
            node.stop()

    def wipe(self) -> None:
        """Kill all nodes and remove the directory; the jars stay."""
        for node in self.nodes:
            node.stop(signal.SIGKILL)
        shutil.rmtree(self.home, ignore_errors=True)

    def status(self) -> list[NodeStatus]:
        """Return what is known of each node."""
        return [
            NodeStatus(
                node.number,
                f"{node.host}:{self.config.native_port}",
                node.pid(),
                node.version() if node.pid() is not None else None,
                node.resident_mib(),
            )
            for node in self.nodes
        ]

    def url(self, keyspace: str) -> str:
        """Return the URL of a store in a keyspace of this cluster."""
        hosts = ",".join(f"{node.host}:{self.config.native_port}" for node in self.nodes)
        return f"cassandra://{hosts}/{keyspace}"

    def _node(self, number: int) -> CassandraNode:
        if not 1 <= number <= len(self.nodes):
            raise StoreError(StoreCode.BAD_OPTION, f"nodes are 1..{len(self.nodes)}")
        return self.nodes[number - 1]

    def _wait_settled(self) -> None:
        """Wait until every node knows every other one, and all have one version of the schema."""
        end = time.monotonic() + _SETTLE_S_MAX
        while time.monotonic() < end:
            try:
                if self._settled():
                    return
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise StoreError(StoreCode.CLUSTER_FAILED, "the nodes run, but do not agree on the ring and the schema")

    def _settled(self) -> bool:
        schemas = set()
        for node in self.nodes:
            with Probe(node.host, self.config) as probe:
                peers = probe.rows("SELECT schema_version FROM system.peers_v2")
                own = probe.rows("SELECT schema_version FROM system.local")
            if len(peers) != len(self.nodes) - 1:
                return False
            schemas |= {row[0] for row in peers + own}
        return len(schemas) == 1


@contextmanager
def running(config: Config | None = None, home: Path | None = None) -> Iterator[DevCluster]:
    """Yield a cluster that is up, by default one node on free ports in a temporary directory; remove it at the end."""
    with ExitStack() as stack:
        if home is None:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="oncegate-cassandra-")))
        cluster = DevCluster(home, config or free_ports(Config()))
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.wipe()


def free_ports(config: Config) -> Config:
    """Return the configuration with ports that are free now on all its addresses."""
    with ExitStack() as stack:
        ports = []
        for _ in range(3):
            sockets = [stack.enter_context(socket.socket()) for _ in range(config.nodes)]
            sockets[0].bind(("127.0.0.1", 0))
            port = sockets[0].getsockname()[1]
            for number, other in enumerate(sockets[1:], start=2):
                other.bind((f"127.0.0.{number}", port))
            ports.append(port)
    native, storage, jmx = ports
    return replace(config, native_port=native, storage_port=storage, jmx_port=jmx)


def default_home() -> Path:
    """Return where the command line keeps its cluster."""
    return cache_directory() / "cassandra-dev"
