"""``oncegate session``: list the tenant's sessions, and what one of them has not acknowledged."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint
from oncegate.gateway.cli.output import Format, Output, show
from oncegate.gateway.cli.tables import pages

session = typer.Typer(help="Sessions: list, show open requests.", no_args_is_help=True)


@session.command("list")
def list_sessions(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """List the live sessions of the token's tenant."""
    found = pages(endpoint, "/v1/sessions", "sessions")
    if output is Output.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    names = ("client_id", "epoch", "lease_ms_left", "first_incomplete", "highest_sequence", "records")
    header = ("session", "epoch", "lease left ms", "first incomplete", "highest", "records")
    show(header, ([str(one[name]) for name in names] for one in found), unbroken=header)


@session.command("requests")
def open_requests(
    client_id: Annotated[str, typer.Argument(metavar="SESSION", help="id of the session, 16 hexadecimal digits")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
) -> None:
    """Show what a session has not acknowledged: recorded results, and gaps that never arrived."""
    found = pages(endpoint, f"/v1/sessions/{client_id}/requests", "requests")
    if output is Output.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    rows = ([str(one["first"]), str(one["last"]), one["state"], str(one.get("commit", ""))] for one in found)
    show(("first", "last", "state", "commit"), rows)
