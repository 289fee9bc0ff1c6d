"""``oncegate dev``: a whole cluster on this machine in one command."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.local_cluster import LocalCluster
from gateway.config import DEFAULT_HTTP_PORT


def dev(
    nodes: Annotated[int, typer.Option(min=1, max=7, help="how many nodes")] = 3,
    first_port: Annotated[
        int, typer.Option(help="HTTP port of the first node; 0 takes free ports")
    ] = DEFAULT_HTTP_PORT,
    data_dir: Annotated[Path | None, typer.Option(help="where the nodes keep their files [a temporary folder]")] = None,
) -> None:
    """Run a cluster on loopback until Ctrl-C, and print how to talk to it."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="oncegate-dev-") as temporary:
        directory = data_dir or Path(temporary)
        with LocalCluster(directory, nodes, first_port=first_port or None) as cluster:
            cluster.start()
            try:
                cluster.wait_ready()
            except RuntimeError as fault:
                console.print(f"oncegate dev: {fault}", markup=False)
                raise typer.Exit(1) from None
            leader = cluster.leader()
            table = Table("node", "http", "pid", "role", "log")
            for node_id in cluster.ids:
                role = "leader" if node_id == leader else "follower"
                log = str(directory / f"{node_id}.log")
                table.add_row(node_id, cluster.endpoint(node_id), str(cluster.pid(node_id)), role, log)
            console.print(table)
            http = cluster.endpoints[0]
            console.print("Try:", style="bold")
            for line in curl_lines(http):
                console.print(f"  {line}", markup=False, soft_wrap=True)
            console.print("Ctrl-C stops the cluster.")
            _until_signal()
            cluster.stop()


def curl_lines(http: str) -> list[str]:
    """Return curl commands that show the exactly-once path on the cluster at ``http``."""
    body = "-H 'content-type: application/json' -d"
    put = '{"sequence":1,"op":"put","table":"seats","key":"12A","value":"ann","if":{"absent":true}}'
    request = f'{{"client_id":"$ID","epoch":1,"first_incomplete":1,"operations":[{put}]}}'
    quoted = request.replace('"', '\\"')
    return [
        f'curl -s -X PUT {http}/v1/tables/seats {body} \'{{"kind":"resident"}}\'',
        f"ID=$(curl -s -X POST {http}/v1/sessions {body} '{{\"nonce\":\"me-1\"}}' | grep -oE '[0-9a-f]{{16}}')",
        f'curl -s -X POST {http}/v1/operations {body} "{quoted}"   # again: the same answer, replayed',
        f"curl -s {http}/v1/tables/seats/rows/12A",
        f"curl -s {http}/v1/cluster",
    ]


def _until_signal() -> None:
    done = threading.Event()

    def _stop(number: int, frame: FrameType | None) -> None:
        done.set()

    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    done.wait()
