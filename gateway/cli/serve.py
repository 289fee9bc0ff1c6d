"""``oncegate serve``: run one node, without arguments a durable cluster of one on loopback. ``oncegate dev``: a whole
cluster on this machine in one command. ``oncegate token``: make a token.

The node's modules are imported when it starts: the other commands do not pay for them.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncegate.gateway.cli.output import checked, failed
from oncegate.gateway.cli.setting_flags import Config, with_setting_flags
from oncegate.gateway.local.cluster import LocalCluster, NodeEnded
from oncegate.gateway.node.setting import gather, unknown_variables
from oncegate.gateway.node.settings import PORT_MAX, SETTINGS, Settings
from oncegate.gateway.wire import DEFAULT_HTTP_PORT

if TYPE_CHECKING:
    from oncegate.gateway.node.fitness import Finding


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


@with_setting_flags
def serve(context: typer.Context, config: Config = None, **flags: Any) -> None:
    """Run one node until SIGTERM. A flag wins over a variable, a variable over the file."""
    import asyncio
    import gc
    import logging

    gc.disable()  # a tenth of the start: modules make objects by the hundred thousand, and none of them is garbage
    gathered = gather(SETTINGS, config, os.environ, flags)
    if gathered.faults:
        raise failed("; ".join(gathered.faults), 2)
    with checked():
        settings = Settings.of(gathered)
        # Before the modules that take most of the memory. What starts a node of another make knows its own log.
        found = fitness_of(settings) if context.obj is None else []
    if errors := [one.text for one in found if one.is_error]:
        raise failed("; ".join(errors), 2)
    from oncegate.consensus.errors import ConsensusError
    from oncegate.gateway.cli.start_check import make_data_dir, start_faults
    from oncegate.gateway.http.server import serve as run
    from oncegate.gateway.node.node import Node
    from oncegate.gateway.node.private_files import begin_private

    gc.enable()
    if faults := start_faults(settings):
        raise failed("; ".join(one.told(gathered) for one in faults), 2)
    _log_to_stderr(settings)
    for variable, _ in unknown_variables(SETTINGS, os.environ):
        logging.getLogger("oncegate").warning("%s is no setting: it has no effect", variable)
    for warning in found:
        logging.getLogger("oncegate").warning("%s", warning.text)
    sys.meta_path.insert(0, WithoutPandas())
    begin_private(settings)
    if refused := make_data_dir(settings):
        raise failed(refused.told(gathered), 2)
    try:
        asyncio.run(run(settings, context.obj or Node))
    except (ConsensusError, OSError) as fault:
        logging.getLogger("oncegate").critical("node %s cannot serve: %s", settings.node, fault)
        raise typer.Exit(1) from None


def fitness_of(settings: Settings) -> list[Finding]:
    """Return where settings do not fit each other or this machine; raises ValueError: it is not among the members."""
    from oncegate.gateway.node.fitness import findings
    from oncegate.gateway.node.host import host_of

    return list(findings(settings, host_of(settings.data_dir)))


def _log_to_stderr(settings: Settings) -> None:
    """One line an event on stderr, as ``log_format`` says."""
    import logging

    from oncegate.gateway.observability.logs import formatter
    from oncegate.gateway.observability.recent_lines import RECENT

    handler = logging.StreamHandler()
    handler.setFormatter(formatter(settings.log_format, settings.node))
    logging.basicConfig(level=settings.log_level, handlers=[handler, RECENT])


def token(
    name: Annotated[str, typer.Argument(help="what the token is called in logs; unique in the file")],
    tenant: Annotated[str, typer.Option(help="tenant of the token: sessions belong to a tenant")],
    scope: Annotated[
        list[str],
        typer.Option(help="read, write, flows or admin, with :PREFIX for tables that begin so; repeat for each"),
    ],
    expires_in: Annotated[str | None, typer.Option(help="refused after 90d, 12h and the like [never]")] = None,
) -> None:
    """Print an entry for tokens_file on stdout and the token, which is stored nowhere, on stderr."""
    from datetime import UTC, datetime, timedelta

    from oncegate.gateway.cli.flows import duration_ms
    from oncegate.gateway.http.auth import new_token

    with checked():
        lasts = None if expires_in is None else timedelta(milliseconds=duration_ms(expires_in))
        text, entry = new_token(name, tenant, scope, None if lasts is None else datetime.now(UTC) + lasts)
    print(entry)
    typer.echo(f"token (shown this once): {text}", err=True)


def dev(
    nodes: Annotated[int, typer.Option(min=1, max=7, help="how many nodes")] = 3,
    first_port: Annotated[
        int,
        typer.Option(min=0, max=PORT_MAX, help="HTTP port of the first node, two ports a node; 0 takes free ports"),
    ] = DEFAULT_HTTP_PORT,
    data_dir: Annotated[Path | None, typer.Option(help="where the nodes keep their files [a temporary folder]")] = None,
) -> None:
    """Run a cluster on loopback until Ctrl-C, and print how to talk to it."""
    if first_port + 2 * nodes - 1 > PORT_MAX:
        raise failed(
            f"{nodes} nodes need {2 * nodes} ports, and the last one is {PORT_MAX}: take a lower --first-port", 2
        )
    os.umask(0o077)  # data and logs are nobody else's to read
    # Arm it here, not when the cluster is ready: a stop during the start must not leave nodes behind.
    stop = _StopSignal()
    with tempfile.TemporaryDirectory(prefix="oncegate-dev-") as temporary:
        directory = data_dir or Path(temporary)
        with LocalCluster(directory, nodes, first_port=first_port or None) as cluster:
            taken = cluster.ports_in_use()
            if taken:
                typer.echo(f"oncegate dev: port {taken[0]} is in use; choose another --first-port", err=True)
                raise typer.Exit(1)
            try:
                cluster.start()
                stop.arm()
                cluster.wait_ready()
                _show(cluster)
                threading.Event().wait()
            except (NodeEnded, TimeoutError) as fault:
                typer.echo(f"oncegate dev: {fault}", err=True)
                raise typer.Exit(1) from None
            except KeyboardInterrupt:
                stop.disarm()
                cluster.stop()


def _show(cluster: LocalCluster) -> None:
    """Print the nodes and what to try: plain lines, which no terminal is too narrow for."""
    leader = cluster.leader()
    for node_id in cluster.ids:
        role = "leader" if node_id == leader else "follower"
        typer.echo(f"{node_id}  {cluster.endpoint(node_id)}  pid {cluster.pid(node_id)}  {role}", err=True)
    typer.echo(f"Data and logs: {cluster.directory}", err=True)
    typer.echo("Try:", err=True)
    for line in first_steps(cluster.endpoints):
        typer.echo(f"  {line}", err=True)
    typer.echo(f"In a browser: {cluster.endpoints[0]}/dashboard", err=True)
    typer.echo("Ctrl-C stops the cluster.", err=True)


def first_steps(endpoints: list[str]) -> list[str]:
    """Return shell commands that write and read a first row at the cluster at ``endpoints``."""
    return [
        f"export ONCEGATE_ENDPOINTS={','.join(endpoints)}",
        "oncegate table declare seats",
        "oncegate put seats 12A --text ann --if-absent",
        "oncegate get seats 12A",
    ]


class _StopSignal:
    """SIGTERM, SIGINT, SIGHUP of a terminal that closes: always noted, raised as KeyboardInterrupt only while armed.

    A SIGHUP that is ignored, as below ``nohup``, stays so.

    Not while a node is being started: a process that is there and not registered yet would be left behind.
    """

    def __init__(self) -> None:
        self._asked = self._armed = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
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
