"""``oncegate serve``: run one node, without arguments a durable cluster of one on loopback. ``oncegate dev``: a whole
cluster on this machine in one command. ``oncegate token``: make a token.

The node's modules are imported when it starts: the other commands do not pay for them.
"""

from __future__ import annotations

import inspect
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncegate.gateway.cli.output import failed
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.local.cluster import LocalCluster, NodeEnded
from oncegate.gateway.node.setting import Setting
from oncegate.gateway.node.settings import SETTINGS
from oncegate.gateway.wire import DEFAULT_HTTP_PORT

if TYPE_CHECKING:
    from rich.console import Console

    from oncegate.gateway.node.settings import Settings


class WithoutPandas(MetaPathFinder):
    """Keeps pandas out of a node's process, which makes no use of it.

    pyarrow imports it with the first list that it converts, only to recognise its types: half of the processor time
    that a start takes.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Refuse pandas; the other finders are asked for everything else."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a node makes no use of pandas", name=fullname)
        return None


def serve(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option(envvar="ONCEGATE_CONFIG", help="TOML file with settings")] = None,
    **flags: Any,
) -> None:
    """Run one node until SIGTERM. A flag wins over a variable, a variable over the file."""
    import asyncio
    import gc
    import logging

    gc.disable()  # a tenth of the start: modules make objects by the hundred thousand, and none of them is garbage
    from oncegate.consensus.errors import ConsensusError
    from oncegate.gateway.http.auth import Tokens
    from oncegate.gateway.http.server import check_exposure, server_context
    from oncegate.gateway.http.server import serve as run
    from oncegate.gateway.node.node import Node, replica_config
    from oncegate.gateway.node.settings import Settings

    gc.enable()
    try:
        settings = Settings.load(config, **flags)
        replica_config(settings)
        check_exposure(settings)
        server_context(settings)
        if settings.tokens_file is not None:
            Tokens(settings.tokens_file)
    except (ValueError, OSError) as fault:
        raise failed(fault, 2) from None
    _log_to_stderr(settings)
    sys.meta_path.insert(0, WithoutPandas())
    try:
        asyncio.run(run(settings, context.obj or Node))
    except (ConsensusError, OSError) as fault:
        logging.getLogger("oncegate").critical("node %s cannot serve: %s", settings.node, fault)
        raise typer.Exit(1) from None


def _parameter(one: Setting) -> inspect.Parameter:
    """Return the parameter of :func:`serve` from which typer makes a setting's flag; None: not given."""
    if one.kind is bool:
        option = typer.Option(one.flag, help=one.text)  # a single name: there is no --no-… beside it
    else:
        option = typer.Option(one.flag, help=f"{one.text} [{one.default_words}]", show_default=False)
    kind = list[str] if one.kind is list else one.kind
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _declare_flags() -> None:
    written = inspect.signature(serve, eval_str=True)
    flags = [_parameter(one) for one in SETTINGS.values()]
    signature = written.replace(parameters=[written.parameters["context"], written.parameters["config"], *flags])
    serve.__signature__ = signature  # type: ignore[attr-defined]


_declare_flags()


def _log_to_stderr(settings: Settings) -> None:
    """One line an event on stderr: time in UTC, level, message, logger."""
    import logging

    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ [%(levelname)s] %(message)s [%(name)s]", datefmt="%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=settings.log_level, handlers=[handler])


def token(
    name: Annotated[str, typer.Argument(help="what the token is called in logs; unique in the file")],
    tenant: Annotated[str, typer.Option(help="tenant of the token: sessions belong to a tenant")],
    scope: Annotated[list[Scope], typer.Option(help="what it allows; repeat for each")],
) -> None:
    """Print an entry for tokens_file on stdout and the token, which is stored nowhere, on stderr."""
    from oncegate.gateway.http.auth import new_token

    try:
        text, entry = new_token(name, tenant, scope)
    except ValueError as fault:
        raise failed(fault, 2) from None
    print(entry)
    typer.echo(f"token (shown this once): {text}", err=True)


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
    table = Table("node", "http", "pid", "role")
    table.add_column("log", overflow="fold")
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
