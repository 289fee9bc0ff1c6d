"""``oncegate debug bundle``: what whoever looks for a fault wants to see of a cluster, in one file, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask_cluster
from oncegate.gateway.cli.cluster_state import followed
from oncegate.gateway.cli.output import failed, say
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, credentials_in_force, download
from oncegate.version import __version__

debug = typer.Typer(help="Help with a fault: bundle.", no_args_is_help=True)
_OF_A_NODE: Final = {
    "cluster.json": "/v1/cluster",
    "ready.txt": "/readyz",
    "metrics.txt": "/metrics",
    "debug.json": "/v1/debug",
    "check.json": "/v1/check",
    "flows.json": "/v1/flows?consistency=stale",
    "tables.json": "/v1/tables?consistency=stale",
}
"""The files of a node, by what it is asked."""
_ASK_S: Final = 15.0


@debug.callback()
def _group() -> None:
    """Help with a fault."""


@debug.command()
def bundle(
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    file: Annotated[Path | None, typer.Option(help="where to write it [oncegate-debug-TIME.tar.gz]")] = None,
) -> None:
    """Ask every node for its state, metrics, settings, versions, stacks and log; needs the scope admin for all of it.

    A node that does not answer is in the bundle with its error. Look at it before you send it: it names tables, flows,
    tokens and addresses.
    """
    from oncegate.gateway.observability.redaction import redacted

    into = file or Path(f"oncegate-debug-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    known = _own_secrets()
    try:
        with tarfile.open(into, "x:gz") as archive:
            for name, content in _contents(endpoint):
                data = redacted(content, known).encode(errors="backslashreplace")
                member = tarfile.TarInfo(f"oncegate-debug/{name}")
                member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(data))
    except FileExistsError:
        raise failed(f"{into} is there already", 2) from None
    into.chmod(0o600)
    typer.echo(str(into))


def _contents(endpoint: str) -> Iterator[tuple[str, str]]:
    """Yield the files of the bundle, by name."""
    own = {
        "made": datetime.now(UTC).isoformat(),
        "command": f"oncegate {__version__}",
        "python": sys.version,
        "platform": platform.platform(),
        "endpoint": endpoint,
        "variables": sorted(name for name in os.environ if name.startswith("ONCEGATE_")),
    }
    yield "bundle.json", json.dumps(own, indent=1)
    for member in ask_cluster(endpoint)["members"]:
        say(f"asking {member['id']} at {member['http']}", err=True)
        for name, path in _OF_A_NODE.items():
            try:
                answer = download(followed(endpoint, member["http"]) + path, _ASK_S).decode(errors="replace")
            except (RequestRefused, Unreachable) as fault:
                answer = f"no answer: {fault}"
            yield f"{member['id']}/{name}", answer


def _own_secrets() -> list[str]:
    """Return what this command was given in secret."""
    token, file, _ = credentials_in_force()
    found = [os.environ.get("ONCEGATE_TOKEN", ""), token or ""]
    with suppress(OSError, ValueError):  # the first request says what is wrong with it
        if file:
            found.append(Path(file).read_text().strip())
    return found
