"""``oncegate member`` and ``oncegate leader``: change the cluster while it serves."""

from __future__ import annotations

from typing import Annotated

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, unreachable
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, get_json, send_json
from oncegate.gateway.node.settings import MemberAddress

member = typer.Typer(help="Members of the cluster: add, remove.", no_args_is_help=True)
leader = typer.Typer(help="Leadership of the cluster: move.", no_args_is_help=True)
_ADD_S = 75.0
_CHANGE_S = 30.0


@member.command()
def add(
    new: Annotated[str, typer.Argument(help="the new node as id=host:http_port:peer_port")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Add a node: it receives the log as a learner and votes once it has caught up. Prints how to start it."""
    try:
        address = MemberAddress.parse(new)
    except ValueError as fault:
        typer.echo(f"oncegate: {fault}", err=True)
        raise typer.Exit(2) from None
    cluster = get_json(f"{endpoint}/v1/cluster")
    if cluster is None:
        raise unreachable(endpoint)
    flags = " ".join(f"--member {m['id']}={_address(m)}" for m in cluster["members"] if m["id"] != address.node_id)
    typer.echo("Start the new node, with an empty data directory, where it is to run:", err=True)
    typer.echo(
        f"oncegate serve --join --node {address.node_id} --cluster {cluster['cluster']} {flags} --member {address}"
    )
    body = {
        "id": address.node_id,
        "host": address.host,
        "http_port": address.http_port,
        "peer_port": address.peer_port,
    }
    typer.echo("Waiting until it has caught up and votes ...", err=True)
    _change("POST", f"{endpoint}/v1/cluster/members", body, _ADD_S)
    typer.echo(f"{address.node_id} is a member and votes", err=True)


@member.command()
def remove(
    node_id: Annotated[str, typer.Argument(help="id of the node")], endpoint: Endpoint = ENDPOINT_DEFAULT
) -> None:
    """Remove a node, also a dead one or the leader. Its data directory is of no use to the cluster afterwards."""
    _change("DELETE", f"{endpoint}/v1/cluster/members/{node_id}", None, _CHANGE_S)
    typer.echo(f"{node_id} is no member any more", err=True)


@leader.command()
def move(
    to: Annotated[str | None, typer.Option(help="id of the node that is to lead [the one that is furthest]")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Hand leadership over, before maintenance for instance; writes wait for milliseconds."""
    _change("POST", f"{endpoint}/v1/cluster/leader", {} if to is None else {"to": to}, _CHANGE_S)
    cluster = get_json(f"{endpoint}/v1/cluster")
    if cluster is not None:
        typer.echo(f"{cluster['leader']} leads", err=True)


def _address(described: dict[str, str]) -> str:
    """Return host:http_port:peer_port of a member as ``GET /v1/cluster`` describes it."""
    host, peer_port = described["peer"].rsplit(":", 1)
    return f"{host}:{described['http'].rsplit(':', 1)[1]}:{peer_port}"


def _change(method: str, url: str, body: dict[str, object] | None, timeout_s: float) -> None:
    try:
        send_json(method, url, body, timeout_s)
    except RequestRefused as refusal:
        typer.echo(f"oncegate: {refusal}", err=True)
        raise typer.Exit(1) from None
    except Unreachable:
        raise unreachable(url) from None
