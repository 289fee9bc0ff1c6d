"""``oncegate dev``: a whole cluster on this machine in one command."""

from __future__ import annotations

import signal
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from oncegate.gateway.local.cluster import LocalCluster, NodeEnded
from oncegate.gateway.wire import DEFAULT_HTTP_PORT

if TYPE_CHECKING:
    from rich.console import Console


def dev(
    nodes: Annotated[int, typer.Option(min=1, max=7, help="how many nodes")] = 3,
    first_port: Annotated[
        int, typer.Option(help="HTTP port of the first node; 0 takes free ports")
    ] = DEFAULT_HTTP_PORT,
    data_dir: Annotated[Path | None, typer.Option(help="where the nodes keep their files [a temporary folder]")] = None,
) -> None:
    """Run a cluster on loopback until Ctrl-C, and print how to talk to it."""
    from rich.console import Console

    console = Console(stderr=True)
    # Arm it here, not when the cluster is ready: a stop during the start must not leave nodes behind.
    stop = _StopSignal()
    with tempfile.TemporaryDirectory(prefix="oncegate-dev-") as temporary:
        directory = data_dir or Path(temporary)
        with LocalCluster(directory, nodes, first_port=first_port or None) as cluster:
            taken = cluster.ports_in_use()
            if taken:
                console.print(f"oncegate dev: port {taken[0]} is in use; choose another --first-port", markup=False)
                raise typer.Exit(1)
            try:
                cluster.start()
                stop.arm()
                cluster.wait_ready()
                _show(console, cluster)
                threading.Event().wait()
            except (NodeEnded, TimeoutError) as fault:
                console.print(f"oncegate dev: {fault}", markup=False)
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                stop.disarm()
                cluster.stop()


def _show(console: Console, cluster: LocalCluster) -> None:
    from rich.table import Table

    leader = cluster.leader()
    table = Table("node", "http", "pid", "role", "log")
    for node_id in cluster.ids:
        role = "leader" if node_id == leader else "follower"
        log = str(cluster.directory / f"{node_id}.log")
        table.add_row(node_id, cluster.endpoint(node_id), str(cluster.pid(node_id)), role, log)
    console.print(table)
    console.print("Try:", style="bold")
    for line in curl_lines(cluster.endpoints[0]):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    console.print("Ctrl-C stops the cluster.")


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


class _StopSignal:
    """SIGTERM and SIGINT: always noted, raised as KeyboardInterrupt only while armed.

    Not while a node is being started: a process that is there and not registered yet would be left behind.
    """

    def __init__(self) -> None:
        self._asked = self._armed = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if self._armed:
            raise KeyboardInterrupt

    def arm(self) -> None:
        """Raise from now on, and at once if a signal came before."""
        self._armed = True
        if self._asked:
            raise KeyboardInterrupt

    def disarm(self) -> None:
        """Note only: what runs now ends by itself."""
        self._armed = False
