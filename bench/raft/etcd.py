"""etcd beside us: three unmodified etcd processes and a closed loop of puts, in the same run on the same machine.

Needs Go (``bench/peers/etcd`` is built with the Go module proxy's etcd, once a run); without it the part is not
available. What counts is the ratio to our figure of the same run. etcd's load comes over gRPC from a process of its own
and ours is inside the leader's, so the ratio favours us by what a client costs.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from bench.raft.throughput import OPERATION_BYTES
from oncegate.gateway.local.ports import free_ports
from oncegate.gateway.local.processes import ProcessCluster
from oncegate.gateway.local.waiting import wait_for

SOURCE: Final = Path(__file__).parent.parent / "peers" / "etcd"
OUTSTANDING: Final = (1, 64, 512)
START_S: Final = 60.0


def build(directory: Path) -> Path | None:
    """Build the program, or return None where there is no Go or no etcd to be had; says why."""
    if shutil.which("go") is None:
        print("etcd: Go is not installed")
        return None
    program = directory / "etcdbench"
    built = subprocess.run(
        ["go", "build", "-o", str(program), "."], cwd=SOURCE, capture_output=True, text=True, check=False
    )
    if built.returncode:
        print(f"etcd: it does not build: {built.stderr.strip().splitlines()[-1]}")
        return None
    return program


def _serves(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(f"{endpoint}/health", timeout=2) as answer:
            return bool(json.load(answer)["health"] == "true")
    except (OSError, urllib.error.URLError, ValueError):
        return False


class EtcdCluster(ProcessCluster):
    """Three etcd processes."""

    def __init__(self, directory: Path, program: Path) -> None:
        super().__init__(directory)
        self._program = program
        urls = [f"http://127.0.0.1:{port}" for port in free_ports(6)]
        self.clients = {f"e{i + 1}": urls[i] for i in range(3)}
        self._peers = {f"e{i + 1}": urls[3 + i] for i in range(3)}

    @property
    def ids(self) -> list[str]:
        """Names of the processes."""
        return list(self.clients)

    def command(self, name: str) -> list[str]:
        """The command line of one."""
        client, peer = self.clients[name], self._peers[name]
        flags = {
            "name": name,
            "data-dir": str(self.directory / name),
            "log-level": "error",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"{other}={url}" for other, url in self._peers.items()),
            "quota-backend-bytes": str(8 * 2**30),
        }
        return [str(self._program), "server", *(word for flag in flags.items() for word in (f"--{flag[0]}", flag[1]))]


def run(directory: Path, *, seconds: float) -> list[dict[str, Any]] | None:
    """Measure puts of 200 bytes at 1, 64 and 512 outstanding; None where etcd cannot be built."""
    program = build(directory)
    if program is None:
        return None
    rows = []
    with EtcdCluster(directory / "etcd", program) as cluster:
        cluster.start()
        clients = list(cluster.clients.values())
        wait_for(lambda: all(map(_serves, clients)), START_S, "etcd is healthy", state=lambda: cluster.log_tail("e1"))
        for outstanding in OUTSTANDING:
            asked = [str(program), "load", ",".join(clients), str(outstanding), str(seconds), str(OPERATION_BYTES)]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True)
            rows.append({"outstanding": outstanding, **json.loads(answer.stdout)})
    return rows
