"""``oncegate session``: list the tenant's sessions, what one of them has not acknowledged, and end a doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncegate.gateway.cli.calls import run
from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint
from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.output import Format, Output, as_json, show
from oncegate.gateway.cli.row_values import told
from oncegate.gateway.cli.tables import pages

if TYPE_CHECKING:
    from oncegate.gateway.client import Resolution

session = typer.Typer(help="Sessions: list, show open requests, resolve one.", no_args_is_help=True)


@session.command("list")
def list_sessions(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """List the live sessions of the token's tenant."""
    found = pages(endpoint, "/v1/sessions", "sessions")
    if as_json(output, found):
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
    if as_json(output, found):
        return
    rows = ([str(one["first"]), str(one["last"]), one["state"], str(one.get("commit", ""))] for one in found)
    show(("first", "last", "state", "commit"), rows)


@session.command("resolve")
def resolve_request(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="request id, CLIENT_ID/SEQUENCE")],
    cluster: Cluster,
    output: Format = Output.TABLE,
) -> None:
    """End the doubt about a request: it was executed, or it is sealed and never will be.

    State applied, refused (its condition failed) or sealed. Exit status 6 if the cluster does not remember any more.
    """

    async def ask_for() -> Resolution:
        async with cluster.client() as client:
            return await client.resolve(request)

    ended = run(ask_for())
    found: dict[str, Any] = {"request": request, "state": ended.state}
    if ended.result is not None:
        result = ended.result
        found |= {"commit": result.commit, "version": result.version, **told(result.value), "code": result.code}
    if not as_json(output, found):
        show(("what", "value"), ((name, "" if one is None else str(one)) for name, one in found.items()))
