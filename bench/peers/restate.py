"""Restate: a virtual object for each key, whose handler sets its state; the ingress takes an idempotency key."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, ClassVar, Final

from bench.peers import packages
from bench.peers.peer import Case, Peer, Standing, local
from oncegate.gateway.local.blocking_http import get
from oncegate.gateway.local.ports import free_ports

SERVER: Final = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
ASK_S: Final = 5.0
PARTITIONS: Final = 4
REPLICATION: Final = 2
_LEADERS: Final = "restate_num_active_partition_leaders"
_RUNNING: Final = "restate_num_active_partitions"


class Restate(Peer):
    """Three Restate nodes in all roles, and a process of Node with the handler, which counts as a client."""

    name = "restate"
    title = "Restate"
    version = "1.7.12"
    scheme = "http://"
    file = "{}.toml"
    settings: ClassVar = {
        "default-replication": "2: of three nodes two hold each record, flushed (rocksdb-disable-wal-fsync = false)",
        "default-num-partitions": f"{PARTITIONS}",
        "handler": "TypeScript SDK 1.17.2, sets one state; its process counts as a client",
    }
    duplicates = "the idempotency key, for a day"
    cases = tuple(Case("put", n) for n in (1, 64, 512))
    prime_s = 3.0
    kill_case = Case("put", 64)
    helpers = ("handler",)
    environment: ClassVar = {"RESTATE_LOGGING": "ERROR"}

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._folder = packages.npm_packages(packages.HERE / "servers" / "restate")
        self._admin, (self._handler,) = local(free_ports(3), "http://"), free_ports(1)
        self._registered = False

    def configuration(self, name: str) -> list[str]:
        """Return the configuration file of a node."""
        at = self.nodes.index(name)
        own = local(self.ports.peers)[at]
        return [
            'roles = ["http-ingress", "admin", "worker", "log-server", "metadata-server"]',
            'cluster-name = "bench"',
            f'node-name = "{name}"',
            f"force-node-id = {at + 1}",
            f"base-dir = {json.dumps(str(self.directory / name))}",
            f'bind-address = "{own}"',
            f'advertised-address = "http://{own}"',
            f"auto-provision = {'true' if at == 0 else 'false'}",
            f"default-replication = {REPLICATION}",
            f"default-num-partitions = {PARTITIONS}",
            'listen-mode = "tcp"',
            "disable-telemetry = true",
            'log-filter = "warn"',
            "log-disable-ansi-codes = true",
            'rocksdb-total-memory-size = "1.0 GiB"',
            "[metadata-client]",
            'type = "replicated"',
            f"addresses = {json.dumps(local(self.ports.peers, 'http://'))}",
            "[log-server]",
            "rocksdb-disable-wal-fsync = false",
            "[bifrost]",
            'default-provider = "replicated"',
            "[ingress]",
            f'bind-address = "127.0.0.1:{self.ports.clients[at]}"',
            "[admin]",
            f'bind-address = "{self._admin[at].removeprefix("http://")}"',
        ]  # fmt: skip

    def command(self, name: str) -> list[str]:
        """Return the command line of a node or of the handler."""
        if name in self.helpers:
            return ["node", "--import", str(self._folder / "resolvers.mjs"), str(self._folder / "handler.mjs"),
                    str(self._handler)]  # fmt: skip
        return [str(self._folder / SERVER), "--no-logo", "-c", str(self.file_of(name))]

    def is_ready(self) -> bool:
        """Whether the handler is registered, every partition has a leader, and each node takes a request."""
        if not self._registered:
            body = {"uri": f"http://127.0.0.1:{self._handler}", "force": True}
            self._registered = _post(f"{self._admin[0]}/deployments", body) is not None
        standing = self.standing()
        if not self._registered or standing is None or standing.in_sync < len(self.nodes):
            return False
        return all(_post(f"{url}/kv/ready/put", "ready") is not None for url in self.addresses)

    def standing(self) -> Standing | None:
        """Return the node that leads the most partitions; nobody keeps up while a partition runs on too few nodes."""
        said = {node: _gauges(url) for node, url in zip(self.nodes, local(self.ports.peers, "http://"), strict=True)}
        leads = {node: gauges.get(_LEADERS, 0.0) for node, gauges in said.items()}
        if sum(leads.values()) < PARTITIONS:
            return None
        runs = sum(gauges.get(_RUNNING, 0.0) for gauges in said.values())
        answering = sum(1 for gauges in said.values() if gauges)
        leader = max(leads, key=lambda node: leads[node])
        return Standing(leader, answering if runs >= REPLICATION * PARTITIONS else 0)

    def steady_command(self) -> list[str]:
        """Return the command of the load that goes on through kills; it reads back over a node's queries."""
        return [*super().steady_command(), "-admin", self._admin[0]]


def _gauges(url: str) -> dict[str, float]:
    """Return the metrics of a node without their labels, the last of each name; none while it is down."""
    lines = (get(f"{url}/metrics", 1.0) or b"").decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name.split("{", 1)[0]: float(value) for name, value in pairs if name.startswith((_LEADERS, _RUNNING))}


def _post(url: str, body: object) -> Any:
    """Return the JSON of a successful answer, or None."""
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            return json.loads(answer.read())
    except (OSError, urllib.error.URLError, ValueError):
        return None
