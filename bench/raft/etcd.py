"""etcd beside us: three unmodified etcd processes and a closed loop of puts, in the same run on the same machine.

Needs Go (``bench/peers/etcd`` is built with the Go module proxy's etcd, once a run); without it the part is not
available. What counts is the ratio to our figure of the same run. etcd's load comes over gRPC from a process of its own
and ours is inside the leader's, so the ratio favours us by what a client costs.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from bench.raft.throughput import OPERATION_BYTES
from oncegate.gateway.local.cluster import free_ports

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


def run(directory: Path, *, seconds: float) -> list[dict[str, Any]] | None:
    """Measure puts of 200 bytes at 1, 64 and 512 outstanding; None where etcd cannot be built."""
    program = build(directory)
    if program is None:
        return None
    ports = free_ports(6)
    names = ["e1", "e2", "e3"]
    clients = [f"http://127.0.0.1:{port}" for port in ports[:3]]
    peers = [f"http://127.0.0.1:{port}" for port in ports[3:]]
    members = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
    nodes = []
    try:
        for name, client, peer in zip(names, clients, peers, strict=True):
            flags = {
                "name": name,
                "data-dir": str(directory / f"etcd-{name}"),
                "log-level": "error",
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": members,
                "quota-backend-bytes": str(8 * 2**30),
            }
            words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
            log = (directory / f"etcd-{name}.log").open("wb")
            nodes.append(subprocess.Popen([str(program), "server", *words], stdout=log, stderr=log))
            log.close()
        deadline = time.monotonic() + START_S
        while not all(map(_serves, clients)):
            if time.monotonic() > deadline:
                raise RuntimeError("etcd does not become healthy: " + (directory / "etcd-e1.log").read_text()[-500:])
            time.sleep(0.1)
        rows = []
        for outstanding in OUTSTANDING:
            asked = [str(program), "load", ",".join(clients), str(outstanding), str(seconds), str(OPERATION_BYTES)]
            answer = subprocess.run(asked, capture_output=True, text=True, check=True)
            rows.append({"outstanding": outstanding, **json.loads(answer.stdout)})
        return rows
    finally:
        for node in nodes:
            os.kill(node.pid, signal.SIGKILL)
            node.wait()
