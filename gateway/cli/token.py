"""``oncegate token``: make a bearer token and its entry for the file of tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from oncegate.gateway.http.identity import Scope


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
        typer.echo(f"oncegate: {fault}", err=True)
        raise typer.Exit(2) from None
    print(entry)
    typer.echo(f"token (shown this once): {text}", err=True)
